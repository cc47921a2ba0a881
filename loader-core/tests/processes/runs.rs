//! Datasets that make several samples at once: what each sample comes to is as if it were made alone.

use loader_core::{ErrorPolicy, LoadError, Stage, Workers};

use crate::data::{Act, hash, hashes, noise, undisturbed, wait_until};

crate::tests![
    runs_give_the_batches_of_single_samples,
    samples_that_fail_in_a_run_fail_alone,
    a_sample_that_kills_in_a_run_is_the_only_one_that_fails,
];

fn runs_give_the_batches_of_single_samples() {
    let expected = undisturbed(noise(150), 2);
    for workers in [Workers::threads(3), Workers::processes(2), Workers::subprocess(2)] {
        for run in [2, 7, 64] {
            let loader = noise(150).in_runs(run).loader().workers(workers).build().unwrap();
            for (epoch, expected) in (0..).zip(&expected) {
                assert_eq!(&hashes(loader.epoch(epoch).unwrap()).unwrap(), expected, "{run}");
            }
        }
    }
}

fn samples_that_fail_in_a_run_fail_alone() {
    for policy in [ErrorPolicy::Skip, ErrorPolicy::Substitute] {
        let of = |run, panics| {
            let dataset = noise(120).act(23, Act::Fail).act(99, panics).act(5, Act::Fail);
            let loader = dataset.in_runs(run).loader().error_policy(policy).build().unwrap();
            let mut epoch = loader.epoch(0).unwrap();
            let found: Vec<_> = epoch.by_ref().map(|batch| hash(&batch.unwrap())).collect();
            let mut failed: Vec<_> = epoch.report().failures.iter().map(|f| f.index).collect();
            failed.sort_unstable();
            (found, failed, epoch.report().count)
        };
        let expected = of(0, Act::Fail);
        assert_eq!(of(8, Act::Fail), expected);
        assert_eq!(of(8, Act::Panic), expected);
    }
}

fn a_sample_that_kills_in_a_run_is_the_only_one_that_fails() {
    let builder = noise(60).in_runs(8).act(23, Act::Segfault).loader().prefetch_next_epoch(false);
    let loader = builder.workers(Workers::processes(2)).build().unwrap();
    match hashes(loader.epoch(0).unwrap()) {
        Err(LoadError::Sample(failure)) => {
            assert_eq!((failure.index, failure.error.stage), (23, Stage::Worker));
        }
        other => panic!("{other:?}"),
    }
    wait_until("both restarts", || loader.restarts() == 2);
    let of = |workers, run, act| {
        let builder = noise(120).in_runs(run).act(23, act).act(24, act).act(99, act).loader();
        let loader = builder.error_policy(ErrorPolicy::Skip).workers(workers).build().unwrap();
        let mut epoch = loader.epoch(0).unwrap();
        let found: Vec<_> = epoch.by_ref().map(|batch| hash(&batch.unwrap())).collect();
        (found, epoch.report().count)
    };
    let found = of(Workers::processes(3), 8, Act::Exit);
    assert_eq!(found, of(Workers::threads(1), 0, Act::Fail));
    assert_eq!(found.1, 3);
}
