//! What workers and loop did last, one record a sample: a ring for each in a segment of its own, which
//! its owner alone writes and anybody may read.
//!
//! ```text
//! ring 0 | ring 1 | ...      one for each worker, the last one for the loop
//! ring: records written so far | record | record | ...
//! ```
//!
//! A ring's owner overwrites the oldest record without asking. Who reads looks at the count again
//! afterwards, and leaves out what may have been overwritten.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use super::board::Words;
use super::geometry::{LINE, MAX_WORKERS};
use super::segment::{MemoryError, Segment};
use super::sync::{Ordering, fence};

/// Records a ring has at most.
pub(crate) const MAX_RECORDS: usize = 1 << 20;
/// Laps of a record; the last one takes in what would be further ones.
pub(crate) const MAX_LAPS: usize = 12;
/// Of a record: what it is of, when it began, a word that its kind gives a meaning, the epoch; then
/// laps.
const WORDS: usize = 4 + MAX_LAPS;

/// What was done from some time on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// A number of the writer's.
    pub(crate) kind: u32,
    /// In nanoseconds of the monotonic clock.
    pub(crate) begin: u64,
    /// Of a sample or batch.
    pub(crate) number: u64,
    pub(crate) epoch: u64,
    /// What was done one after the other, each with its end.
    pub(crate) laps: Vec<(u8, u64)>,
}

#[derive(Debug)]
pub(crate) struct Recorder {
    segment: Segment,
    records: usize,
    rings: usize,
}

impl Recorder {
    /// Rings of that many records for the workers and for the loop.
    pub(crate) fn create(records: usize, workers: usize) -> Result<Self, MemoryError> {
        let len = Self::len(records, workers);
        let segment = Segment::create("loader-trace", len)?;
        segment.reserve(0..len)?;
        Ok(Self { segment, records, rings: workers + 1 })
    }

    /// The same rings in another process.
    pub(crate) fn attach(fd: OwnedFd, records: usize, workers: usize) -> io::Result<Self> {
        let segment = Segment::attach(fd, Self::len(records, workers))?;
        Ok(Self { segment, records, rings: workers + 1 })
    }

    pub(crate) fn len(records: usize, workers: usize) -> usize {
        assert!((1..=MAX_RECORDS).contains(&records), "{records} records");
        assert!((1..=MAX_WORKERS).contains(&workers), "{workers} workers");
        Self::ring_bytes(records) * (workers + 1)
    }

    /// With room for one more, which may be half written at any time.
    const fn ring_bytes(records: usize) -> usize {
        2 * LINE + 8 * WORDS * (records + 1)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.segment.fd()
    }

    pub(crate) fn records(&self) -> usize {
        self.records
    }

    /// The ring of the loop; those before it are the workers'.
    pub(crate) fn loop_ring(&self) -> usize {
        self.rings - 1
    }

    fn ring_at(&self, ring: usize) -> usize {
        assert!(ring < self.rings, "ring {ring} of {}", self.rings);
        ring * Self::ring_bytes(self.records)
    }

    /// Adds a record. The caller is the ring's owner.
    pub(crate) fn add(
        &self,
        ring: usize,
        kind: u32,
        (begin, number, epoch): (u64, u64, u64),
        laps: impl IntoIterator<Item = (u8, u64)>,
    ) {
        let count = self.segment.u64(self.ring_at(ring));
        let written = count.load(Ordering::Relaxed);
        // Release: who reads a word of what follows sees, after its fence, how many were written
        // before.
        fence(Ordering::Release);
        let word = |n: usize| self.word(ring, written, n);
        let mut last = 0;
        for (n, (what, end)) in laps.into_iter().enumerate() {
            last = n.min(MAX_LAPS - 1);
            // What does not fit goes on as what came before, until the end of all.
            let what = if n == last { what } else { word(4 + last).load(Ordering::Relaxed) as u8 };
            word(4 + last).store(end << 8 | u64::from(what), Ordering::Relaxed);
        }
        word(0).store(u64::from(kind) << 32 | (last as u64 + 1), Ordering::Relaxed);
        word(1).store(begin, Ordering::Relaxed);
        word(2).store(number, Ordering::Relaxed);
        word(3).store(epoch, Ordering::Relaxed);
        // Release: pairs with `read`, which sees the record whole.
        count.store(written + 1, Ordering::Release);
    }

    /// The records that a ring still has, oldest first.
    pub(crate) fn read(&self, ring: usize) -> Vec<Record> {
        let count = self.segment.u64(self.ring_at(ring));
        let records = self.records as u64;
        let written = count.load(Ordering::Acquire);
        let first = written.saturating_sub(records);
        let mut read: Vec<_> = (first..written).map(|n| self.record(ring, n)).collect();
        // Acquire: pairs with the fence in `add`.
        fence(Ordering::Acquire);
        let now = count.load(Ordering::Relaxed);
        let spoiled = now.saturating_sub(records).saturating_sub(first);
        read.drain(..read.len().min(spoiled as usize));
        read
    }

    fn record(&self, ring: usize, n: u64) -> Record {
        let word = |at| self.word(ring, n, at).load(Ordering::Relaxed);
        let laps = (word(0) as u32 as usize).min(MAX_LAPS);
        Record {
            kind: (word(0) >> 32) as u32,
            begin: word(1),
            number: word(2),
            epoch: word(3),
            laps: (0..laps).map(|lap| (word(4 + lap) as u8, word(4 + lap) >> 8)).collect(),
        }
    }

    fn word(&self, ring: usize, record: u64, word: usize) -> &super::sync::AtomicU64 {
        let at = 2 * LINE + 8 * WORDS * (record % (self.records as u64 + 1)) as usize;
        self.segment.u64(self.ring_at(ring) + at + 8 * word)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    fn numbers(recorder: &Recorder, ring: usize) -> Vec<u64> {
        recorder.read(ring).into_iter().map(|record| record.number).collect()
    }

    #[test]
    fn a_ring_keeps_the_last_records_as_they_were_written() {
        let recorder = Recorder::create(4, 2).unwrap();
        assert!(recorder.read(0).is_empty());
        recorder.add(1, 7, (100, 5, 3), [(2, 110), (4, 130)]);
        let expected =
            Record { kind: 7, begin: 100, number: 5, epoch: 3, laps: vec![(2, 110), (4, 130)] };
        assert_eq!(recorder.read(1), [expected]);
        for n in 0..10 {
            recorder.add(0, 0, (n, n, 0), [(0, n)]);
        }
        assert_eq!(numbers(&recorder, 0), [6, 7, 8, 9]);
        assert_eq!((numbers(&recorder, 1).len(), numbers(&recorder, 2).len()), (1, 0));
    }

    #[test]
    fn laps_that_do_not_fit_become_a_longer_last_one() {
        let recorder = Recorder::create(2, 1).unwrap();
        recorder.add(0, 0, (0, 0, 0), (0..30).map(|n| (n, u64::from(n) * 10)));
        let laps = recorder.read(0).remove(0).laps;
        assert_eq!(
            (laps.len(), laps[MAX_LAPS - 2], laps[MAX_LAPS - 1]),
            (MAX_LAPS, (10, 100), (11, 290))
        );
    }

    #[test]
    fn what_is_read_while_it_is_written_is_whole() {
        let recorder = Recorder::create(8, 1).unwrap();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for n in 1.. {
                    recorder.add(0, n as u32, (n, n, n), [(0, n), (1, n)]);
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
            let mut seen = 0;
            while seen < 20_000 {
                let read = recorder.read(0);
                for record in &read {
                    let n = record.number;
                    let laps = vec![(0, n), (1, n)];
                    assert_eq!(
                        *record,
                        Record { kind: n as u32, begin: n, number: n, epoch: n, laps }
                    );
                }
                assert!(read.is_sorted_by_key(|record| record.number));
                seen += read.len();
            }
            over.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn another_process_finds_the_rings_by_their_descriptor() {
        let recorder = Recorder::create(3, 2).unwrap();
        let fd = recorder.fd().try_clone_to_owned().unwrap();
        let theirs = Recorder::attach(fd, 3, 2).unwrap();
        theirs.add(1, 0, (1, 42, 0), [(1, 2)]);
        assert_eq!(numbers(&recorder, 1), [42]);
        let fd = recorder.fd().try_clone_to_owned().unwrap();
        assert!(Recorder::attach(fd, 3, 200).is_err(), "too short");
    }
}
