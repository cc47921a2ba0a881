//! From numbers to a sentence: what holds the loop up, and what would help.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Stats, share};

/// Below this part of its time, a loop that waits has nothing to complain of.
const LITTLE_WAITING: f64 = 0.05;
/// Above this part of the time, workers are at the limit: they also wait for each other's last samples.
const SATURATED: f64 = 0.85;
/// Below this part of the time on work that needs nothing else, somebody else had the CPU.
const GOT_CPU: f64 = 0.7;
/// From this part of the time on, a want of slots explains idle workers.
const SHORT: f64 = 0.2;
/// A loop that works less than this part of its time is no loop that workers could keep up with.
const EMPTY_LOOP: f64 = 0.02;

/// What limits how many samples the loop gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Bottleneck {
    /// No batch was delivered yet.
    Unknown,
    /// The loop itself: it hardly waits.
    Loop,
    /// Reading files.
    Read,
    /// Decoding.
    Decode,
    /// Resizing and changing pixels.
    Transform,
    /// Writing tensors.
    Write,
    /// A dataset that does not tell its stages.
    Load,
    /// Workers have work, and no CPU to do it.
    Cpus,
    /// The loop holds so many batches that there is no memory for others.
    Slots,
    /// Workers idle although the loop waits: single samples take long, or the epoch is short.
    Stragglers,
}

/// What held the loop up, and in one line how that is known and what would help.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verdict {
    /// What it was.
    pub bottleneck: Bottleneck,
    sentence: String,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl Verdict {
    pub(super) fn of(stats: &Stats) -> Self {
        let says = |bottleneck, sentence| Self { bottleneck, sentence };
        if stats.batches == 0 || stats.active().is_zero() {
            return says(Bottleneck::Unknown, "nothing to tell: no batch was delivered".to_owned());
        }
        let (wait, busy) = (stats.wait_share(), stats.busy_share());
        let shares =
            format!("workers {} busy, the loop waited {} of its time", whole(busy), whole(wait));
        if wait < LITTLE_WAITING {
            let enough = workers_needed(stats).filter(|&enough| enough < stats.workers);
            let enough = enough.map(|n| format!("; {n} of {} would do", count(stats.workers)));
            let sentence = format!("loop-bound: {shares}{}", enough.unwrap_or_default());
            return says(Bottleneck::Loop, sentence);
        }
        if busy >= SATURATED {
            return Self::of_saturated(stats, &shares);
        }
        let short = share(stats.short_of_slots, stats.active());
        if short >= SHORT || 2 * stats.waited_for_slot >= stats.waited {
            let sentence = format!(
                "starved for slots: batches are held, for {} of the time there was no memory to make \
                 another; {shares}; drop batches sooner or raise memory_budget",
                whole(short)
            );
            return says(Bottleneck::Slots, sentence);
        }
        let sentence = format!(
            "held up by single samples, or by the start of a short epoch: {shares}; a higher prefetch or \
             unordered(true) evens out samples that differ in cost"
        );
        says(Bottleneck::Stragglers, sentence)
    }

    /// The workers are at their limit, and the loop waits.
    fn of_saturated(stats: &Stats, shares: &str) -> Self {
        let stages = [
            (Bottleneck::Read, "read-bound (storage)", "reading", stats.read),
            (Bottleneck::Decode, "decode-bound", "decoding", stats.decode),
            (Bottleneck::Transform, "transform-bound", "transforming", stats.transform),
            (Bottleneck::Write, "write-bound", "writing", stats.write),
            (Bottleneck::Load, "load-bound", "in the dataset's load", stats.load),
        ];
        let busy = stats.busy();
        let longest = stages.into_iter().max_by_key(|(.., stage)| stage.time);
        let Some((bottleneck, name, doing, stage)) = longest else {
            return Self { bottleneck: Bottleneck::Unknown, sentence: shares.to_owned() };
        };
        let on_cpu = share(stats.cpu, busy);
        let computes = !matches!(bottleneck, Bottleneck::Read | Bottleneck::Load);
        if computes && on_cpu < GOT_CPU {
            let help = match stats.workers > stats.cpus {
                true => "use fewer workers",
                false => "something else takes them",
            };
            let sentence = format!(
                "short of CPUs: {shares}, but {} had a CPU for {} of that ({}): {help}",
                count(stats.workers),
                whole(on_cpu),
                cpus(stats.cpus),
            );
            return Self { bottleneck: Bottleneck::Cpus, sentence };
        }
        let mostly = whole(share(stage.time, busy));
        let more = remedy(stats, bottleneck, on_cpu);
        let sentence = format!("{name}: {shares}, {mostly} of the work is {doing}; {more}");
        Self { bottleneck, sentence }
    }
}

fn remedy(stats: &Stats, bottleneck: Bottleneck, on_cpu: f64) -> String {
    let reads = bottleneck == Bottleneck::Read;
    let or_ahead = if reads { ", as would more read_ahead threads" } else { "" };
    let limited = !reads && on_cpu >= GOT_CPU;
    let Some(needed) = workers_needed(stats) else {
        return match limited && stats.workers >= stats.cpus {
            true => format!("the loop itself takes no time, and {} are at work", cpus(stats.cpus)),
            false => {
                format!("the loop itself takes no time: every worker more would help{or_ahead}")
            }
        };
    };
    let more = needed.saturating_sub(stats.workers).max(1);
    if limited && stats.workers + more > stats.cpus {
        return format!("+{} would cover it, but there are {}", count(more), cpus(stats.cpus));
    }
    format!("+{} would cover it{or_ahead}", count(more))
}

/// Workers that would be as fast as the loop. `None` where the loop does nothing.
fn workers_needed(stats: &Stats) -> Option<u64> {
    let looped = share(stats.looped, stats.active());
    let needed = share(stats.busy(), stats.looped).ceil() as u64;
    (looped >= EMPTY_LOOP).then_some(needed.max(1))
}

fn whole(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

fn count(workers: u64) -> String {
    format!("{workers} worker{}", if workers == 1 { "" } else { "s" })
}

fn cpus(cpus: u64) -> String {
    format!("{cpus} CPU{}", if cpus == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::stats::StageStats;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn stage(time: f64) -> StageStats {
        StageStats { time: seconds(time), count: 1000 }
    }

    /// Ten seconds of four workers on eight CPUs that mostly decode, of which the loop worked six.
    fn decoding() -> Stats {
        Stats {
            elapsed: seconds(12.0),
            waited: seconds(4.0),
            looped: seconds(6.0),
            batches: 10,
            samples: 1000,
            workers: 4,
            cpus: 8,
            load: stage(0.2),
            read: stage(2.0),
            decode: stage(28.0),
            transform: stage(6.0),
            write: stage(3.0),
            idle: seconds(8.0),
            cpu: seconds(37.0),
            ..Stats::default()
        }
    }

    fn verdict(stats: &Stats) -> (Bottleneck, String) {
        let verdict = stats.verdict();
        (verdict.bottleneck, verdict.to_string())
    }

    #[test]
    fn busy_workers_that_decode_are_told_with_how_many_more_would_do() {
        let (bottleneck, text) = verdict(&decoding());
        assert_eq!(bottleneck, Bottleneck::Decode);
        // 39.2 s of work in the 6 s that the loop takes.
        assert_eq!(
            text,
            "decode-bound: workers 98% busy, the loop waited 40% of its time, 71% of the work is \
             decoding; +3 workers would cover it"
        );
    }

    #[test]
    fn more_workers_than_cpus_are_not_recommended() {
        let (bottleneck, text) = verdict(&Stats { cpus: 4, ..decoding() });
        assert_eq!(bottleneck, Bottleneck::Decode);
        assert!(text.ends_with("+3 workers would cover it, but there are 4 CPUs"), "{text}");
    }

    #[test]
    fn a_loop_that_does_nothing_is_no_goal() {
        let empty = Stats { waited: seconds(9.95), looped: seconds(0.05), ..decoding() };
        assert!(verdict(&empty).1.ends_with("takes no time: every worker more would help"));
        let full = Stats { cpus: 4, ..empty };
        assert!(
            verdict(&full).1.ends_with("the loop itself takes no time, and 4 CPUs are at work")
        );
    }

    #[test]
    fn each_stage_is_named_where_it_takes_longest() {
        let none =
            Stats { read: stage(0.0), decode: stage(0.0), transform: stage(0.0), ..decoding() };
        let none = Stats { write: stage(0.0), load: stage(0.0), ..none };
        for (bottleneck, begins, stats) in [
            (
                Bottleneck::Transform,
                "transform-bound: ",
                Stats { transform: stage(39.0), ..none.clone() },
            ),
            (Bottleneck::Write, "write-bound: ", Stats { write: stage(39.0), ..none.clone() }),
            (Bottleneck::Load, "load-bound: ", Stats { load: stage(39.0), ..none.clone() }),
        ] {
            let (found, text) = verdict(&stats);
            assert!(found == bottleneck && text.starts_with(begins), "{text}");
        }
    }

    #[test]
    fn workers_that_wait_for_storage_want_company_and_not_cpus() {
        let stats =
            Stats { decode: stage(2.0), read: stage(28.0), cpu: seconds(9.0), ..decoding() };
        let (bottleneck, text) = verdict(&Stats { cpus: 4, ..stats });
        assert_eq!(bottleneck, Bottleneck::Read);
        assert!(text.starts_with("read-bound (storage): workers 98% busy"), "{text}");
        assert!(
            text.ends_with("+3 workers would cover it, as would more read_ahead threads"),
            "{text}"
        );
    }

    #[test]
    fn workers_without_a_cpu_are_told_from_workers_with_too_much_to_do() {
        let (bottleneck, text) = verdict(&Stats { cpu: seconds(19.6), cpus: 2, ..decoding() });
        assert_eq!(bottleneck, Bottleneck::Cpus);
        assert!(
            text.ends_with("4 workers had a CPU for 50% of that (2 CPUs): use fewer workers"),
            "{text}"
        );
        let (_, text) = verdict(&Stats { cpu: seconds(19.6), cpus: 4, ..decoding() });
        assert!(text.ends_with("(4 CPUs): something else takes them"), "{text}");
    }

    #[test]
    fn a_loop_that_hardly_waits_is_the_limit_itself() {
        let stats = Stats { waited: seconds(0.1), looped: seconds(20.0), ..decoding() };
        let (bottleneck, text) = verdict(&stats);
        assert_eq!(bottleneck, Bottleneck::Loop);
        assert_eq!(
            text,
            "loop-bound: workers 49% busy, the loop waited 0% of its time; 2 of 4 workers would do"
        );
    }

    #[test]
    fn held_batches_are_told_where_workers_idle_for_them() {
        let held = Stats {
            waited: seconds(14.0),
            looped: seconds(6.0),
            short_of_slots: seconds(18.0),
            ..decoding()
        };
        let (bottleneck, text) = verdict(&held);
        assert_eq!(bottleneck, Bottleneck::Slots);
        assert!(
            text.starts_with("starved for slots: batches are held, for 90% of the time"),
            "{text}"
        );
        let waited = Stats { short_of_slots: seconds(1.0), waited_for_slot: seconds(9.0), ..held };
        assert_eq!(verdict(&waited).0, Bottleneck::Slots);
    }

    #[test]
    fn idle_workers_beside_a_waiting_loop_point_at_single_samples() {
        let stats = Stats { waited: seconds(14.0), looped: seconds(6.0), ..decoding() };
        let (bottleneck, text) = verdict(&stats);
        assert_eq!(bottleneck, Bottleneck::Stragglers);
        assert!(text.contains("workers 49% busy, the loop waited 70%"), "{text}");
    }

    #[test]
    fn without_a_batch_there_is_nothing_to_tell() {
        assert_eq!(Stats::default().verdict().bottleneck, Bottleneck::Unknown);
        assert_eq!(Stats { batches: 0, ..decoding() }.verdict().bottleneck, Bottleneck::Unknown);
    }
}
