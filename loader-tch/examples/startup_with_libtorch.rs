//! Starts worker processes in a program that links libtorch and uses it, and tells how long that took
//! and what each worker has of the machine's memory.
//!
//! ```text
//! startup_with_libtorch [processes:8 [ENTRIES]]
//! ```
//!
//! The program `startup` of the benches runs it beside its own starts by `--linked`.

use std::error::Error;

use benches::startup::{Model, STRING_BYTES, Source, Start, Task};
use tch::{Device, Kind, Tensor};

fn main() -> Result<(), Box<dyn Error>> {
    let asked = Start::asked()?;
    let told = asked.is_some();
    let start = match asked {
        Some(start) => start,
        None => {
            let mut args = std::env::args().skip(1);
            let workers = args.next().map_or(Ok(Model::Processes(8)), |text| text.parse())?;
            let entries: u64 = args.next().map_or(Ok(1_281_167), |text| text.parse())?;
            let bytes = entries * STRING_BYTES;
            Start { source: Source::Strings { bytes }, task: Task::Paths, workers }
        }
    };
    let run = start.measure(|| {
        // What a training program has done by the time it loads: its threads run, its weights are
        // there.
        let weights = Tensor::randn([512, 512], (Kind::Float, Device::Cpu));
        drop(weights.matmul(&weights));
    })?;
    if told {
        println!("{}", run.to_json());
        return Ok(());
    }
    println!("{}, libtorch with {} threads", start.workers, tch::get_num_threads());
    for (step, seconds) in &run.seconds {
        println!("{step:8} {:9.3} ms", seconds * 1e3);
    }
    for (i, memory) in run.workers.iter().enumerate() {
        println!("worker {i}: RSS {} kB, PSS {} kB, USS {} kB", memory.rss, memory.pss, memory.uss);
    }
    Ok(())
}
