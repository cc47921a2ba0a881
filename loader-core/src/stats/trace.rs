//! The last samples of every worker as a timeline, in the format of Chrome's trace viewer.

use std::io::{self, Write};

use serde_json::{Value, json};

use crate::dataset::Location;
use crate::shm::{Record, Recorder, Step};

/// What records are of.
pub(crate) const SAMPLE: u32 = 0;
/// A sample that could not be made.
pub(crate) const FAILED: u32 = 1;
pub(crate) const WAIT: u32 = 2;
pub(crate) const LOOP: u32 = 3;

/// Rows of the viewer are threads of processes; these two are made up, as workers are threads here and
/// processes there.
const LOOP_PID: u32 = 1;
const WORKERS_PID: u32 = 2;

/// Writes what the rings have, as JSON.
pub(crate) fn write(
    recorder: &Recorder,
    locate: impl Fn(u64) -> Location,
    out: impl Write,
) -> io::Result<()> {
    let rings: Vec<_> = (0..=recorder.loop_ring()).map(|ring| recorder.read(ring)).collect();
    let begin = rings.iter().flatten().map(|record| record.begin).min().unwrap_or(0);
    let mut events = Events { out: io::BufWriter::new(out), any: false, begin };
    events.out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")?;
    events.name("process_name", LOOP_PID, 0, "loop")?;
    events.name("process_name", WORKERS_PID, 0, "workers")?;
    for (ring, records) in rings.iter().enumerate() {
        if ring == recorder.loop_ring() {
            events.name("thread_name", LOOP_PID, 0, "loop")?;
            records.iter().try_for_each(|record| events.batch(record))?;
        } else {
            events.name("thread_name", WORKERS_PID, ring, &format!("worker {ring}"))?;
            records.iter().try_for_each(|record| events.sample(ring, record, &locate))?;
        }
    }
    events.out.write_all(b"\n]}\n")?;
    events.out.flush()
}

struct Events<W: Write> {
    out: io::BufWriter<W>,
    any: bool,
    /// What times are told from.
    begin: u64,
}

impl<W: Write> Events<W> {
    fn name(&mut self, what: &str, pid: u32, tid: usize, name: &str) -> io::Result<()> {
        let args = json!({ "name": name });
        self.event(&json!({ "ph": "M", "name": what, "pid": pid, "tid": tid, "args": args }))
    }

    fn batch(&mut self, record: &Record) -> io::Result<()> {
        let name = if record.kind == WAIT { "wait" } else { "work on a batch" };
        let args = json!({ "epoch": record.epoch, "batch": record.number });
        let end = record.laps.last().map_or(record.begin, |lap| lap.1);
        self.span(name, LOOP_PID, 0, (record.begin, end), args)
    }

    fn sample(
        &mut self,
        worker: usize,
        record: &Record,
        locate: impl Fn(u64) -> Location,
    ) -> io::Result<()> {
        let Some(&(_, end)) = record.laps.last() else { return Ok(()) };
        let name = if record.kind == FAILED { "failed sample" } else { "sample" };
        let path = locate(record.number).path.map(|path| path.to_string_lossy().into_owned());
        let args = json!({ "epoch": record.epoch, "index": record.number, "path": path });
        self.span(name, WORKERS_PID, worker, (record.begin, end), args)?;
        let mut begin = record.begin;
        for &(step, end) in &record.laps {
            if end > begin {
                self.span(step_name(step), WORKERS_PID, worker, (begin, end), Value::Null)?;
            }
            begin = end;
        }
        Ok(())
    }

    fn span(
        &mut self,
        name: &str,
        pid: u32,
        tid: usize,
        (begin, end): (u64, u64),
        args: Value,
    ) -> io::Result<()> {
        let micros = |nanos: u64| nanos as f64 / 1e3;
        let (ts, dur) =
            (micros(begin.saturating_sub(self.begin)), micros(end.saturating_sub(begin)));
        let mut event =
            json!({ "ph": "X", "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur });
        if !args.is_null() {
            event["args"] = args;
        }
        self.event(&event)
    }

    fn event(&mut self, event: &Value) -> io::Result<()> {
        if self.any {
            self.out.write_all(b",\n")?;
        }
        self.any = true;
        serde_json::to_writer(&mut self.out, event).map_err(io::Error::from)
    }
}

fn step_name(step: u8) -> &'static str {
    const NAMES: [(Step, &str); 5] = [
        (Step::Load, "load"),
        (Step::Read, "read"),
        (Step::Decode, "decode"),
        (Step::Transform, "transform"),
        (Step::Write, "write"),
    ];
    NAMES.iter().find(|(known, _)| *known as u8 == step).map_or("other", |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_has_a_row_for_each_worker_and_one_for_the_loop() {
        let recorder = Recorder::create(8, 2).unwrap();
        recorder.add(1, SAMPLE, (2000, 7, 3), [(1, 2500), (2, 4000)]);
        recorder.add(2, WAIT, (1000, 0, 3), [(0, 4000)]);
        recorder.add(2, LOOP, (4000, 0, 3), [(0, 9000)]);
        let mut out = Vec::new();
        let locate = |index| Location { path: Some(format!("{index}.jpg").into()), class: None };
        write(&recorder, locate, &mut out).unwrap();
        let trace: Value = serde_json::from_slice(&out).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let spans = events.iter().filter(|event| event["ph"] == "X").map(|event| {
            let time = |key: &str| event[key].as_f64().unwrap();
            (
                event["name"].as_str().unwrap(),
                event["tid"].as_u64().unwrap(),
                time("ts"),
                time("dur"),
            )
        });
        let expected = [
            ("sample", 1, 1.0, 2.0),
            ("read", 1, 1.0, 0.5),
            ("decode", 1, 1.5, 1.5),
            ("wait", 0, 0.0, 3.0),
            ("work on a batch", 0, 3.0, 5.0),
        ];
        assert!(spans.eq(expected), "{events:?}");
        assert!(events.iter().any(|event| event["args"]["path"] == "7.jpg"));
        let names = events.iter().filter(|event| event["name"] == "thread_name").count();
        assert_eq!(names, 3);
    }
}
