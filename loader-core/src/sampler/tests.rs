use std::collections::{BTreeMap, HashSet};

use proptest::prelude::*;

use super::*;

const MODES: [ShardMode; 3] = [ShardMode::Pad, ShardMode::Drop, ShardMode::Exact];

fn sampler(order: &Order, shard: Option<Shard>, len: u64, seed: u64) -> Sampler {
    Sampler::new(order.clone(), shard, len, seed).unwrap()
}

fn picks(sampler: &Sampler, epoch: u64) -> Vec<Pick> {
    let order = sampler.epoch(epoch);
    assert_eq!(order.len(), sampler.len());
    (0..order.len()).map(|position| order.get(position)).collect()
}

fn indices(sampler: &Sampler, epoch: u64) -> Vec<u64> {
    picks(sampler, epoch).iter().map(|pick| pick.index).collect()
}

fn error(order: Order, len: u64) -> OrderError {
    Sampler::new(order, None, len, 0).unwrap_err()
}

fn weighted(weights: &[f64], num_samples: u64, replacement: bool) -> Order {
    Order::Weighted { weights: weights.to_vec(), num_samples, replacement }
}

/// One order of each kind that fits a dataset of `len` samples.
fn any_order(len: u64) -> impl Strategy<Value = Order> {
    let list = prop::collection::vec(0..len.max(1), 0..if len == 0 { 1 } else { 60 });
    let weights = prop::collection::vec(0.1..5.0f64, len as usize..=len as usize);
    prop_oneof![
        Just(Order::Sequential),
        Just(Order::Shuffled),
        (list, any::<bool>()).prop_map(|(indices, shuffle)| Order::Subset { indices, shuffle }),
        (weights, 1..90u64, any::<bool>()).prop_map(move |(weights, n, replacement)| {
            match (len, replacement) {
                (0, _) => Order::Sequential,
                (_, true) => weighted(&weights, n, true),
                (_, false) => weighted(&weights, n.min(len), false),
            }
        }),
    ]
}

/// What `DistributedSampler` does: lengthen or cut the whole epoch, then deal it out.
fn dealt_by_hand(whole: &[u64], rank: usize, world: usize, mode: ShardMode) -> Vec<u64> {
    let mut list = whole.to_vec();
    match mode {
        ShardMode::Pad if !whole.is_empty() => {
            list.extend(
                whole.iter().cycle().take(whole.len().div_ceil(world) * world - whole.len()),
            );
        }
        ShardMode::Drop => list.truncate(whole.len() / world * world),
        _ => {}
    }
    list.into_iter().skip(rank).step_by(world).collect()
}

proptest! {
    #[test]
    fn shards_are_dealt_as_by_hand(
        (len, order) in (0u64..40).prop_flat_map(|len| (Just(len), any_order(len))),
        world in 1u32..50,
        mode in prop::sample::select(MODES.to_vec()),
        seed in any::<u64>(),
        epoch in any::<u64>(),
    ) {
        let whole = picks(&sampler(&order, None, len, seed), epoch);
        let whole_indices: Vec<u64> = whole.iter().map(|pick| pick.index).collect();
        let mut all = Vec::new();
        for rank in 0..world {
            let shard = Shard::new(rank, world, mode).unwrap();
            let of_rank = picks(&sampler(&order, Some(shard), len, seed), epoch);
            let found: Vec<u64> = of_rank.iter().map(|pick| pick.index).collect();
            let expected = dealt_by_hand(&whole_indices, rank as usize, world as usize, mode);
            prop_assert_eq!(found, expected);
            all.extend(of_rank);
        }
        // Whatever the ranks, a sample keeps its randomness, and no two share one.
        let real: HashSet<Pick> = all.iter().copied().filter(|pick| !pick.padding).collect();
        let from_whole: HashSet<Pick> = whole.iter().copied().collect();
        match mode {
            ShardMode::Drop => {
                prop_assert!(real.is_subset(&from_whole));
                prop_assert_eq!(real.len(), whole.len() / world as usize * world as usize);
            }
            _ => prop_assert_eq!(&real, &from_whole),
        }
        let padding = all.iter().filter(|pick| pick.padding).count();
        prop_assert_eq!(padding, all.len() - real.len());
        let distinct: HashSet<(u64, u64)> =
            all.iter().map(|pick| (pick.index, pick.occurrence)).collect();
        prop_assert_eq!(distinct.len(), all.len());
    }

    #[test]
    fn a_shuffle_holds_every_sample_once(len in 0u64..5000, seed in any::<u64>(), epoch in any::<u64>()) {
        let mut all = picks(&sampler(&Order::Shuffled, None, len, seed), epoch);
        prop_assert!(all.iter().all(|pick| pick.occurrence == 0 && !pick.padding));
        all.sort_unstable_by_key(|pick| pick.index);
        prop_assert!(all.into_iter().map(|pick| pick.index).eq(0..len));
    }
}

#[test]
fn lengths_are_exact_on_the_whole_grid() {
    for len in 0..40u64 {
        for world in 1..45u32 {
            for mode in MODES {
                let lens: Vec<u64> = (0..world)
                    .map(|rank| {
                        let shard = Shard::new(rank, world, mode).unwrap();
                        let sampler = sampler(&Order::Sequential, Some(shard), len, 0);
                        assert_eq!(picks(&sampler, 0).len() as u64, sampler.len());
                        sampler.len()
                    })
                    .collect();
                let (world, total) = (u64::from(world), lens.iter().sum::<u64>());
                let even = lens.iter().all(|n| *n == lens[0]);
                match mode {
                    ShardMode::Pad => assert!(even && (len..len + world).contains(&total)),
                    ShardMode::Drop => assert!(even && total <= len && len < total + world),
                    ShardMode::Exact => {
                        assert!(total == len && lens[0] - lens[world as usize - 1] < 2)
                    }
                }
            }
        }
    }
}

#[test]
fn a_subset_keeps_its_order_or_is_shuffled() {
    let list = vec![9, 2, 7, 4, 5];
    let order = |shuffle| Order::Subset { indices: list.clone(), shuffle };
    let kept = sampler(&order(false), None, 10, 1);
    assert_eq!(indices(&kept, 0), list);
    assert_eq!(indices(&kept, 1), list);
    assert!(picks(&kept, 0).iter().all(|pick| pick.occurrence == 0));
    let shuffled = sampler(&order(true), None, 10, 1);
    let orders: HashSet<Vec<u64>> = (0..20).map(|epoch| indices(&shuffled, epoch)).collect();
    assert!(orders.len() > 10);
    for mut order in orders {
        order.sort_unstable();
        assert_eq!(order, [2, 4, 5, 7, 9]);
    }
}

#[test]
fn repeats_in_a_subset_differ_in_their_randomness() {
    let order = Order::Subset { indices: vec![3, 3, 1, 3], shuffle: true };
    let sampler = sampler(&order, None, 4, 0);
    let first: HashSet<Pick> = picks(&sampler, 0).into_iter().collect();
    assert_eq!(first.len(), 4);
    // An entry keeps its randomness wherever the shuffle puts it.
    assert_eq!(first, picks(&sampler, 1).into_iter().collect());
}

#[test]
fn weighted_orders_follow_their_weights() {
    let weights: Vec<f64> = (0..10).map(f64::from).collect();
    let with = sampler(&weighted(&weights, 45_000, true), None, 10, 3);
    let mut seen = BTreeMap::<u64, f64>::new();
    for pick in picks(&with, 2) {
        *seen.entry(pick.index).or_default() += 1.0;
    }
    assert!(!seen.contains_key(&0));
    let chi: f64 = (1..10u64)
        .map(|i| {
            let expected = i as f64 * 1000.0;
            (seen[&i] - expected).powi(2) / expected
        })
        .sum();
    assert!(chi < 30.0, "{chi}");

    let without = sampler(&weighted(&weights, 9, false), None, 10, 3);
    let orders: HashSet<Vec<u64>> = (0..50).map(|epoch| indices(&without, epoch)).collect();
    assert!(orders.len() > 40);
    for mut order in orders {
        order.sort_unstable();
        assert!(order.into_iter().eq(1..10));
    }
}

#[test]
fn a_draw_with_replacement_does_not_depend_on_the_epochs_length() {
    let weights: Vec<f64> = (1..=50).map(f64::from).collect();
    let long = indices(&sampler(&weighted(&weights, 500, true), None, 50, 3), 7);
    let short = indices(&sampler(&weighted(&weights, 20, true), None, 50, 3), 7);
    assert_eq!(long[..20], short);
}

#[test]
fn orders_that_do_not_fit_are_refused() {
    let subset = |indices: &[u64]| Order::Subset { indices: indices.to_vec(), shuffle: false };
    assert_eq!(error(subset(&[0, 4, 5]), 5), OrderError::Index { at: 2, index: 5, dataset_len: 5 });
    assert_eq!(
        error(weighted(&[1.0; 4], 2, true), 5),
        OrderError::WeightCount { found: 4, dataset_len: 5 }
    );
    for bad in [-1.0, f64::INFINITY, f64::NAN] {
        let error = error(weighted(&[1.0, bad], 2, true), 2);
        assert!(matches!(error, OrderError::BadWeight { at: 1, .. }), "{error}");
    }
    assert_eq!(error(weighted(&[1.0], 0, true), 1), OrderError::NoSamples);
    assert_eq!(error(weighted(&[0.0; 3], 2, true), 3), OrderError::NoWeight { dataset_len: 3 });
    assert_eq!(error(weighted(&[], 2, true), 0), OrderError::NoWeight { dataset_len: 0 });
    assert_eq!(
        error(weighted(&[1.0, 0.0, 2.0], 3, false), 3),
        OrderError::TooFewWeights { positive: 2, num_samples: 3 }
    );
    assert_eq!(error(Order::Shuffled, 1 << 63), OrderError::TooLong { len: 1 << 63 });
    assert_eq!(error(weighted(&[1.0], u64::MAX, true), 1), OrderError::TooLong { len: u64::MAX });
}

#[test]
fn the_longest_epoch_is_counted_without_overflow() {
    let shard = Shard::new(u32::MAX - 1, u32::MAX, ShardMode::Pad).unwrap();
    let sampler = sampler(&Order::Shuffled, Some(shard), MAX_LEN, 1);
    let order = sampler.epoch(u64::MAX);
    assert!(order.get(order.len() - 1).index < MAX_LEN);
}

#[test]
fn an_empty_dataset_has_empty_epochs() {
    for mode in MODES {
        for order in [Order::Sequential, Order::Shuffled] {
            let shard = Shard::new(1, 3, mode).unwrap();
            assert!(sampler(&order, Some(shard), 0, 0).is_empty());
            assert!(sampler(&order, Some(shard), 0, 0).epoch(0).is_empty());
        }
    }
}

#[test]
#[should_panic(expected = "position 3 of an epoch of 3 samples")]
fn positions_past_the_end_are_refused() {
    sampler(&Order::Sequential, None, 3, 0).epoch(0).get(3);
}

#[test]
fn the_fingerprint_tells_orders_apart_but_not_ranks() {
    let list = |indices: &[u64], shuffle| Order::Subset { indices: indices.to_vec(), shuffle };
    let made = [
        sampler(&Order::Sequential, None, 4, 0),
        sampler(&Order::Shuffled, None, 4, 0),
        sampler(&Order::Shuffled, None, 5, 0),
        sampler(&Order::Shuffled, None, 4, 1),
        sampler(&list(&[1, 2], false), None, 4, 0),
        sampler(&list(&[1, 2], true), None, 4, 0),
        sampler(&list(&[2, 1], true), None, 4, 0),
        sampler(&weighted(&[1.0, 2.0, 1.0, 1.0], 2, true), None, 4, 0),
        sampler(&weighted(&[1.0, 2.0, 1.0, 1.0], 2, false), None, 4, 0),
        sampler(&weighted(&[1.0, 2.0, 1.0, 1.0], 3, false), None, 4, 0),
        sampler(&weighted(&[1.0, 2.0, 1.0, 2.0], 3, false), None, 4, 0),
    ];
    let distinct: HashSet<Fingerprint> = made.iter().map(Sampler::fingerprint).collect();
    assert_eq!(distinct.len(), made.len());
    let shard = Shard::new(1, 2, ShardMode::Pad).unwrap();
    let sharded = sampler(&Order::Shuffled, Some(shard), 4, 0);
    assert_eq!(sharded.fingerprint(), made[1].fingerprint());
}

#[test]
fn orders_are_data() {
    let orders = [
        (Order::Shuffled, r#""shuffled""#),
        (
            Order::Subset { indices: vec![1, 2], shuffle: true },
            r#"{"subset":{"indices":[1,2],"shuffle":true}}"#,
        ),
        (
            weighted(&[0.5], 2, true),
            r#"{"weighted":{"weights":[0.5],"num_samples":2,"replacement":true}}"#,
        ),
    ];
    for (order, text) in orders {
        assert_eq!(serde_json::to_string(&order).unwrap(), text);
        assert_eq!(serde_json::from_str::<Order>(text).unwrap(), order);
    }
}

#[test]
fn an_epochs_order_crosses_threads() {
    fn shared<T: Clone + Send + Sync + 'static>() {}
    shared::<EpochOrder>();
    shared::<Sampler>();
}

/// A seed means the same order on every machine and after every update. `pinned.py` computes the
/// numbers anew, from the description in docs/order.md.
#[test]
fn orders_are_pinned() {
    let first = |order: Order, len, seed, epoch| {
        indices(&sampler(&order, None, len, seed), epoch)[..8].to_vec()
    };
    assert_eq!(first(Order::Shuffled, 8, 42, 0), [4, 6, 7, 3, 2, 1, 5, 0]);
    assert_eq!(
        first(Order::Shuffled, 1_281_167, 42, 0),
        [711032, 109532, 365731, 1259638, 1129258, 463081, 401695, 805836]
    );
    assert_eq!(
        first(Order::Shuffled, 1_281_167, 42, 1),
        [1148114, 931426, 221244, 286802, 197659, 716525, 645733, 806596]
    );
    let list: Vec<u64> = (0..100).step_by(3).collect();
    assert_eq!(
        first(Order::Subset { indices: list, shuffle: true }, 100, 42, 1),
        [0, 78, 54, 84, 81, 57, 99, 72]
    );
    let weights: Vec<f64> = (0..100).map(|i| f64::from(i).sqrt()).collect();
    assert_eq!(first(weighted(&weights, 90, true), 100, 42, 1), [77, 78, 24, 78, 47, 37, 85, 74]);
    assert_eq!(first(weighted(&weights, 90, false), 100, 42, 1), [33, 74, 58, 70, 35, 53, 15, 59]);
}
