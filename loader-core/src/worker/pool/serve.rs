//! A process of a pool: takes one task after the other, and answers each.

use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, SendFlags};

use super::channel::{self, Packed, Received};
use super::error::TaskCause;
use super::task::Bench;
use crate::shared::parcel::{Kept, Parcel};
use crate::worker::fill::panic_message;
use crate::worker::registry::Registry;
use crate::worker::supervisor::wait;
use crate::worker::wire::MAX_BYTES;

/// How long arrays stay mapped for a next task.
const KEEP: Duration = Duration::from_secs(1);
/// Bytes of what a failed task says at most.
const WHY_BYTES: usize = 32 << 10;

/// Runs what comes, until the pool ends.
pub(in crate::worker) fn serve(channel: OwnedFd, shared: Vec<OwnedFd>, registry: &Registry) {
    let mut bench = Bench::new(shared);
    let mut buffer = vec![0; MAX_BYTES];
    loop {
        // A process with nothing to do keeps no memory from being freed.
        if !bench.kept.is_empty() && !wait([channel.as_fd()], Some(Instant::now() + KEEP))[0] {
            bench.kept = Kept::default();
        }
        let received = channel::receive(channel.as_fd(), &mut buffer, RecvFlags::empty());
        let Ok(Some(Received { number, what, content })) = received else { return };
        let result = content.map_err(TaskCause::Arguments).and_then(|(bytes, files)| {
            let unknown = || TaskCause::Arguments("no such task is registered".to_owned());
            let run = registry.run(what).ok_or_else(unknown)?;
            let run = AssertUnwindSafe(|| run.run(&mut bench, &bytes, files));
            catch_unwind(run)
                .unwrap_or_else(|panic| Err(TaskCause::Panicked(panic_message(&*panic).to_owned())))
        });
        let answer = result.and_then(|parcel| Packed::new(parcel).map_err(TaskCause::Result));
        let send =
            |packed: &Packed, what| packed.send(channel.as_fd(), number, what, SendFlags::empty());
        let sent = answer.and_then(|packed| {
            send(&packed, TaskCause::DONE).map_err(|e| TaskCause::Result(e.to_string()))
        });
        if let Err(cause) = sent {
            let (what, why) = cause.told();
            let bytes = why.as_bytes()[..why.floor_char_boundary(WHY_BYTES)].to_vec();
            let told = Packed::new(Parcel { bytes, held: Vec::new() });
            // Where that can't be sent either, the pool is gone.
            if !told.is_ok_and(|told| send(&told, what).is_ok()) {
                return;
            }
        }
    }
}
