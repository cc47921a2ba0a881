//! Where the time and the memory go: what workers and loop have counted, as numbers, as a table and as
//! a verdict; and what the processes have in memory.

pub(crate) mod clock;
mod memory;
pub(crate) mod trace;
mod verdict;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::memory::{MemoryReport, MemoryUse, ProcessMemory, ProcessRole};
pub use self::verdict::{Bottleneck, Verdict};
use crate::shm::{Step, Tally};

/// What a loader has counted since it was built, or [between](Self::since) two moments.
///
/// Times of the workers are sums over all of them, whether they are threads or processes, and stay
/// counted when one dies. A sample counts when it is finished.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Stats {
    /// Time that has passed.
    pub elapsed: Duration,
    /// Time that the loop waited for batches.
    pub waited: Duration,
    /// Of that, for a batch to be dropped, all memory being held
    /// ([`wait_for_slot`](crate::DataLoaderBuilder::wait_for_slot)).
    pub waited_for_slot: Duration,
    /// Time that the loop spent on its batches: from getting one until it asked for the next.
    pub looped: Duration,
    /// Time during which a further batch would have been made ahead, had the loop not held the memory
    /// for it.
    pub short_of_slots: Duration,
    /// Batches that the loop got.
    pub batches: u64,
    /// Samples in them.
    pub samples: u64,
    /// Samples and substitutes that could not be made, in the batches that were looked at.
    pub failed: u64,
    /// Samples that were left out for it.
    pub skipped: u64,
    /// Samples that others took the place of.
    pub substituted: u64,

    /// Workers that there are: threads, of all processes.
    pub workers: u64,
    /// CPUs that this process may use, its workers included.
    pub cpus: u64,
    /// Finding the file, the label and the next piece of work; everything, where a dataset does not
    /// tell its stages by [`enter`](crate::SampleWriter::enter). Counts every sample tried, those of
    /// batches that the loop has not got yet included.
    pub load: StageStats,
    /// Reading files.
    pub read: StageStats,
    /// Decoding them.
    pub decode: StageStats,
    /// Resizing and changing pixels.
    pub transform: StageStats,
    /// Writing tensors: the crop's last cut, flip, normalisation, dtype and layout.
    pub write: StageStats,
    /// Bytes of the files that were read.
    pub bytes_read: u64,
    /// Time that workers waited for work, since as many batches were made as are wanted ahead, or as
    /// there is memory for.
    pub idle: Duration,
    /// CPU time of the workers, at most some milliseconds a worker behind.
    pub cpu: Duration,
    /// Time in samples that their worker died over.
    pub lost: Duration,
    /// Worker processes that died and were replaced.
    pub restarts: u64,
}

/// One stage of making samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageStats {
    /// Time of all workers in it.
    pub time: Duration,
    /// Samples that got to it.
    pub count: u64,
}

impl Stats {
    /// What was counted between an earlier moment of the same loader and this one, as for one epoch.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let time = |of: fn(&Self) -> Duration| of(self).saturating_sub(of(earlier));
        let count = |of: fn(&Self) -> u64| of(self).saturating_sub(of(earlier));
        let stage = |of: fn(&Self) -> StageStats| StageStats {
            time: of(self).time.saturating_sub(of(earlier).time),
            count: of(self).count.saturating_sub(of(earlier).count),
        };
        Self {
            elapsed: time(|s| s.elapsed),
            waited: time(|s| s.waited),
            waited_for_slot: time(|s| s.waited_for_slot),
            looped: time(|s| s.looped),
            short_of_slots: time(|s| s.short_of_slots),
            batches: count(|s| s.batches),
            samples: count(|s| s.samples),
            failed: count(|s| s.failed),
            skipped: count(|s| s.skipped),
            substituted: count(|s| s.substituted),
            workers: self.workers,
            cpus: self.cpus,
            load: stage(|s| s.load),
            read: stage(|s| s.read),
            decode: stage(|s| s.decode),
            transform: stage(|s| s.transform),
            write: stage(|s| s.write),
            bytes_read: count(|s| s.bytes_read),
            idle: time(|s| s.idle),
            cpu: time(|s| s.cpu),
            lost: time(|s| s.lost),
            restarts: count(|s| s.restarts),
        }
    }

    /// Time that workers spent on samples.
    pub fn busy(&self) -> Duration {
        self.stages().iter().map(|(_, stage)| stage.time).sum::<Duration>() + self.lost
    }

    /// Time in epochs: what the loop waited and what it worked.
    pub fn active(&self) -> Duration {
        self.waited + self.looped
    }

    /// The part of its time in epochs that the loop waited, 0 to 1.
    pub fn wait_share(&self) -> f64 {
        share(self.waited, self.active())
    }

    /// The part of the time in epochs that workers spent on samples, 0 to 1.
    pub fn busy_share(&self) -> f64 {
        // Not of busy and idle time: between epochs workers have nothing to do, and nobody waits.
        share(self.busy(), self.active() * u32::try_from(self.workers).unwrap_or(1)).min(1.0)
    }

    /// Samples that the loop got in each second of its time in epochs.
    pub fn samples_per_second(&self) -> f64 {
        let seconds = self.active().as_secs_f64();
        if seconds > 0.0 { self.samples as f64 / seconds } else { 0.0 }
    }

    /// CPU time that workers spent on each sample that they tried.
    pub fn cpu_per_sample(&self) -> Duration {
        each(self.cpu, self.load.count)
    }

    /// What held the loop up, if anything, in one line.
    pub fn verdict(&self) -> Verdict {
        Verdict::of(self)
    }

    /// Adds what a worker has counted.
    pub(crate) fn add(&mut self, tally: &Tally) {
        self.workers += 1;
        let stages = [
            (Step::Load, &mut self.load),
            (Step::Read, &mut self.read),
            (Step::Decode, &mut self.decode),
            (Step::Transform, &mut self.transform),
            (Step::Write, &mut self.write),
        ];
        for (step, stage) in stages {
            stage.time += tally.times[step as usize];
            stage.count += tally.counts[step as usize];
        }
        self.bytes_read += tally.bytes;
        self.idle += tally.idle;
        self.cpu += tally.cpu;
        self.lost += tally.lost;
    }

    /// The stages in the order in which a sample goes through them, with their names.
    fn stages(&self) -> [(&'static str, StageStats); 5] {
        [
            ("load", self.load),
            ("read", self.read),
            ("decode", self.decode),
            ("transform", self.transform),
            ("write", self.write),
        ]
    }
}

fn share(part: Duration, whole: Duration) -> f64 {
    if whole.is_zero() { 0.0 } else { part.as_secs_f64() / whole.as_secs_f64() }
}

fn each(time: Duration, count: u64) -> Duration {
    Duration::from_secs_f64(if count > 0 { time.as_secs_f64() / count as f64 } else { 0.0 })
}

/// A table, and the verdict under it.
impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| format!("{:.1}%", share * 100.0);
        let (waited, looped) = (self.waited.as_secs_f64(), self.looped.as_secs_f64());
        writeln!(
            f,
            "{} samples in {} batches, {:.1} samples/s; the loop waited {waited:.2} s ({}) and worked \
             {looped:.2} s",
            self.samples,
            self.batches,
            self.samples_per_second(),
            percent(self.wait_share()),
        )?;
        writeln!(
            f,
            "{:10} {:>10} {:>8} {:>12} {:>10}",
            "stage", "time", "share", "a sample", "samples"
        )?;
        let busy = self.busy();
        for (name, stage) in self.stages() {
            writeln!(
                f,
                "{name:10} {:>8.2} s {:>8} {:>9.1} µs {:>10}",
                stage.time.as_secs_f64(),
                percent(share(stage.time, busy)),
                each(stage.time, stage.count).as_secs_f64() * 1e6,
                stage.count
            )?;
        }
        writeln!(
            f,
            "{} workers on {} CPUs: {} busy, {:.1} µs of CPU time a sample, {:.1} MB read",
            self.workers,
            self.cpus,
            percent(self.busy_share()),
            self.cpu_per_sample().as_secs_f64() * 1e6,
            self.bytes_read as f64 / 1e6,
        )?;
        if self.failed + self.restarts > 0 {
            writeln!(
                f,
                "{} samples failed, {} skipped, {} substituted; {} worker processes replaced, {:.2} s \
                 of work lost with them",
                self.failed,
                self.skipped,
                self.substituted,
                self.restarts,
                self.lost.as_secs_f64()
            )?;
        }
        write!(f, "{}", self.verdict())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::STEPS;

    fn tally(seconds: u64) -> Tally {
        let time = Duration::from_secs(seconds);
        let times = std::array::from_fn(|step| time * (step as u32 + 1));
        Tally { times, counts: [seconds; STEPS], bytes: 7, idle: time, cpu: time, lost: time }
    }

    #[test]
    fn workers_add_up_and_a_difference_takes_apart() {
        let mut before = Stats::default();
        before.add(&tally(1));
        before.samples = 3;
        let mut after = before.clone();
        after.add(&tally(10));
        (after.samples, after.restarts) = (10, 2);
        assert_eq!((after.workers, after.busy()), (2, Duration::from_secs(11 * 15 + 11)));
        let between = after.since(&before);
        assert_eq!((between.samples, between.restarts, between.bytes_read), (7, 2, 7));
        assert_eq!(between.decode, StageStats { time: Duration::from_secs(30), count: 10 });
        assert_eq!(between.workers, 2, "no difference");
        assert_eq!(before.since(&after).samples, 0, "never below nothing");
    }

    #[test]
    fn numbers_travel_in_any_format_of_serde() {
        let mut stats = Stats::default();
        stats.add(&tally(5));
        let json = serde_json::to_string(&stats).unwrap();
        assert_eq!(serde_json::from_str::<Stats>(&json).unwrap(), stats);
        let newer = json.replace("\"workers\"", "\"some_day\":1,\"workers\"");
        assert_eq!(serde_json::from_str::<Stats>(&newer).unwrap(), stats);
    }

    #[test]
    fn the_table_names_every_stage_and_ends_with_the_verdict() {
        let mut stats = Stats { elapsed: Duration::from_secs(20), ..Stats::default() };
        stats.add(&tally(1));
        (stats.batches, stats.samples, stats.cpus) = (2, 8, 4);
        (stats.waited, stats.looped) = (Duration::from_secs(15), Duration::from_secs(5));
        let table = stats.to_string();
        for name in ["load", "read", "decode", "transform", "write"] {
            assert!(table.lines().any(|line| line.starts_with(name)), "{table}");
        }
        assert!(table.contains("8 samples in 2 batches, 0.4 samples/s"), "{table}");
        assert!(table.contains("waited 15.00 s (75.0%)"), "{table}");
        assert_eq!(table.lines().last(), Some(stats.verdict().to_string().as_str()));
        assert!(!Stats::default().to_string().contains("NaN"));
    }
}
