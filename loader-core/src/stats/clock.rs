//! The stopwatch of a thread that makes samples: whichever code makes one says here which step begins.
//! Of the thread and not handed around, so that a pipeline deep inside a dataset of somebody's own
//! counts too. In other threads nothing is timed.

use std::cell::RefCell;
use std::mem;

use crate::shm::{Laps, STEPS, Step, nanos, now};

thread_local! {
    static CLOCK: RefCell<Option<Running>> = const { RefCell::new(None) };
}

struct Running {
    step: Step,
    laps: Laps,
}

impl Running {
    fn enter(&mut self, step: Step) -> Step {
        let now = nanos(now());
        self.laps.times[self.step as usize] += now.saturating_sub(self.laps.end);
        self.laps.entered[step as usize] = true;
        self.laps.end = now;
        mem::replace(&mut self.step, step)
    }
}

/// Makes a sample that was begun at that time of the monotonic clock, and tells what it took.
pub(crate) fn timed<T>(since: u64, make: impl FnOnce() -> T) -> (T, Laps) {
    let mut laps = Laps { times: [0; STEPS], entered: [false; STEPS], bytes: 0, end: since };
    laps.entered[Step::Load as usize] = true;
    CLOCK.set(Some(Running { step: Step::Load, laps }));
    let made = make();
    if let Some(mut running) = CLOCK.take() {
        running.enter(Step::Load);
        laps = running.laps;
    }
    (made, laps)
}

/// From now on time counts as that step's. Gives the step before.
pub(crate) fn enter(step: Step) -> Step {
    CLOCK.with_borrow_mut(|clock| match clock {
        Some(running) => running.enter(step),
        None => Step::Load,
    })
}

/// That many bytes were read.
pub(crate) fn count_read(bytes: u64) {
    CLOCK.with_borrow_mut(|clock| {
        if let Some(running) = clock {
            running.laps.bytes += bytes;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spin(nanoseconds: u64) {
        let begun = nanos(now());
        while nanos(now()) - begun < nanoseconds {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn every_moment_counts_for_one_step() {
        let since = nanos(now());
        let (before, laps) = timed(since, || {
            spin(1000);
            enter(Step::Read);
            spin(2000);
            count_read(7);
            let before = enter(Step::Decode);
            spin(3000);
            enter(before);
            spin(1000);
            before
        });
        assert_eq!((before, laps.bytes), (Step::Read, 7));
        assert_eq!(laps.times.iter().sum::<u64>(), laps.end - since);
        assert_eq!(laps.entered, [true, true, true, false, false]);
        assert!(laps.times[..3].iter().zip([1000, 3000, 3000]).all(|(&time, least)| time >= least));
        assert_eq!(laps.times[3..], [0, 0]);
    }

    #[test]
    fn outside_of_a_sample_nothing_is_timed() {
        assert_eq!((enter(Step::Read), enter(Step::Write)), (Step::Load, Step::Load));
        count_read(5);
        let (_, laps) = timed(nanos(now()), || ());
        assert_eq!((laps.bytes, laps.entered), (0, [true, false, false, false, false]));
    }
}
