//! Waits: those for a file that never gives its bytes are told with its path, and those of whoever
//! wants to end the program end.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::time::Duration;

use loader_core::{
    DType, DataLoader, DataLoaderBuilder, Dataset, Field, Fingerprint, LoadError, Location, Recipe,
    RecipeError, Sample, SampleError, SampleWriter, Stage, Workers,
};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;

use crate::data::{Act, noise, wait_until};
use crate::victims::{self, Victim};

crate::tests![
    a_process_stuck_on_a_pipe_is_an_error_that_names_it,
    a_thread_stuck_on_a_pipe_is_an_error_that_names_it,
    a_long_wait_is_told_with_the_path_without_being_asked,
    ctrl_c_ends_the_program_in_every_phase,
];

/// Files that are read by whoever opens them as most programs do.
pub(crate) struct Files(Vec<PathBuf>);

pub(crate) fn attach_files(recipe: Recipe) -> Result<Files, String> {
    recipe.spec().map(Files).map_err(|e| e.to_string())
}

impl Dataset for Files {
    type Scratch = ();

    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field::new("size", DType::I64, [])]
    }

    fn load(&self, s: &Sample, (): &mut (), out: &mut SampleWriter<'_>) -> Result<(), SampleError> {
        let bytes = std::fs::read(&self.0[s.index as usize]);
        let bytes = bytes.map_err(|e| SampleError::new(Stage::Read, e))?;
        out.field::<i64>(0)?[0] = bytes.len() as i64;
        Ok(())
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint(0)
    }

    fn recipe(&self) -> Result<Recipe, RecipeError> {
        Recipe::new("files", &self.0)
    }

    fn locate(&self, index: u64) -> Location {
        Location { path: Some(self.0[index as usize].clone()), class: None }
    }
}

/// Files of five bytes, and one pipe that nobody writes to.
fn with_pipe(root: &tempfile::TempDir) -> (DataLoaderBuilder<Files>, PathBuf) {
    let mut files: Vec<_> = (0..10).map(|n| root.path().join(format!("{n}.jpg"))).collect();
    files.iter().for_each(|file| std::fs::write(file, b"12345").unwrap());
    let pipe = root.path().join("pipe.jpg");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    files.insert(6, pipe.clone());
    (DataLoader::builder(Files(files)).batch_size(4), pipe)
}

const SHORT: Duration = Duration::from_millis(50);

fn a_process_stuck_on_a_pipe_is_an_error_that_names_it() {
    let root = tempfile::tempdir().unwrap();
    let (builder, pipe) = with_pipe(&root);
    let loader = builder.workers(Workers::processes(2)).timeout(SHORT).build().unwrap();
    match loader.epoch(0).unwrap().find_map(Result::err) {
        Some(LoadError::Sample(failure)) => {
            assert_eq!((failure.index, failure.path.as_deref()), (6, Some(&*pipe)));
            assert_eq!(failure.error.stage, Stage::Worker);
        }
        other => panic!("{other:?}"),
    }
}

fn a_thread_stuck_on_a_pipe_is_an_error_that_names_it() {
    let root = tempfile::tempdir().unwrap();
    let (builder, pipe) = with_pipe(&root);
    let loader = builder.workers(Workers::threads(2)).timeout(SHORT).build().unwrap();
    match loader.epoch(0).unwrap().find_map(Result::err) {
        Some(LoadError::Stalled(stall)) => {
            assert_eq!((stall.index, stall.path.as_deref()), (Some(6), Some(&*pipe)));
            assert!(stall.worker.is_some() && stall.lasted >= SHORT, "{stall:?}");
        }
        other => panic!("{other:?}"),
    }
    // Lets the thread go.
    std::fs::OpenOptions::new().write(true).open(pipe).unwrap();
}

fn a_long_wait_is_told_with_the_path_without_being_asked() {
    let mut victim = Victim::start_heard("stuck");
    let mut pipe = String::new();
    victim.stdout().read_line(&mut pipe).unwrap();
    let pipe = pipe.trim_end();
    let told = victim.stderr().lines().find(|line| line.as_ref().unwrap().contains(pipe));
    let told = told.unwrap().unwrap();
    for part in ["waiting for a batch: worker ", "has been making sample 6", " for 1"] {
        assert!(told.contains(part), "{told}");
    }
    // It was only told: when the bytes come at last, the epoch goes on.
    std::fs::write(pipe, b"123456").unwrap();
    victim.succeeds();
}

pub(crate) fn stuck() {
    loader_core::init_with(crate::data::registry()).unwrap();
    let root = tempfile::tempdir().unwrap();
    let (builder, pipe) = with_pipe(&root);
    say(&pipe.display().to_string());
    let loader = builder.workers(Workers::processes(2)).build().unwrap();
    let sizes = loader.epoch(0).unwrap().map(|b| b.unwrap().get::<i64>("size").unwrap().to_vec());
    let sizes: Vec<_> = sizes.flatten().collect();
    assert_eq!(sizes, [5, 5, 5, 5, 5, 5, 6, 5, 5, 5, 5]);
}

fn say(what: &str) {
    println!("{what}");
    std::io::stdout().flush().unwrap();
}

/// Programs that say when they have come to a phase.
pub(crate) const PHASES: [crate::Test; 4] = [
    ("interrupted_while_building", building),
    ("interrupted_while_idle", idle),
    ("interrupted_while_waiting", waiting),
    ("interrupted_while_holding", holding),
];

fn ctrl_c_ends_the_program_in_every_phase() {
    for (phase, _) in PHASES {
        let mut victim = Victim::start(phase);
        victim.stdout().read_line(&mut String::new()).unwrap();
        assert!(victims::processes(phase) >= 2, "{phase}");
        victim.kill(Signal::INT);
        wait_until("the end of all its processes", || victims::processes(phase) == 0);
    }
}

fn building() {
    loader_core::init_with(crate::data::registry()).unwrap();
    for n in 0.. {
        if n == 3 {
            say("now");
        }
        noise(60).loader().workers(Workers::processes(4)).build().unwrap();
    }
}

fn idle() {
    loader_core::init_with(crate::data::registry()).unwrap();
    let _loader = noise(60).loader().workers(Workers::processes(3)).build().unwrap();
    say("now");
    std::thread::sleep(Duration::MAX);
}

/// For a sample that never comes.
fn waiting() {
    loader_core::init_with(crate::data::registry()).unwrap();
    let builder = noise(60).act(23, Act::Hang).loader().batch_size(1);
    let loader = builder.workers(Workers::processes(2)).build().unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    epoch.next().unwrap().unwrap();
    say("now");
    epoch.for_each(|batch| drop(batch.unwrap()));
    panic!("sample 23 was made");
}

/// All batches that there may be, waiting for one to come back.
fn holding() {
    loader_core::init_with(crate::data::registry()).unwrap();
    let builder = noise(6000).loader().workers(Workers::processes(2)).prefetch(1);
    let builder = builder.memory_budget(4 * (64 << 10)).wait_for_slot(Duration::MAX);
    let loader = builder.build().unwrap();
    let mut held = Vec::new();
    for batch in loader.epoch(0).unwrap() {
        held.push(batch.unwrap());
        if held.len() == 4 {
            say("now");
        }
    }
}
