//! What is left when a program ends, however it ends, and what happens at the system's limits.

use std::ffi::OsStr;
use std::io::{BufRead, Write};

use loader_core::{Batch, FolderError, ImageFolder, LoadError, TableCache, WorkerError, Workers};
use rustix::process::{Pid, Signal, kill_process};

use crate::data::{Act, Noise, hashes, noise, runs, undisturbed, wait_until};
use crate::victims::Victim;

crate::tests![
    a_killed_program_leaves_no_process_and_no_segment,
    a_program_that_ends_leaves_no_process,
    ctrl_c_ends_the_program_and_its_workers,
    workers_do_not_get_the_terminals_signals,
    dropping_a_loader_ends_its_processes_in_every_phase,
    a_killed_fork_server_is_an_error,
    open_files_stay_constant_however_many_batches_live,
    few_open_files_are_enough,
    workers_are_as_many_as_processors_are_granted,
    a_folder_opens_or_says_why_where_no_thread_can_be_started,
];

/// A program with eight workers of a loader and one thread that goes on and on. It tells its
/// workers' ids.
pub(crate) fn endless() {
    loader_core::init_with(crate::data::registry()).unwrap();
    let loader = Noise { micros: 100, ..noise(10_000) }.loader();
    let loader = loader.workers(Workers::processes(8)).build().unwrap();
    let mut told = false;
    for epoch in 0.. {
        for batch in loader.epoch(epoch).unwrap() {
            batch.unwrap();
            if !told && loader.worker_pids().len() == 8 {
                told = true;
                println!("{:?}", loader.worker_pids());
                std::io::stdout().flush().unwrap();
            }
        }
    }
}

fn started() -> (Victim, Vec<u32>) {
    let mut victim = Victim::start("endless");
    let mut line = String::new();
    victim.stdout().read_line(&mut line).unwrap();
    let pids = line.trim().trim_matches(['[', ']']).split(", ").map(|pid| pid.parse().unwrap());
    (victim, pids.collect())
}

fn segments() -> Vec<String> {
    let names = std::fs::read_dir("/dev/shm").unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.contains("loader")).collect()
}

fn a_killed_program_leaves_no_process_and_no_segment() {
    let before = segments();
    for _ in 0..5 {
        let (victim, pids) = started();
        victim.kill(Signal::KILL);
        assert_eq!(pids.len(), 8);
        wait_until("the workers' end", || !pids.iter().any(|&pid| runs(pid)));
    }
    assert_eq!(segments(), before);
}

fn ctrl_c_ends_the_program_and_its_workers() {
    let (victim, pids) = started();
    victim.kill(Signal::INT);
    wait_until("the workers' end", || !pids.iter().any(|&pid| runs(pid)));
}

/// They are in a process group of their own, and in the program's session: a session would be
/// scheduled as a whole.
fn workers_do_not_get_the_terminals_signals() {
    let loader = noise(60).loader().workers(Workers::processes(2)).build().unwrap();
    let (own_group, own_session) = group_and_session(std::process::id());
    for pid in loader.worker_pids() {
        let (group, session) = group_and_session(pid);
        assert_ne!(group, own_group);
        assert_eq!(session, own_session);
    }
}

/// From /proc/PID/stat, see proc(5). Both are 0 where their leader is outside of the PID namespace,
/// as in containers, which rustix's types have no value for.
fn group_and_session(pid: u32) -> (u32, u32) {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = &stat[stat.rfind(')').unwrap()..];
    let field = |n: usize| after_name.split(' ').nth(n).unwrap().parse().unwrap();
    (field(3), field(4))
}

fn a_program_that_ends_leaves_no_process() {
    let mut victim = Victim::start("leaves");
    let mut line = String::new();
    victim.stdout().read_line(&mut line).unwrap();
    let pids: Vec<u32> =
        line.trim().trim_matches(['[', ']']).split(", ").map(|pid| pid.parse().unwrap()).collect();
    victim.succeeds();
    wait_until("the workers' end", || !pids.iter().any(|&pid| runs(pid)));
}

/// It exits in the middle of an epoch, without dropping anything.
pub(crate) fn leaves() {
    loader_core::init_with(crate::data::registry()).unwrap();
    let loader = noise(1000).loader().workers(Workers::processes(3)).build().unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    epoch.next().unwrap().unwrap();
    wait_until("all workers", || loader.worker_pids().len() == 3);
    println!("{:?}", loader.worker_pids());
    std::process::exit(0);
}

fn dropping_a_loader_ends_its_processes_in_every_phase() {
    let gone = |pids: Vec<u32>| {
        wait_until("the workers' end", || !pids.iter().any(|&pid| runs(pid)));
    };
    let build = |dataset: Noise| {
        let loader = dataset.loader().workers(Workers::processes(3)).build().unwrap();
        wait_until("all workers", || loader.worker_pids().len() == 3);
        loader
    };
    let idle = build(noise(300));
    let pids = idle.worker_pids();
    drop(idle);
    gone(pids);

    let busy = build(noise(300));
    let mut epoch = busy.epoch(0).unwrap();
    let batch = epoch.next().unwrap().unwrap();
    let pids = busy.worker_pids();
    drop(busy);
    gone(pids);
    assert!(matches!(epoch.next(), Some(Err(LoadError::Superseded { .. }))));
    assert_eq!(crate::data::hash(&batch), undisturbed(noise(300), 1)[0][0], "batches live on");

    let stuck = build((0..48).fold(noise(48), |noise, index| noise.act(index, Act::Hang)));
    let _epoch = stuck.epoch(0).unwrap();
    let pids = stuck.worker_pids();
    drop(stuck);
    gone(pids);
}

fn a_killed_fork_server_is_an_error() {
    Victim::start("serverless").succeeds();
}

pub(crate) fn serverless() {
    loader_core::init_with(crate::data::registry()).unwrap();
    let loader = noise(10_000).loader().workers(Workers::processes(2)).build().unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    epoch.next().unwrap().unwrap();
    let pids = loader.worker_pids();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pids[0])).unwrap();
    let server: i32 =
        stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap();
    kill_process(Pid::from_raw(server).unwrap(), Signal::KILL).unwrap();
    match epoch.find_map(Result::err) {
        Some(LoadError::Workers(error @ WorkerError::ServerGone { .. })) => {
            assert!(error.to_string().contains("SIGKILL"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    wait_until("the workers' end", || !pids.iter().any(|&pid| runs(pid)));
    let error = noise(60).loader().workers(Workers::processes(2)).build().unwrap_err();
    assert!(error.to_string().contains("restart the program"), "{error}");
    let threads = noise(60).loader().workers(Workers::threads(1)).build().unwrap();
    hashes(threads.epoch(0).unwrap()).unwrap();
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn open_files_stay_constant_however_many_batches_live() {
    Victim::start("hoards").succeeds();
}

pub(crate) fn hoards() {
    loader_core::init_with(crate::data::registry()).unwrap();
    let loader = noise(4000).loader().batch_size(4).workers(Workers::processes(2));
    let loader = loader.memory_budget(256 << 20).build().unwrap();
    let before = open_files();
    let held: Vec<Batch> = loader.epoch(0).unwrap().map(Result::unwrap).collect();
    assert_eq!(held.len(), 1000);
    assert_eq!(open_files(), before);
    drop(held);
    for _ in 0..20 {
        let again = noise(60).loader().workers(Workers::processes(2)).build().unwrap();
        hashes(again.epoch(0).unwrap()).unwrap();
    }
    assert_eq!(open_files(), before);
}

fn few_open_files_are_enough() {
    Victim::start("frugal").succeeds();
}

pub(crate) fn frugal() {
    let limit = rustix::process::Rlimit { current: Some(24), maximum: Some(24) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    loader_core::init_with(crate::data::registry()).unwrap();
    let loader = noise(600).loader().workers(Workers::processes(2)).build().unwrap();
    hashes(loader.epoch(0).unwrap()).unwrap();
    // And beyond the limit there is an error.
    let mut hoard = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        hoard.push(file);
    }
    let error = noise(60).loader().workers(Workers::processes(2)).build().unwrap_err();
    assert!(error.to_string().to_lowercase().contains("too many open files"), "{error}");
}

fn workers_are_as_many_as_processors_are_granted() {
    let mut victim = Victim::start("confined");
    let mut line = String::new();
    victim.stdout().read_line(&mut line).unwrap();
    victim.succeeds();
    assert_eq!(line.trim(), "1", "workers on one processor");
}

/// A program that may run on one processor of the machine's. It tells how many threads work for it.
pub(crate) fn confined() {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    let all = sched_getaffinity(None).unwrap();
    let mut one = CpuSet::new();
    one.set((0..CpuSet::MAX_CPU).find(|&cpu| all.is_set(cpu)).unwrap());
    sched_setaffinity(None, &one).unwrap();
    loader_core::init_with(crate::data::registry()).unwrap();
    let loader = noise(60).loader().build().unwrap();
    loader.epoch(0).unwrap().next().unwrap().unwrap();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")));
    // Others read files ahead.
    let workers = names.filter(|name| {
        name.as_ref()
            .unwrap()
            .trim()
            .strip_prefix("loader-")
            .is_some_and(|n| n.parse::<u32>().is_ok())
    });
    println!("{}", workers.count());
}

/// Folders enough for several threads to look at.
const FOLDERS: usize = 5000;
const TREE: &str = "LOADER_TEST_TREE";

fn a_folder_opens_or_says_why_where_no_thread_can_be_started() {
    let dir = tempfile::tempdir().unwrap();
    for class in 0..FOLDERS {
        std::fs::create_dir_all(dir.path().join(format!("tree/{class}"))).unwrap();
        std::fs::write(dir.path().join(format!("tree/{class}/x.png")), "").unwrap();
    }
    tree(dir.path().as_os_str()).unwrap();
    // Stacks that no machine has room for: no thread can be started, whoever the user is.
    let stack = OsStr::new("1000000000000000");
    let environment = [(TREE, dir.path().as_os_str()), ("RUST_MIN_STACK", stack)];
    Victim::start_in("threadless", &environment).succeeds();
}

fn tree(dir: &OsStr) -> Result<ImageFolder, FolderError> {
    let dir = std::path::Path::new(dir);
    let cache = TableCache::File(dir.join("tree.paths"));
    ImageFolder::builder(dir.join("tree")).cache(cache).open()
}

/// A program that can't start threads.
pub(crate) fn threadless() {
    assert!(std::thread::Builder::new().spawn(|| ()).is_err());
    match tree(&std::env::var_os(TREE).unwrap()) {
        Ok(folder) => assert_eq!(folder.len(), FOLDERS as u64),
        // Folders that changed a moment before they were read are read again, which takes a thread.
        Err(error) => assert!(error.to_string().contains("ulimit -u"), "{error}"),
    }
}
