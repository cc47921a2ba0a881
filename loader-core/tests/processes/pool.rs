//! Tasks in worker processes: each result is what the task gives, whatever happens to the processes.

use std::collections::{HashMap, HashSet};
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use loader_core::{
    ArrayError, ArrayHandle, Draws, MemoryUse, PoolError, ProcessPool, ProcessRole, Registry,
    Sample, SharedArray, SharedTask, StartWorkersError, Task, TaskCause, TaskError, WorkerError,
    Workers, sweep_segments,
};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::data::{Act, Ending, noise, perform, runs, undisturbed, wait_until};
use crate::victims::{self, Victim};

crate::tests![
    results_come_in_the_order_of_arguments,
    arrays_travel_both_ways_without_a_copy,
    what_is_shared_is_unpacked_once_in_each_process,
    what_can_not_be_unpacked_is_an_error,
    arguments_and_results_of_any_size_arrive,
    two_hundred_arrays_travel_with_one_task_and_300_are_an_error,
    numbers_come_back_to_the_bit,
    killing_workers_changes_no_result_and_runs_no_task_thrice,
    a_task_that_always_kills_is_an_error_that_names_it,
    errors_and_panics_of_tasks_are_told,
    a_task_that_never_returns_is_an_error_after_the_timeout,
    a_stopped_process_is_replaced,
    killing_an_idle_pools_processes_does_no_harm,
    the_first_failure_is_told_and_ends_the_taking_of_arguments,
    arguments_are_taken_as_results_are,
    threads_share_a_pool,
    pools_and_loaders_work_side_by_side,
    an_idle_process_keeps_no_array_alive,
    a_report_tells_arrays_from_what_a_process_owns,
    another_program_opens_an_array_by_its_handle_and_keeps_it,
    dropping_a_pool_amid_tasks_ends_its_processes,
    fifty_pools_leave_no_descriptor_and_no_process,
    more_arrays_than_files_may_be_open_are_an_error,
    ends_of_the_program_end_a_pools_processes,
    a_killed_fork_server_ends_a_pool_with_an_error,
    without_init_a_pool_is_refused,
    an_unregistered_task_is_refused_by_name,
    two_tasks_of_one_name_are_refused,
    hundreds_of_processes_start_and_die_at_once,
    a_pool_inside_a_task_is_refused,
    pools_of_no_process_or_no_time_are_refused,
];

const SQUARE: Task<(i64, u64), i64, String> = Task::new("square", |(n, micros)| {
    spin(micros);
    Ok(n * n)
});
const ECHO: Task<String, String, String> = Task::new("echo", Ok);
const BITS: Task<(u64, f64), (f64, u64), String> =
    Task::new("bits", |(bits, float)| Ok((f64::from_bits(bits), float.to_bits())));
const MEAN: Task<(SharedArray, usize), f64, ArrayError> =
    Task::new("mean", |(table, row)| Ok(mean(table.row(row)?)));
const SHARED_MEAN: SharedTask<SharedArray, usize, (f64, u32, usize), ArrayError> =
    SharedTask::new("shared mean", |table, row| {
        let address = std::ptr::from_ref(table).addr();
        Ok((mean(table.row(row)?), std::process::id(), address))
    });
const MAKE: Task<(SharedArray, usize), Made, ArrayError> = Task::new("make", make);
const REVERSE: Task<Vec<SharedArray>, Vec<SharedArray>, String> =
    Task::new("reverse", |arrays| Ok(arrays.into_iter().rev().collect()));
const ACT: Task<(i64, Option<Act>), i64, String> = Task::new("act", |(n, act)| {
    if let Some(act) = act {
        perform(act);
    }
    if act == Some(Act::Fail) { Err(format!("{n} is broken")) } else { Ok(n) }
});
const MARKED: Task<(PathBuf, u64), u64, io::Error> = Task::new("marked", marked);
const PROCESS: Task<u64, u32, String> = Task::new("process", |millis| {
    std::thread::sleep(Duration::from_millis(millis));
    Ok(std::process::id())
});
const NESTED: Task<(), String, String> =
    Task::new("nested", |()| Err(ProcessPool::new(1).unwrap_err().to_string()));
const REFUSING: SharedTask<Refusing, (), (), String> = SharedTask::new("refusing", |_, ()| Ok(()));
/// Never registered.
const UNKNOWN: Task<(), (), String> = Task::new("unknown", Ok);

pub(crate) fn register(registry: Registry) -> Registry {
    let registry = registry.task(SQUARE).task(ECHO).task(BITS).task(MEAN).task(SHARED_MEAN);
    let registry = registry.task(MAKE).task(REVERSE).task(ACT).task(MARKED).task(NESTED);
    registry.task(REFUSING).task(PROCESS)
}

fn spin(micros: u64) {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_micros(micros) {
        std::hint::spin_loop();
    }
}

fn mean(row: &[f64]) -> f64 {
    row.iter().sum::<f64>() / row.len() as f64
}

fn pool(processes: usize) -> ProcessPool {
    ProcessPool::new(processes).unwrap()
}

fn all_pids<S>(pool: &ProcessPool<S>, count: usize) -> Vec<u32> {
    wait_until("all processes", || pool.pids().len() == count);
    pool.pids()
}

fn gone(pids: &[u32]) {
    wait_until("the processes' end", || !pids.iter().any(|&pid| runs(pid)));
}

fn pid(pid: u32) -> Pid {
    Pid::from_raw(pid as i32).unwrap()
}

fn task_error<T: std::fmt::Debug>(result: Result<T, PoolError>) -> TaskError {
    match result {
        Err(PoolError::Task(error)) => error,
        other => panic!("{other:?}"),
    }
}

fn squares(pool: &ProcessPool, count: i64, micros: impl Fn(i64) -> u64) {
    let found = pool.map(&SQUARE, (0..count).map(|n| (n, micros(n)))).unwrap();
    assert!(found.into_iter().eq((0..count).map(|n| n * n)));
}

fn results_come_in_the_order_of_arguments() {
    let pool = pool(3);
    squares(&pool, 300, |n| (n as u64 * 7919) % 3000);
    squares(&pool, 0, |_| 0);
    let mut results = pool.imap(&SQUARE, (0..200).map(|n| (n, 200 - n as u64))).unwrap();
    for n in 0..200 {
        assert_eq!(results.next().unwrap().unwrap(), n * n);
        assert_eq!(results.size_hint(), (199 - n as usize, Some(199 - n as usize)));
    }
    assert!(results.next().is_none() && results.next().is_none());
    assert_eq!(pool.restarts(), 0);
}

/// The number of the file that is mapped at that address of this process.
fn inode(array: &SharedArray) -> u64 {
    let address = array.bytes().as_ptr().addr();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let inode = maps.lines().find_map(|line| {
        let mut columns = line.split_whitespace();
        let (start, end) = columns.next()?.split_once('-')?;
        let [start, end] = [start, end].map(|at| usize::from_str_radix(at, 16).unwrap());
        (start..end).contains(&address).then(|| columns.nth(3).unwrap().parse().unwrap())
    });
    inode.unwrap()
}

/// An array, the numbers of two files and of the process, and its memory.
type Made = (SharedArray, [u64; 3], MemoryUse);

/// Reads all of an array and makes one of that size, and tells which files they are and what memory it took.
fn make((array, len): (SharedArray, usize)) -> Result<Made, ArrayError> {
    let sum: f64 = array.as_slice::<f64>()?.iter().sum();
    let made = SharedArray::build([len], |values| values.fill(sum))?;
    let files = [inode(&array), inode(&made), std::process::id().into()];
    Ok((made, files, MemoryUse::of(std::process::id()).unwrap()))
}

/// An array whose pages this process has mapped too, so that they are nobody's own.
fn touched(shape: &[usize], value: f64) -> SharedArray {
    let array = SharedArray::build(shape, |values: &mut [f64]| values.fill(value)).unwrap();
    assert_eq!(mean(array.as_slice().unwrap()), value);
    array
}

fn arrays_travel_both_ways_without_a_copy() {
    const LEN: usize = 8 << 20;
    let table = touched(&[LEN], 0.5);
    let pool = pool(2);
    let found = pool.map(&MAKE, (0..4).map(|_| (table.clone(), LEN))).unwrap();
    for (made, [theirs, returned, by], memory) in found {
        assert_eq!(theirs, inode(&table), "the table is the same file in process {by}");
        assert_eq!(returned, inode(&made), "the result is the file that process {by} made");
        assert!(made.as_slice::<f64>().unwrap().iter().all(|&x| x == LEN as f64 / 2.0));
        // What it made itself is its own until somebody else maps it; 64 MB each.
        assert!(memory.uss < (5 << 20) + made.bytes().len() as u64, "{memory:?}");
    }
    let rows = touched(&[8, LEN / 8], 0.5);
    let means = pool.map(&MEAN, (0..8).map(|row| (rows.clone(), row))).unwrap();
    assert_eq!(means, [0.5; 8]);
    for process in pool.pids() {
        let memory = MemoryUse::of(process).unwrap();
        assert!(memory.uss < 5 << 20, "{memory:?}");
    }
}

fn what_is_shared_is_unpacked_once_in_each_process() {
    let rows: Vec<f64> = (0..64).map(f64::from).collect();
    let table = SharedArray::from_slice([32, 2], &rows).unwrap();
    let pool = ProcessPool::builder(3).shared(&table).build().unwrap();
    let found = pool.map(&SHARED_MEAN, (0..320).map(|i| i % 32)).unwrap();
    let mut addresses = HashMap::new();
    for (i, (mean, process, address)) in found.into_iter().enumerate() {
        assert_eq!(mean, (i % 32) as f64 * 2.0 + 0.5);
        assert_eq!(*addresses.entry(process).or_insert(address), address, "unpacked again");
    }
    // Tasks that ask for nothing run there too.
    assert_eq!(pool.map(&MEAN, [(table, 1)]).unwrap(), [2.5]);
    let error = task_error(pool.map(&SHARED_MEAN, [31, 32]));
    assert_eq!((error.index, &*error.task), (1, "shared mean"));
    assert!(error.to_string().contains("rows 32..33 of an array with 32"), "{error}");
}

#[derive(Serialize)]
struct Refusing;

impl<'de> Deserialize<'de> for Refusing {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(serde::de::Error::custom("not today"))
    }
}

fn what_can_not_be_unpacked_is_an_error() {
    let pool = ProcessPool::builder(1).shared(&Refusing).build().unwrap();
    for _ in 0..2 {
        let error = task_error(pool.map(&REFUSING, [()]));
        assert!(matches!(&error.cause, TaskCause::Arguments(why) if why.contains("not today")));
    }
    assert_eq!(pool.restarts(), 0);
}

fn arguments_and_results_of_any_size_arrive() {
    let pool = pool(2);
    let texts =
        [0, 1, 60_000, 65_519, 65_520, 70_000, 1_000_000, 20_000_000].map(|n| "x".repeat(n));
    let found = pool.map(&ECHO, texts.iter().cloned()).unwrap();
    assert!(found == texts);
}

fn two_hundred_arrays_travel_with_one_task_and_300_are_an_error() {
    let arrays = |count: u32| -> Vec<_> {
        (0..count).map(|i| SharedArray::from_slice([], &[i]).unwrap()).collect()
    };
    let pool = pool(2);
    for reversed in pool.map(&REVERSE, [arrays(200), arrays(3), arrays(200)]).unwrap() {
        for (i, array) in (0..).zip(reversed.iter().rev()) {
            assert_eq!(array.as_slice::<u32>().unwrap(), [i]);
        }
    }
    let error = task_error(pool.map(&REVERSE, [arrays(2), arrays(300)]));
    assert_eq!(error.index, 1);
    assert!(error.to_string().contains("300 arrays and tables at once: at most 253"), "{error}");
}

fn numbers_come_back_to_the_bit() {
    let numbers = [f64::NAN, f64::INFINITY, -0.0, 0.1, f64::MIN_POSITIVE / 3.0].map(f64::to_bits);
    let numbers = numbers.into_iter().chain([0x7ff8_0000_0000_beef, 0xfff0_0000_0000_0001]);
    for bits in numbers {
        let found = pool(1).map(&BITS, [(bits, f64::from_bits(bits))]).unwrap();
        assert_eq!((found[0].0.to_bits(), found[0].1), (bits, bits));
    }
}

/// Leaves a mark for each run, and while it runs tells which it is in a file of its process.
fn marked((folder, n): (PathBuf, u64)) -> io::Result<u64> {
    let mark = |run: &u64| {
        let name = folder.join(format!("{n}.{run}"));
        OpenOptions::new().create_new(true).write(true).open(name).is_ok()
    };
    let run = (0..).find(mark).unwrap();
    let now = folder.join(format!("process.{}", std::process::id()));
    fs::write(&now, format!("{n} {run} begun"))?;
    spin(500);
    match (run, n % 23) {
        (0, 5) => perform(Act::Segfault),
        (0, 11) => perform(Act::Exit),
        _ => spin(1000),
    }
    fs::write(&now, "over")?;
    Ok(n * 3)
}

/// Stops a process, and kills it if it runs a task for the first time. Says whether it did.
fn kill_in_its_first_run(folder: &Path, process: u32, signal: Signal) -> bool {
    if kill_process(pid(process), Signal::STOP).is_err() {
        return false;
    }
    wait_until("the stop", || {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        stat.rsplit(')').next().is_none_or(|rest| !rest.trim_start().starts_with(['R', 'S', 'D']))
    });
    let now = fs::read_to_string(folder.join(format!("process.{process}"))).unwrap_or_default();
    let killed = now.ends_with(" 0 begun") && kill_process(pid(process), signal).is_ok();
    let _ = kill_process(pid(process), Signal::CONT);
    killed
}

fn killing_workers_changes_no_result_and_runs_no_task_thrice() {
    const TASKS: u64 = 500;
    const KILLS: u64 = 40;
    let folder = tempfile::tempdir().unwrap();
    let pool = pool(4);
    let (over, kills) = (AtomicBool::new(false), AtomicU64::new(0));
    let done = std::thread::scope(|scope| {
        let _ending = Ending(&over);
        scope.spawn(|| {
            let mut random: Draws = Sample { index: 0, epoch: 0, seed: 5, occurrence: 0 }.draws(0);
            while !over.load(Ordering::Relaxed) {
                let pids = pool.pids();
                if !pids.is_empty() {
                    let process = pids[random.below(pids.len() as u64) as usize];
                    let signal = [Signal::KILL, Signal::SEGV][random.below(2) as usize];
                    let killed = kill_in_its_first_run(folder.path(), process, signal);
                    kills.fetch_add(u64::from(killed), Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_millis(1 + random.below(4)));
            }
        });
        // More tasks where a busy machine has let too few be killed.
        let enough = || kills.load(Ordering::Relaxed) >= KILLS;
        let args = (0..).map(|n| (folder.path().to_owned(), n));
        let args = args.take_while(|(_, n)| *n < TASKS || *n < 100 * TASKS && !enough());
        let mut done = 0;
        for (n, result) in (0..).zip(pool.imap(&MARKED, args).unwrap()) {
            assert_eq!(result.unwrap(), n * 3);
            done += 1;
        }
        done
    });
    let kills = kills.into_inner();
    assert!(done >= TASKS && kills >= KILLS, "{done} tasks, {kills} kills");
    let ran = |n: u64, run: u64| folder.path().join(format!("{n}.{run}")).exists();
    let twice = (0..done).filter(|&n| ran(n, 1)).count() as u64;
    let own = (0..done).filter(|n| [5, 11].contains(&(n % 23))).count() as u64;
    assert!(twice >= own.max(kills) && twice <= own + kills, "{twice} of {own} and {kills}");
    assert!((0..done).all(|n| ran(n, 0) && !ran(n, 2)));
    wait_until("all restarts", || pool.restarts() >= twice);
}

fn a_task_that_always_kills_is_an_error_that_names_it() {
    let pool = pool(2);
    for (act, how) in [(Act::Segfault, "SIGSEGV"), (Act::Abort, "SIGABRT"), (Act::Exit, "code 9")] {
        let before = pool.restarts();
        let args = (0..20).map(|n| (n, (n == 13).then_some(act)));
        let error = task_error(pool.map(&ACT, args));
        assert_eq!((&*error.task, error.index), ("act", 13));
        assert!(matches!(&error.cause, TaskCause::Died { runs: 2, last } if last.contains(how)));
        let text = error.to_string();
        assert!(text.contains("\"act\"") && text.contains("13") && text.contains(how), "{text}");
        wait_until("both restarts", || pool.restarts() == before + 2);
        squares(&pool, 20, |_| 0);
    }
}

fn errors_and_panics_of_tasks_are_told() {
    let pool = pool(2);
    let args = [None, Some(Act::Panic), None, Some(Act::Fail), None];
    let results = pool.imap(&ACT, (0..).zip(args)).unwrap().collect::<Vec<_>>();
    let results = results.into_iter().map(|result| match result {
        Ok(n) => Ok(n),
        Err(PoolError::Task(error)) => Err((error.index, error.cause)),
        Err(other) => panic!("{other}"),
    });
    let expected = [
        Ok(0),
        Err((1, TaskCause::Panicked("told to panic".into()))),
        Ok(2),
        Err((3, TaskCause::Failed("3 is broken".into()))),
        Ok(4),
    ];
    assert!(results.eq(expected));
    assert_eq!(pool.restarts(), 0, "neither takes a process with it");
}

fn a_task_that_never_returns_is_an_error_after_the_timeout() {
    let pool = ProcessPool::builder(2).timeout(Duration::from_millis(700)).build().unwrap();
    let args = (0..40).map(|n| (n, (n == 7).then_some(Act::Hang)));
    let error = task_error(pool.map(&ACT, args));
    assert_eq!(error.index, 7);
    assert!(error.to_string().contains("longer than the timeout"), "{error}");
    squares(&pool, 20, |_| 0);
}

fn a_stopped_process_is_replaced() {
    let pool = ProcessPool::builder(2).timeout(Duration::from_secs(2)).build().unwrap();
    for process in all_pids(&pool, 2) {
        kill_process(pid(process), Signal::STOP).unwrap();
    }
    squares(&pool, 40, |_| 100);
    assert!(pool.restarts() >= 1);
}

fn killing_an_idle_pools_processes_does_no_harm() {
    let pool = pool(2);
    for deaths in 1..=40 {
        // One that has answered is ready: those that die before are a reason to give up.
        let process = pool.map(&PROCESS, [0]).unwrap()[0];
        kill_process(pid(process), Signal::KILL).unwrap();
        wait_until("its replacement", || pool.restarts() == deaths);
    }
    squares(&pool, 100, |_| 0);
}

fn the_first_failure_is_told_and_ends_the_taking_of_arguments() {
    let taken = AtomicU64::new(0);
    let args = (0..1_000_000).map(|n| {
        taken.fetch_add(1, Ordering::Relaxed);
        (n, [20, 22].contains(&n).then_some(Act::Fail))
    });
    let error = task_error(pool(2).map(&ACT, args));
    assert_eq!(
        (error.index, error.to_string()),
        (20, "task \"act\", argument 20: 20 is broken".into())
    );
    assert!(taken.load(Ordering::Relaxed) < 100, "{taken:?}");
}

fn arguments_are_taken_as_results_are() {
    let pool = pool(2);
    let taken = AtomicU64::new(0);
    let args = (0..).map(|n| {
        taken.fetch_add(1, Ordering::Relaxed);
        (n, 0)
    });
    let mut results = pool.imap(&SQUARE, args).unwrap();
    assert_eq!(taken.load(Ordering::Relaxed), 0);
    for n in 0..200 {
        assert_eq!(results.next().unwrap().unwrap(), n * n);
        let ahead = taken.load(Ordering::Relaxed) - n as u64;
        assert!((1..=32).contains(&ahead), "{ahead}");
    }
    drop(results);
    squares(&pool, 10, |_| 0);
}

fn threads_share_a_pool() {
    let pool = pool(3);
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let pool = &pool;
            scope.spawn(move || (0..5).for_each(|_| squares(pool, 40 * thread, |n| n as u64 % 50)));
        }
        // And one call within another.
        for (n, result) in (0..).zip(pool.imap(&SQUARE, (0..40).map(|n| (n, 10))).unwrap()) {
            assert_eq!(result.unwrap(), n * n);
            squares(&pool, 5, |_| 10);
        }
    });
    assert_eq!(pool.restarts(), 0);
}

fn pools_and_loaders_work_side_by_side() {
    let expected = undisturbed(noise(200), 1);
    let (a, b) = (pool(2), pool(1));
    let loader = noise(200).loader().workers(Workers::processes(2)).build().unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    for expected in &expected[0] {
        assert_eq!(crate::data::hash(&epoch.next().unwrap().unwrap()), *expected);
        squares(&a, 10, |_| 10);
        squares(&b, 10, |_| 10);
    }
    let pids = [a.pids(), b.pids(), loader.worker_pids()].concat();
    let distinct: HashSet<_> = pids.iter().collect();
    assert_eq!(distinct.len(), pids.len());
    drop(a);
    squares(&b, 10, |_| 10);
}

fn an_idle_process_keeps_no_array_alive() {
    let pool = pool(2);
    let table = SharedArray::from_slice([2, 1], &[1.0, 3.0]).unwrap();
    assert_eq!(pool.map(&MEAN, (0..2).map(|row| (table.clone(), row))).unwrap(), [1.0, 3.0]);
    let file = inode(&table).to_string();
    drop(table);
    wait_until("the end of its maps", || {
        pool.pids().iter().all(|process| {
            let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
            !maps.lines().any(|line| line.split_whitespace().nth(4) == Some(&*file))
        })
    });
}

fn a_report_tells_arrays_from_what_a_process_owns() {
    let pool = pool(2);
    let table = touched(&[2, 1 << 20], 1.0);
    let calls = (0..64).map(|i| (table.clone(), i % 2));
    let mut results = pool.imap(&MEAN, calls).unwrap();
    results.by_ref().take(60).for_each(|result| assert_eq!(result.unwrap(), 1.0));
    let report = pool.memory_report();
    let roles: Vec<_> = report.processes.iter().map(|process| process.role).collect();
    let worker = ProcessRole::Worker;
    assert_eq!(roles, [ProcessRole::Program, ProcessRole::ForkServer, worker, worker]);
    let tables = report.processes[2..].iter().map(|process| process.table.rss);
    assert!(tables.sum::<u64>() >= 8 << 20, "{report}");
    assert!(report.processes[2..].iter().all(|process| process.total.uss < 5 << 20), "{report}");
}

fn another_program_opens_an_array_by_its_handle_and_keeps_it() {
    let mut owner = Victim::start("array_owner");
    let mut line = String::new();
    owner.stdout().read_line(&mut line).unwrap();
    let handle: ArrayHandle = serde_json::from_str(&line).unwrap();
    let array = handle.open().unwrap();
    assert_eq!(array.rows::<i32>(1..3).unwrap(), [2, 3, 4, 5]);
    owner.kill(Signal::KILL);
    assert_eq!(array.as_slice::<i32>().unwrap(), [0, 1, 2, 3, 4, 5]);
    // Somebody else may have swept before.
    sweep_segments().unwrap();
    assert!(matches!(handle.open(), Err(ArrayError::Gone { .. })));
    assert_eq!(array.row::<i32>(2).unwrap(), [4, 5]);
}

/// A program that has an array with a name, and tells how it is opened.
pub(crate) fn array_owner() {
    let array =
        SharedArray::builder([3, 2]).shareable(true).from_slice(&[0, 1, 2, 3, 4, 5]).unwrap();
    println!("{}", serde_json::to_string(&array.handle().unwrap()).unwrap());
    io::stdout().flush().unwrap();
    loop {
        std::thread::park();
    }
}

fn dropping_a_pool_amid_tasks_ends_its_processes() {
    let idle = pool(3);
    let pids = all_pids(&idle, 3);
    drop(idle);
    gone(&pids);
    let stuck = pool(3);
    let pids = all_pids(&stuck, 3);
    // The first result is there when the others are being made.
    let args = (0..).map(|n| (n, (n > 0).then_some(Act::Hang)));
    assert_eq!(stuck.imap(&ACT, args).unwrap().next().unwrap().unwrap(), 0);
    drop(stuck);
    gone(&pids);
}

fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn fifty_pools_leave_no_descriptor_and_no_process() {
    Victim::start("pools").succeeds();
}

pub(crate) fn pools() {
    loader_core::init_with(crate::data::registry()).unwrap();
    let table = SharedArray::from_slice([2, 1], &[1.0, 3.0]).unwrap();
    let mut before = None;
    for round in 0..50 {
        let pool = ProcessPool::builder(1 + round % 4).shared(&table).build().unwrap();
        assert_eq!(pool.map(&MEAN, (0..2).map(|row| (table.clone(), row))).unwrap(), [1.0, 3.0]);
        let results = pool.map(&REVERSE, (0..8).map(|_| vec![table.clone(); 3])).unwrap();
        drop(results);
        if round % 3 == 0 {
            task_error(pool.map(&ACT, [(1, Some(Act::Exit))]));
        }
        drop(pool);
        assert_eq!(open_files(), *before.get_or_insert_with(open_files), "round {round}");
    }
    // This one and the fork server.
    wait_until("the end of all processes", || victims::processes("pools") == 2);
}

fn more_arrays_than_files_may_be_open_are_an_error() {
    Victim::start("pool_frugal").succeeds();
}

pub(crate) fn pool_frugal() {
    let limit = rustix::process::Rlimit { current: Some(64), maximum: Some(64) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    loader_core::init_with(crate::data::registry()).unwrap();
    let pool = pool(2);
    let arrays: Vec<_> = (0..40u32).map(|i| SharedArray::from_slice([], &[i]).unwrap()).collect();
    // They fit into the process once: not beside those that come back.
    let error = task_error(pool.map(&REVERSE, [arrays[..2].to_vec(), arrays.clone()]));
    assert_eq!(error.index, 1);
    assert!(matches!(&error.cause, TaskCause::Result(why) if why.contains("ulimit -n")), "{error}");
    let few = pool.map(&REVERSE, (0..50).map(|i| arrays[i % 20..][..5].to_vec())).unwrap_err();
    // Fifty results of five are too many to have at once.
    assert!(few.to_string().contains("ulimit -n") || few.to_string().contains("open files"));
    let one = arrays[..1].to_vec();
    drop(arrays);
    for result in pool.imap(&REVERSE, (0..50).map(|_| one.clone())).unwrap() {
        assert_eq!(result.unwrap()[0].as_slice::<u32>().unwrap(), [0]);
    }
    assert_eq!(pool.restarts(), 0);
}

/// A program with a pool that is at work, which tells its processes.
pub(crate) fn pool_endless() {
    loader_core::init_with(crate::data::registry()).unwrap();
    let pool = pool(4);
    println!("{:?}", all_pids(&pool, 4));
    io::stdout().flush().unwrap();
    pool.imap(&SQUARE, (0..).map(|n| (n % 1000, 500))).unwrap().for_each(|n| assert!(n.is_ok()));
}

fn ends_of_the_program_end_a_pools_processes() {
    for signal in [Signal::KILL, Signal::INT, Signal::TERM] {
        let mut victim = Victim::start("pool_endless");
        let mut line = String::new();
        victim.stdout().read_line(&mut line).unwrap();
        let pids = line.trim().trim_matches(['[', ']']).split(", ");
        let pids: Vec<u32> = pids.map(|pid| pid.parse().unwrap()).collect();
        assert_eq!(pids.len(), 4);
        victim.kill(signal);
        gone(&pids);
    }
}

fn a_killed_fork_server_ends_a_pool_with_an_error() {
    Victim::start("pool_serverless").succeeds();
}

pub(crate) fn pool_serverless() {
    loader_core::init_with(crate::data::registry()).unwrap();
    let pool = pool(2);
    let pids = all_pids(&pool, 2);
    let report = pool.memory_report();
    let server = report.processes.iter().find(|p| p.role == ProcessRole::ForkServer).unwrap().pid;
    let mut results = pool.imap(&SQUARE, (0..).map(|n| (n % 1000, 100))).unwrap();
    results.next().unwrap().unwrap();
    kill_process(pid(server), Signal::KILL).unwrap();
    match results.find_map(Result::err) {
        Some(PoolError::Workers(error @ WorkerError::ServerGone { .. })) => {
            assert!(error.to_string().contains("SIGKILL"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert!(results.next().is_none(), "that was the last item");
    gone(&pids);
    let again = pool.map(&SQUARE, [(1, 0)]).unwrap_err();
    assert!(matches!(again, PoolError::Workers(_)), "{again}");
    let error = ProcessPool::new(1).unwrap_err();
    assert!(error.to_string().contains("restart the program"), "{error}");
}

fn without_init_a_pool_is_refused() {
    Victim::start("pool_without_init").succeeds();
}

pub(crate) fn pool_without_init() {
    let error = ProcessPool::new(2).unwrap_err();
    let is_refused = matches!(error, PoolError::Start(StartWorkersError::NotInitialized));
    assert!(is_refused && error.to_string().contains("first line of main"), "{error}");
}

fn an_unregistered_task_is_refused_by_name() {
    let pool = pool(1);
    let error = pool.map(&UNKNOWN, [()]).unwrap_err();
    assert!(matches!(&error, PoolError::NotRegistered { name, .. } if name == "unknown"));
    let text = error.to_string();
    assert!(text.contains("Registry::task") && text.contains("\"echo\""), "{text}");
}

fn two_tasks_of_one_name_are_refused() {
    Victim::start("doubled").succeeds();
}

pub(crate) fn doubled() {
    const OTHER: Task<u8, u8, String> = Task::new("echo", Ok);
    let error = loader_core::init_with(crate::data::registry().task(OTHER)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "two tasks are registered as \"echo\": give each a name of its own"
    );
    loader_core::init_with(crate::data::registry()).unwrap();
    squares(&pool(1), 10, |_| 0);
}

/// More than messages fit into a socket.
fn hundreds_of_processes_start_and_die_at_once() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let processes = limit.current.map_or(700, |files| 700.min(files as usize / 2));
    let pool = pool(processes);
    let mut pids = HashSet::new();
    wait_until("an answer of each", || {
        pids.extend(pool.map(&PROCESS, vec![20; processes]).unwrap());
        pids.len() == processes
    });
    for &process in &pids {
        kill_process(pid(process), Signal::KILL).unwrap();
    }
    wait_until("all restarts", || pool.restarts() == processes as u64);
    squares(&pool, 1000, |_| 0);
    let pids = all_pids(&pool, processes);
    drop(pool);
    gone(&pids);
}

fn a_pool_inside_a_task_is_refused() {
    let error = task_error(pool(1).map(&NESTED, [()]));
    assert!(error.to_string().contains("worker processes need loader_core::init()"), "{error}");
}

fn pools_of_no_process_or_no_time_are_refused() {
    for processes in [0, 5000, usize::MAX] {
        let error = ProcessPool::new(processes).unwrap_err();
        assert!(matches!(error, PoolError::Processes { .. }), "{error}");
    }
    let error = ProcessPool::builder(1).timeout(Duration::ZERO).build().unwrap_err();
    assert!(matches!(error, PoolError::NoTime), "{error}");
}
