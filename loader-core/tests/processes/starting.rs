//! Starting worker processes, or saying why they can't be.

use loader_core::{BuildError, DataLoader, InitError, StartWorkersError, Workers};

use crate::data::{Act, Noise, Rooted, noise};
use crate::victims::Victim;

crate::tests![
    a_dataset_without_a_recipe_is_refused,
    a_dataset_that_can_not_be_opened_says_why,
    a_panic_while_opening_says_why,
    a_second_init_is_an_error,
    without_init_processes_are_refused_and_threads_work,
    a_late_init_is_an_error_that_names_the_fix,
    an_unregistered_dataset_is_refused_by_name,
    a_loader_inside_a_worker_is_refused,
];

fn build_error(dataset: Noise) -> BuildError {
    dataset.loader().workers(Workers::processes(2)).build().unwrap_err()
}

fn a_dataset_without_a_recipe_is_refused() {
    let error = DataLoader::builder(Rooted).workers(Workers::processes(1)).build().unwrap_err();
    assert!(error.to_string().contains("Rooted") && error.to_string().contains("Dataset::recipe"));
}

fn a_dataset_that_can_not_be_opened_says_why() {
    let error = build_error(Noise { attach: Some(Act::Fail), ..noise(60) });
    assert!(error.to_string().contains("the disk is on fire"), "{error}");
}

fn a_panic_while_opening_says_why() {
    let error = build_error(Noise { attach: Some(Act::Panic), ..noise(60) });
    assert!(error.to_string().contains("told to panic"), "{error}");
}

fn a_second_init_is_an_error() {
    assert!(matches!(loader_core::init(), Err(InitError::Again)));
}

fn without_init_processes_are_refused_and_threads_work() {
    Victim::start("without_init").succeeds();
}

pub(crate) fn without_init() {
    let error = build_error(noise(60));
    assert!(matches!(error, BuildError::Workers(StartWorkersError::NotInitialized)));
    assert!(error.to_string().contains("first line of main"), "{error}");
    let loader = noise(60).loader().workers(Workers::threads(2)).build().unwrap();
    assert!(loader.epoch(0).unwrap().all(|batch| batch.is_ok()));
}

fn a_late_init_is_an_error_that_names_the_fix() {
    Victim::start("late_init").succeeds();
}

pub(crate) fn late_init() {
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || held.recv());
    let error = loader_core::init().unwrap_err();
    assert!(matches!(error, InitError::TooLate { threads: 2 }), "{error:?}");
    assert!(error.to_string().contains("first line of main"), "{error}");
    drop(hold);
    thread.join().unwrap().unwrap_err();
}

fn an_unregistered_dataset_is_refused_by_name() {
    Victim::start("unregistered").succeeds();
}

pub(crate) fn unregistered() {
    loader_core::init().unwrap();
    let error = build_error(noise(60));
    match &error {
        BuildError::Workers(StartWorkersError::NotRegistered { name, registered }) => {
            assert_eq!(name, "noise");
            // The crate's own are.
            let own = registered.iter().all(|name| name.starts_with("loader_core::"));
            assert!(own && !registered.is_empty(), "{registered:?}");
        }
        other => panic!("{other:?}"),
    }
    assert!(error.to_string().contains("Registry::dataset"), "{error}");
}

fn a_loader_inside_a_worker_is_refused() {
    Victim::start("nested").succeeds();
}

pub(crate) fn nested() {
    let nested = |_| {
        let error = build_error(noise(60));
        Err::<Noise, _>(format!("inside: {error}"))
    };
    loader_core::init_with(loader_core::Registry::new().dataset("noise", nested)).unwrap();
    let error = build_error(noise(60));
    assert!(error.to_string().contains("inside: worker processes need"), "{error}");
}
