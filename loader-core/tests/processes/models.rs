//! Threads, processes and a subprocess are one engine: whoever makes the batches, they are the same.

use loader_core::ops::{Custom, RandAugment};
use loader_core::{
    ArrayDataset, DType, DataLoader, ErrorPolicy, ImageFolder, Layout, Order, SharedArray,
    TableCache, Transform, Workers, register_transform,
};

use crate::data::{Act, epochs, hashes, noise, undisturbed};

crate::tests![
    every_model_gives_the_same_batches,
    parts_of_epochs_are_made_by_processes,
    explicit_orders_are_shared_with_processes,
    image_folders_load_in_processes,
    arrays_are_shared_with_processes,
    a_custom_step_unknown_to_the_workers_is_refused_by_name,
    errors_travel_and_policies_hold_in_processes,
    two_loaders_run_side_by_side,
    an_epoch_can_be_left_and_another_started,
];

fn models() -> Vec<Workers> {
    vec![
        Workers::threads(1),
        Workers::threads(2),
        Workers::threads(16),
        Workers::processes(1),
        Workers::processes(2),
        Workers::processes(8),
        Workers::subprocess(2),
        Workers::processes(3).threads_per_process(2),
    ]
}

fn every_model_gives_the_same_batches() {
    let expected = undisturbed(noise(500), 3);
    for workers in models() {
        let found = epochs(noise(500).loader().workers(workers), 3);
        assert!(found == expected, "{workers:?}");
    }
}

fn parts_of_epochs_are_made_by_processes() {
    let of = |workers| epochs(noise(90).loader().positions(20..75).workers(workers), 2);
    assert!(of(Workers::processes(2)) == of(Workers::threads(2)));
}

fn explicit_orders_are_shared_with_processes() {
    let weights: Vec<f64> = (0..90).map(|i| f64::from(i % 7)).collect();
    for order in [
        Order::Sequential,
        Order::Subset { indices: (0..50).rev().collect(), shuffle: true },
        Order::Weighted { weights: weights.clone(), num_samples: 200, replacement: true },
        Order::Weighted { weights, num_samples: 60, replacement: false },
    ] {
        let of = |workers| epochs(noise(90).loader().order(order.clone()).workers(workers), 2);
        assert!(of(Workers::processes(2)) == of(Workers::threads(2)), "{order:?}");
    }
}

/// What worker processes know of, as it comes before `init`.
pub(crate) fn register_transforms() {
    register_transform("fade", |pixels, args, draws| {
        let by = args["by"].as_u64().ok_or("by how much?")? + draws.below(50);
        pixels.rgb_mut().iter_mut().for_each(|v| *v = v.saturating_sub(by as u8));
        Ok(())
    });
}

fn image_folders_load_in_processes() {
    let dir = tempfile::tempdir().unwrap();
    for i in 0..40u32 {
        let class = dir.path().join(format!("class {}", i % 3));
        std::fs::create_dir_all(&class).unwrap();
        let image = image::RgbImage::from_fn(40 + i, 50, |x, y| {
            image::Rgb([(x * 5) as u8, (y * 3 + i) as u8, (x ^ y) as u8])
        });
        image.save(class.join(format!("{i}.png"))).unwrap();
    }
    let folder = ImageFolder::builder(dir.path())
        .cache(TableCache::File(dir.path().join(".t")))
        .open()
        .unwrap();
    let transform = Transform::new()
        .random_resized_crop(32)
        .then(RandAugment::default())
        .then(Custom::new("fade").args(serde_json::json!({ "by": 40 })))
        .random_horizontal_flip(0.5)
        .to(DType::F32, Layout::Nchw)
        .normalize([0.1, 0.2, 0.3], [0.229, 0.224, 0.225]);
    let of = |workers| {
        let dataset = folder.transform(&transform).unwrap();
        let loader =
            DataLoader::builder(dataset).batch_size(7).shuffle(1).workers(workers).build().unwrap();
        hashes(loader.epoch(5).unwrap()).unwrap()
    };
    assert_eq!(of(Workers::processes(2)), of(Workers::threads(1)));
    // Its table is open in the workers by descriptor: the file may go.
    std::fs::remove_file(dir.path().join(".t")).unwrap();
    assert_eq!(of(Workers::subprocess(2)), of(Workers::threads(1)));
}

fn errors_travel_and_policies_hold_in_processes() {
    let broken = || noise(100).act(13, Act::Fail).act(77, Act::Panic);
    for policy in [ErrorPolicy::Skip, ErrorPolicy::Substitute] {
        let of = |workers| {
            let builder = broken().loader().error_policy(policy).workers(workers);
            let loader = builder.build().unwrap();
            let mut epoch = loader.epoch(0).unwrap();
            let batches: Vec<_> =
                epoch.by_ref().map(|batch| crate::data::hash(&batch.unwrap())).collect();
            let mut failures: Vec<_> =
                epoch.report().failures.iter().map(|f| (f.index, f.error.clone())).collect();
            failures.sort_by_key(|failure| failure.0);
            (batches, epoch.report().count, failures)
        };
        let (threads, processes) = (of(Workers::threads(2)), of(Workers::processes(2)));
        assert_eq!(threads, processes);
        assert_eq!(processes.1, 2);
        assert!(processes.2[1].1.message.contains("told to panic"));
    }
    let loader = broken().loader().workers(Workers::processes(2)).build().unwrap();
    let error = hashes(loader.epoch(0).unwrap()).unwrap_err().to_string();
    assert!(error.contains("noise/13.jpg") || error.contains("noise/77.jpg"), "{error}");
}

fn two_loaders_run_side_by_side() {
    let expected = undisturbed(noise(300), 2);
    let train = noise(300).loader().workers(Workers::processes(2)).build().unwrap();
    let val = noise(100).loader().workers(Workers::processes(2)).build().unwrap();
    for (epoch, expected) in (0..).zip(&expected) {
        let mut val = val.epoch(0).unwrap();
        for (batch, expected) in train.epoch(epoch).unwrap().zip(expected) {
            assert_eq!(crate::data::hash(&batch.unwrap()), *expected);
            val.next().transpose().unwrap();
        }
    }
}

fn an_epoch_can_be_left_and_another_started() {
    let expected = undisturbed(noise(300), 6);
    let loader = noise(300).loader().workers(Workers::processes(3)).build().unwrap();
    for epoch in [0, 3, 1, 5, 2, 4] {
        let taken: Vec<_> = loader
            .epoch(epoch)
            .unwrap()
            .take(epoch as usize * 3)
            .map(|batch| crate::data::hash(&batch.unwrap()))
            .collect();
        assert_eq!(taken, expected[epoch as usize][..taken.len()]);
    }
}

fn arrays_are_shared_with_processes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npy");
    let x: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    SharedArray::from_slice([250, 2, 2], &x).unwrap().write_npy(&path).unwrap();
    let y: Vec<i64> = (0..250).rev().collect();
    let arrays = [
        ("x", SharedArray::open(&path).unwrap()),
        ("y", SharedArray::from_slice([250], &y).unwrap()),
    ];
    let dataset = ArrayDataset::new(arrays).unwrap();
    let batches = |workers| {
        let builder = DataLoader::builder(dataset.clone()).batch_size(16).shuffle(4);
        let loader = builder.workers(workers).build().unwrap();
        let batches = loader.epoch(0).unwrap().map(|batch| {
            let batch = batch.unwrap();
            let x = batch.get::<f32>("x").unwrap().to_vec();
            (x, batch.get::<i64>("y").unwrap().to_vec())
        });
        batches.collect::<Vec<_>>()
    };
    let expected = batches(Workers::threads(1));
    assert!(expected[0].0.chunks(4).zip(&expected[0].1).all(|(x, y)| x[0] as i64 / 4 == 249 - y));
    for workers in models() {
        assert!(batches(workers) == expected, "{workers:?}");
    }
}

fn a_custom_step_unknown_to_the_workers_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let class = dir.path().join("class");
    std::fs::create_dir_all(&class).unwrap();
    image::RgbImage::new(4, 4).save(class.join("image.png")).unwrap();
    let folder = ImageFolder::builder(dir.path()).cache(TableCache::Off).open().unwrap();
    // The program knows it, but not the processes that it forked before.
    register_transform("too late", |_, _, _| Ok(()));
    let dataset =
        folder.transform(Transform::new().resize((4, 4)).then(Custom::new("too late"))).unwrap();
    let error = DataLoader::builder(dataset).workers(Workers::processes(1)).build().unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("\"too late\"") && error.contains("before loader_core::init()"),
        "{error}"
    );
}
