//! The word of a sample's place in a batch: which sample it holds, and how far the making of it got.
//!
//! It outlives whoever makes the sample, so that the next worker goes on where a dead one stopped:
//! no failure is told twice, and a sample that kills its workers is known.
//!
//! ```text
//! bits  0..56  the index of the sample, once it is tried
//!      56..60  candidates that failed: 0 while the sample that the order names is tried
//!          60  the present candidate was being made when its worker died, once
//!          61  the present candidate is being made
//!          62  the sample only fills up a rank's share
//!          63  nothing has been made yet
//! ```

/// Indices are below this.
pub(crate) const MAX_INDEX: u64 = 1 << 56;

const ATTEMPT: u32 = 56;
const DIED: u64 = 1 << 60;
const STARTED: u64 = 1 << 61;
const PADDING: u64 = 1 << 62;
const EMPTY: u64 = 1 << 63;

/// One such word, taken apart by its methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(pub(crate) u64);

impl Place {
    /// Before any attempt.
    pub(crate) const EMPTY: Self = Self(EMPTY);

    pub(crate) fn index(self) -> u64 {
        self.0 & (MAX_INDEX - 1)
    }

    /// Candidates that failed.
    pub(crate) fn attempt(self) -> u32 {
        (self.0 >> ATTEMPT) as u32 & 0xf
    }

    pub(crate) fn is_padding(self) -> bool {
        self.0 & PADDING != 0
    }

    pub(crate) fn is_made(self) -> bool {
        self.0 & EMPTY == 0
    }

    /// A candidate is being made.
    pub(crate) fn is_started(self) -> bool {
        self.0 & STARTED != 0
    }

    /// The present candidate, of that index, is being made.
    #[must_use]
    pub(crate) fn started(self, index: u64) -> Self {
        Self((self.0 & !(MAX_INDEX - 1)) | index | STARTED | EMPTY)
    }

    /// The present candidate was made.
    #[must_use]
    pub(crate) fn made(self, padding: bool) -> Self {
        let kept = self.0 & !(EMPTY | STARTED | DIED);
        Self(kept | if padding { PADDING } else { 0 })
    }

    /// The present candidate failed; the next one is to be tried.
    #[must_use]
    pub(crate) fn failed(self) -> Self {
        let attempt = (u64::from(self.attempt()) + 1).min(0xf);
        Self(self.index() | attempt << ATTEMPT | EMPTY)
    }

    /// The worker died. `blamed` where the candidate may have been the reason; true then says that
    /// it was so for the second time, and the candidate counts as failed.
    #[must_use]
    pub(crate) fn died(self, blamed: bool) -> (Self, bool) {
        let stopped = Self(self.0 & !STARTED);
        match (self.is_started() && blamed, self.0 & DIED != 0) {
            (false, _) => (stopped, false),
            (true, false) => (Self(stopped.0 | DIED), false),
            (true, true) => (self.failed(), true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_leaves_its_outcome() {
        let top = MAX_INDEX - 1;
        let tried = Place::EMPTY.started(top);
        assert!((tried.index(), tried.attempt(), tried.is_made()) == (top, 0, false));
        let made = tried.made(true);
        assert!(made.is_made() && made.is_padding() && !made.is_started() && made.index() == top);
        let second = tried.failed().started(5);
        assert_eq!((second.index(), second.attempt()), (5, 1));
        assert_eq!((second.made(false).attempt(), second.made(false).is_padding()), (1, false));
    }

    #[test]
    fn the_second_death_of_one_candidate_is_its_failure() {
        let (once, failed) = Place::EMPTY.started(3).died(true);
        assert!(!failed && once.attempt() == 0);
        let (unblamed, failed) = once.started(3).died(false);
        assert!(!failed, "deaths from outside don't count");
        let (twice, failed) = unblamed.started(3).died(true);
        assert!(failed && twice.attempt() == 1 && twice.index() == 3);
        assert!(!twice.started(4).died(true).1, "the next candidate has deaths of its own");
        let (idle, failed) = Place::EMPTY.died(true);
        assert!(idle == Place::EMPTY && !failed);
    }

    #[test]
    fn attempts_do_not_overflow_into_other_bits() {
        let mut place = Place::EMPTY;
        for _ in 0..40 {
            place = place.started(1).failed();
        }
        assert_eq!((place.index(), place.attempt(), place.is_started()), (1, 15, false));
    }
}
