//! What a loader tells those who listen to `tracing`. A program of its own: whether anybody listens is
//! remembered for all threads, and those of other tests would race for it.

// Helpers of tests are tests.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

use loader_core::{
    DType, DataLoader, Dataset, Field, Fingerprint, Sample, SampleError, SampleWriter, Workers,
};
use tracing::field::Visit;
use tracing::{Event, Level, Metadata, Subscriber, span};

struct Numbers;

impl Dataset for Numbers {
    type Scratch = ();

    fn len(&self) -> u64 {
        20
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field::new("index", DType::I64, [])]
    }

    fn load(&self, s: &Sample, (): &mut (), out: &mut SampleWriter<'_>) -> Result<(), SampleError> {
        out.field::<i64>(0)?[0] = s.index as i64;
        Ok(())
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint(20)
    }
}

/// Collects the messages of events, with their levels.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<(Level, String)>>>);

impl Subscriber for Told {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        struct Message(String);
        impl Visit for Message {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().unwrap().push((*event.metadata().level(), message.0));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[test]
fn epochs_and_batches_are_told_to_a_subscriber() {
    let builder = DataLoader::builder(Numbers).batch_size(8).workers(Workers::threads(2));
    let loader = builder.build().unwrap();
    let told = Told::default();
    tracing::subscriber::with_default(told.clone(), || {
        loader.epoch(0).unwrap().for_each(|batch| drop(batch.unwrap()));
    });
    let told = told.0.lock().unwrap();
    let told: Vec<_> = told.iter().map(|(level, message)| (*level, message.as_str())).collect();
    let batch = (Level::TRACE, "batch delivered");
    let (start, end) = ((Level::DEBUG, "epoch started"), (Level::DEBUG, "epoch ended"));
    assert_eq!(told, [start, batch, batch, batch, end]);
}
