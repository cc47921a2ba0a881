//! The stopwatch of a thread that makes samples: whichever code makes one says here which step begins.
//! Of the thread and not handed around, so that a pipeline deep inside a dataset of somebody's own
//! counts too. In other threads nothing is timed.

use std::cell::RefCell;

use crate::shm::{Laps, Step, nanos, now};

thread_local! {
    static CLOCK: RefCell<Clock> = const { RefCell::new(Clock::STOPPED) };
    /// The laps of the last sample one by one, each with its end, where they are kept.
    static LAPS: RefCell<Vec<(u8, u64)>> = const { RefCell::new(Vec::new()) };
}

struct Clock {
    runs: bool,
    keeps_laps: bool,
    step: Step,
    laps: Laps,
}

impl Clock {
    const STOPPED: Self =
        Self { runs: false, keeps_laps: false, step: Step::Load, laps: Laps::begun(0) };

    fn enter(&mut self, step: Step) {
        let now = nanos(now());
        self.laps.times[self.step as usize] += now.saturating_sub(self.laps.end);
        self.laps.entered |= step.bit();
        self.laps.end = now;
        if self.keeps_laps {
            LAPS.with_borrow_mut(|laps| laps.push((self.step as u8, now)));
        }
        self.step = step;
    }
}

/// Makes a sample that was begun at that time of the monotonic clock, and tells what it took.
/// Where laps are kept, [`last_laps`] has them.
pub(crate) fn timed<T>(since: u64, keeps_laps: bool, make: impl FnOnce() -> T) -> (T, Laps) {
    if keeps_laps {
        LAPS.with_borrow_mut(Vec::clear);
    }
    CLOCK.with_borrow_mut(|clock| {
        *clock = Clock { runs: true, keeps_laps, step: Step::Load, laps: Laps::begun(since) };
    });
    let made = make();
    let laps = CLOCK.with_borrow_mut(|clock| {
        clock.enter(Step::Load);
        clock.runs = false;
        clock.laps
    });
    (made, laps)
}

/// Does something with the last sample's laps: the steps one after the other, each with its end.
pub(crate) fn last_laps<T>(use_them: impl FnOnce(&[(u8, u64)]) -> T) -> T {
    LAPS.with_borrow(|laps| use_them(laps))
}

/// From now on time counts as that step's.
pub(crate) fn enter(step: Step) {
    CLOCK.with_borrow_mut(|clock| {
        if clock.runs {
            clock.enter(step);
        }
    });
}

/// That many bytes were read.
pub(crate) fn count_read(bytes: u64) {
    CLOCK.with_borrow_mut(|clock| {
        if clock.runs {
            clock.laps.bytes += bytes;
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
        let ((), laps) = timed(since, true, || {
            spin(1000);
            enter(Step::Read);
            spin(2000);
            count_read(7);
            enter(Step::Decode);
            spin(3000);
            enter(Step::Read);
            spin(1000);
        });
        assert_eq!(laps.bytes, 7);
        assert_eq!(laps.times.iter().sum::<u64>(), laps.end - since);
        assert_eq!(laps.entered, Step::Load.bit() | Step::Read.bit() | Step::Decode.bit());
        assert!(laps.times[..3].iter().zip([1000, 3000, 3000]).all(|(&time, least)| time >= least));
        assert_eq!(laps.times[3..], [0, 0]);
        let steps = [Step::Load, Step::Read, Step::Decode, Step::Read].map(|step| step as u8);
        assert!(last_laps(|kept| kept.iter().map(|lap| lap.0).eq(steps)));
        assert_eq!(last_laps(|kept| kept[3].1), laps.end);
    }

    #[test]
    fn outside_of_a_sample_nothing_is_timed() {
        enter(Step::Read);
        count_read(5);
        let (_, laps) = timed(nanos(now()), false, || ());
        assert_eq!((laps.bytes, laps.entered), (0, Step::Load.bit()));
    }
}
