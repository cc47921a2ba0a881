//! What has its own tests for threads, with workers that are processes: resuming and sharing.

use loader_core::{LoaderState, Workers};
use rustix::process::{Pid, Signal, kill_process};

use crate::data::{hash, hashes, noise, undisturbed};

crate::tests![
    a_run_goes_on_under_another_model,
    batches_of_worker_processes_are_shared,
    killed_workers_do_not_disturb_what_is_shared,
];

fn a_run_goes_on_under_another_model() {
    let expected = undisturbed(noise(150), 2);
    let models =
        [Workers::processes(2), Workers::threads(3), Workers::subprocess(2), Workers::processes(1)];
    let loaders = models.map(|workers| noise(150).loader().workers(workers).build().unwrap());
    for (epoch, expected) in (0..).zip(&expected) {
        for taken in 0..=expected.len() {
            let (saver, resumer) = (&loaders[taken % 4], &loaders[(taken + 1) % 4]);
            let mut begun = saver.epoch(epoch).unwrap();
            let seen: Vec<_> =
                begun.by_ref().take(taken).map(|batch| hash(&batch.unwrap())).collect();
            let state = serde_json::to_string(&saver.state()).unwrap();
            drop(begun);
            let state: LoaderState = serde_json::from_str(&state).unwrap();
            let rest = hashes(resumer.resume(&state).unwrap()).unwrap();
            assert!([seen, rest].concat() == *expected, "after {taken} of epoch {epoch}");
        }
    }
}

/// Names in `/dev/shm` of segments that this process made.
fn segments() -> usize {
    let prefix = format!("loader-core.{}.", std::process::id());
    let names = std::fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().starts_with(&prefix)).count()
}

fn shares_an_epoch(mut disturb: impl FnMut(u32, u64)) {
    let expected = undisturbed(noise(400), 1).remove(0);
    let loader =
        noise(400).loader().workers(Workers::processes(2)).shareable(true).build().unwrap();
    let mut seen = Vec::new();
    for batch in loader.epoch(0).unwrap() {
        let mut batch = batch.unwrap();
        let opened = batch.share().unwrap().open().unwrap();
        assert_eq!(opened.get::<f32>("image").unwrap(), batch.get::<f32>("image").unwrap());
        assert!(opened.indices().eq(batch.indices()));
        seen.push(hash(&batch));
        if let Some(&pid) = loader.worker_pids().first() {
            disturb(pid, batch.number());
        }
    }
    assert!(seen == expected);
}

fn batches_of_worker_processes_are_shared() {
    shares_an_epoch(|_, _| {});
}

fn killed_workers_do_not_disturb_what_is_shared() {
    shares_an_epoch(|pid, number| {
        if number % 5 == 2 {
            // It may be gone already.
            let _ = kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL);
        }
    });
    crate::data::wait_until("the end of all names", || segments() == 0);
}
