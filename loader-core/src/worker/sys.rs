//! The few system calls of processes and signals that have no safe form elsewhere.

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

/// Who came out of a fork.
pub(super) enum Forked {
    Parent(Pid),
    Child,
}

/// The number of threads of this process; an error where `/proc` doesn't tell.
pub(super) fn thread_count() -> io::Result<usize> {
    let tasks = std::fs::read_dir("/proc/self/task").map_err(|error| {
        io::Error::new(error.kind(), format!("/proc/self/task: {error} (is /proc mounted?)"))
    })?;
    Ok(tasks.count())
}

/// Forks a process that has one thread; the child never returns from what the caller does with it.
///
/// # Errors
/// Where the system refuses, or there is more than one thread: another one's locks, such as the
/// allocator's, would stay locked in the child for ever.
pub(super) fn fork() -> io::Result<Forked> {
    let threads = thread_count()?;
    if threads != 1 {
        return Err(io::Error::other(format!("a process with {threads} threads can't be forked")));
    }
    // SAFETY: with one thread, the child is a whole copy of the process: no lock is held by a thread
    // that it lacks.
    let pid = unsafe { libc::fork() };
    match pid {
        0 => Ok(Forked::Child),
        -1 => Err(io::Error::last_os_error()),
        pid => Pid::from_raw(pid)
            .map(Forked::Parent)
            .ok_or_else(|| io::Error::other("fork gave no process id")),
    }
}

/// Ends a forked process. What its parent has registered to run at its own exit, and what it has
/// written but not flushed, is the parent's business.
pub(super) fn exit(code: i32) -> ! {
    // SAFETY: ends the process; nothing can be unsound after it.
    unsafe { libc::_exit(code) }
}

/// Has the system kill this process when its parent dies. An error where that has happened already.
pub(super) fn die_with(parent: Pid) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() == Some(parent) { Ok(()) } else { Err(io::Error::other("the parent is gone")) }
}

/// Has a terminal accept what this process writes even where it stops processes that are not in its
/// foreground (`stty tostop`): a stopped worker would be replaced by one that is stopped too.
pub(super) fn may_write_to_terminal() {
    // SAFETY: ignoring a signal runs no code of ours.
    unsafe { libc::signal(libc::SIGTTOU, libc::SIG_IGN) };
}

fn child_signal() -> libc::sigset_t {
    // SAFETY: all zero bits is a valid value of this plain C struct, and `sigemptyset` and
    // `sigaddset` get a pointer to it and a signal that exists.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        set
    }
}

/// A descriptor that becomes readable when a child ends, stops or goes on.
pub(super) fn child_events() -> io::Result<OwnedFd> {
    let set = child_signal();
    // SAFETY: the set is initialised, and the old mask is not asked for.
    if unsafe { libc::sigprocmask(libc::SIG_BLOCK, &set, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the set is initialised; -1 asks for a new descriptor.
    let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Empties such a descriptor.
pub(super) fn drain(events: BorrowedFd<'_>) {
    let mut buffer = [0; 16 * size_of::<libc::signalfd_siginfo>()];
    while matches!(rustix::io::read(events, &mut buffer), Ok(n) if n > 0) {}
}

/// Undoes, in a child, what [`child_events`] did to the signal mask.
pub(super) fn unblock_child_events() {
    let set = child_signal();
    // SAFETY: as in `child_events`.
    unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, &set, ptr::null_mut()) };
}

/// Where the handler notes that a signal was sent by somebody else.
static SENT: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// Signals by which a process ends through its own fault.
pub(super) const CRASHES: [i32; 7] = [
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGSEGV,
    libc::SIGSYS,
];

/// Has this process die of crash signals at once. (Rust's own handlers ignore the first one that was
/// sent rather than caused.)
pub(super) fn die_of_crashes() {
    for signal in CRASHES {
        // SAFETY: the action is a zeroed plain C struct with the fields that `SA_SIGINFO` asks for;
        // the handler does nothing but what signal handlers may do (see there).
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_crash;
            action.sa_sigaction = handler as libc::sighandler_t;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESETHAND | libc::SA_ONSTACK;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(signal, &action, ptr::null_mut());
        }
    }
}

/// Has the word set to 1 before this process dies of a crash signal that another process sent: such
/// a death says nothing about the sample that was being made.
pub(super) fn note_sent_signals(word: &'static AtomicU32) {
    SENT.store(ptr::from_ref(word).cast_mut(), Ordering::Release);
}

extern "C" fn on_crash(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY:
    // - With `SA_SIGINFO` the system passes a valid `info`, in which codes up to 0 tell that a
    //   process sent the signal, and then which one.
    // - The word is null or lives for ever (`note_sent_signals`).
    // - Everything here may be called in a signal handler. `SA_RESETHAND` has put the default
    //   action back, so the signal raised ends the process when this returns.
    unsafe {
        let sent = (*info).si_code <= 0 && (*info).si_pid() != getpid().as_raw_pid();
        if sent && let Some(word) = SENT.load(Ordering::Acquire).as_ref() {
            word.store(1, Ordering::Release);
        }
        libc::raise(signal);
    }
}

/// The usual name of a signal.
pub(super) fn signal_name(signal: i32) -> String {
    let known = [
        (libc::SIGHUP, "SIGHUP"),
        (libc::SIGINT, "SIGINT"),
        (libc::SIGQUIT, "SIGQUIT"),
        (libc::SIGILL, "SIGILL"),
        (libc::SIGTRAP, "SIGTRAP"),
        (libc::SIGABRT, "SIGABRT"),
        (libc::SIGBUS, "SIGBUS"),
        (libc::SIGFPE, "SIGFPE"),
        (libc::SIGKILL, "SIGKILL"),
        (libc::SIGSEGV, "SIGSEGV"),
        (libc::SIGPIPE, "SIGPIPE"),
        (libc::SIGTERM, "SIGTERM"),
        (libc::SIGXCPU, "SIGXCPU"),
        (libc::SIGXFSZ, "SIGXFSZ"),
        (libc::SIGSYS, "SIGSYS"),
    ];
    match known.iter().find(|(number, _)| *number == signal) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("signal {signal}"),
    }
}
