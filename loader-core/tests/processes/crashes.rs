//! Samples that kill their workers, or never return.

use std::time::Duration;

use loader_core::{ErrorPolicy, LoadError, Stage, WorkerError, Workers};

use crate::data::{Act, flag_file, hashes, noise, undisturbed, wait_until};

crate::tests![
    a_sample_that_kills_twice_is_a_sample_error,
    poison_is_skipped_and_counted,
    poison_is_substituted_and_nothing_else_shifts,
    a_crash_that_does_not_come_again_goes_unnoticed,
    a_sample_that_never_returns_is_an_error_after_the_timeout,
    a_stall_in_a_thread_is_an_error_that_names_the_sample,
    samples_that_all_kill_end_in_an_error_that_names_them,
    a_dataset_that_kills_whoever_opens_it_ends_in_an_error,
];

const DEADLY: [Act; 3] = [Act::Segfault, Act::Abort, Act::Exit];

fn a_sample_that_kills_twice_is_a_sample_error() {
    for (act, how) in DEADLY.into_iter().zip(["SIGSEGV", "SIGABRT", "code 9"]) {
        let builder = noise(60).act(23, act).loader().prefetch_next_epoch(false);
        let loader = builder.workers(Workers::processes(2)).build().unwrap();
        match hashes(loader.epoch(0).unwrap()) {
            Err(LoadError::Sample(failure)) => {
                assert_eq!((failure.index, failure.error.stage), (23, Stage::Worker));
                assert!(failure.error.message.contains(how), "{failure}");
                assert!(failure.to_string().contains("noise/23.jpg"), "{failure}");
            }
            other => panic!("{act:?}: {other:?}"),
        }
        wait_until("both restarts", || loader.restarts() == 2);
    }
}

fn poison_is_skipped_and_counted() {
    let dataset = noise(120).act(23, Act::Segfault).act(99, Act::Exit).act(5, Act::Fail);
    let failing = noise(120).act(23, Act::Fail).act(99, Act::Fail).act(5, Act::Fail);
    let of = |workers, dataset: crate::data::Noise| {
        let builder = dataset.loader().error_policy(ErrorPolicy::Skip).workers(workers);
        let loader = builder.build().unwrap();
        let mut epoch = loader.epoch(0).unwrap();
        let found: Vec<_> = epoch.by_ref().map(|b| crate::data::hash(&b.unwrap())).collect();
        (found, epoch.report().count)
    };
    let found = of(Workers::processes(3), dataset);
    assert_eq!(found, of(Workers::threads(1), failing));
    assert_eq!(found.1, 3);
}

fn poison_is_substituted_and_nothing_else_shifts() {
    let of = |workers, act| {
        let builder = noise(120).act(23, act).act(99, act).loader();
        let loader =
            builder.error_policy(ErrorPolicy::Substitute).workers(workers).build().unwrap();
        hashes(loader.epoch(0).unwrap()).unwrap()
    };
    assert_eq!(of(Workers::processes(3), Act::Segfault), of(Workers::threads(1), Act::Fail));
}

fn a_crash_that_does_not_come_again_goes_unnoticed() {
    let number = std::process::id();
    let _ = std::fs::remove_file(flag_file(number));
    let builder = noise(60).act(23, Act::SegfaultOnce(number)).loader().prefetch_next_epoch(false);
    let loader = builder.workers(Workers::processes(2)).build().unwrap();
    let found = hashes(loader.epoch(0).unwrap()).unwrap();
    std::fs::remove_file(flag_file(number)).unwrap();
    assert_eq!(found, undisturbed(noise(60), 1)[0]);
    wait_until("the restart", || loader.restarts() == 1);
}

fn a_sample_that_never_returns_is_an_error_after_the_timeout() {
    let builder = noise(60).act(23, Act::Hang).loader().workers(Workers::processes(2));
    let loader = builder.timeout(Duration::from_millis(700)).build().unwrap();
    match hashes(loader.epoch(0).unwrap()) {
        Err(LoadError::Sample(failure)) => {
            assert_eq!((failure.index, failure.error.stage), (23, Stage::Worker));
            assert!(failure.error.message.contains("longer than the timeout"), "{failure}");
        }
        other => panic!("{other:?}"),
    }
}

fn a_stall_in_a_thread_is_an_error_that_names_the_sample() {
    let builder = noise(60).act(23, Act::Hang).loader().workers(Workers::threads(2));
    let loader = builder.timeout(Duration::from_millis(700)).build().unwrap();
    match hashes(loader.epoch(0).unwrap()) {
        Err(LoadError::Stalled(stall)) => {
            assert_eq!(stall.index, Some(23));
            assert!(stall.to_string().contains("noise/23.jpg"), "{stall}");
        }
        other => panic!("{other:?}"),
    }
}

fn samples_that_all_kill_end_in_an_error_that_names_them() {
    let dataset = (0..60).fold(noise(60), |noise, index| noise.act(index, Act::Segfault));
    let builder = dataset.loader().error_policy(ErrorPolicy::Skip);
    let loader = builder.workers(Workers::processes(2)).build().unwrap();
    match hashes(loader.epoch(0).unwrap()) {
        Err(LoadError::Workers(error @ WorkerError::Dying { .. })) => {
            let text = error.to_string();
            assert!(text.contains("SIGSEGV") && text.contains("noise/"), "{text}");
        }
        other => panic!("{other:?}"),
    }
    assert!(loader.worker_pids().is_empty() || loader.epoch(1).unwrap().next().unwrap().is_err());
}

fn a_dataset_that_kills_whoever_opens_it_ends_in_an_error() {
    for act in DEADLY {
        let dataset = crate::data::Noise { attach: Some(act), ..noise(60) };
        let error = dataset.loader().workers(Workers::processes(2)).build().unwrap_err();
        assert!(error.to_string().contains("without finishing a sample"), "{act:?}: {error}");
    }
}
