//! A training run that is interrupted and resumed is the unbroken run, for an `imagenet` program.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::common::{Place, succeeded};

/// An `imagenet` program on small pictures: 3 epochs of 9 batches.
pub struct Program {
    path: &'static str,
    place: Place,
}

/// Everything of a run that is to be the same.
#[derive(Debug, PartialEq)]
pub struct Outcome {
    /// By epoch and batch, learning rate and loss to the last digit.
    steps: BTreeMap<(u64, u64), String>,
    /// Loss and accuracies of each epoch.
    epochs: BTreeMap<u64, String>,
    weights: String,
}

impl Program {
    pub fn new(path: &'static str) -> Self {
        Self { path, place: Place::with_images(12, 1) }
    }

    /// The run named `name`, with more arguments.
    pub fn command(&self, name: &str, more: &[&str]) -> Command {
        let mut command = self.place.program(self.path);
        command
            .arg("--data")
            .arg(self.place.data())
            .args(["--epochs", "3", "--batch-size", "4", "--size", "16", "--width", "4"])
            .args(["--auto-augment", "randaugment", "--mixup", "0.2", "--cutmix", "1"])
            .arg("--checkpoints")
            .arg(self.checkpoints(name))
            .arg("--log")
            .arg(self.log(name))
            .args(more);
        command
    }

    pub fn checkpoints(&self, name: &str) -> PathBuf {
        self.place.join(name)
    }

    fn log(&self, name: &str) -> PathBuf {
        self.place.join(&format!("{name}.csv"))
    }

    pub fn run(&self, name: &str, more: &[&str]) -> String {
        succeeded(&self.command(name, more).output().unwrap())
    }

    /// What the parts of the run `name` printed and logged, taken together. What two parts both did,
    /// they did alike.
    pub fn outcome(&self, name: &str, printed: &[String]) -> Outcome {
        let log = fs::read_to_string(self.log(name)).unwrap();
        let mut steps = BTreeMap::new();
        for line in log.lines() {
            let mut cells = line.splitn(3, ',');
            let mut number = || cells.next().unwrap().parse().unwrap();
            let (place, rest) = ((number(), number()), cells.next().unwrap().to_owned());
            let before = steps.insert(place, rest.clone()).unwrap_or(rest.clone());
            assert_eq!(before, rest, "batch {place:?} twice");
        }
        let mut epochs = BTreeMap::new();
        for line in printed.iter().flat_map(|part| part.lines()) {
            let Some((number, rest)) = line.strip_prefix("epoch").and_then(|l| l.split_once('/'))
            else {
                continue;
            };
            let number = number.trim().parse().unwrap();
            // Without what tells of time.
            let learnt = rest.split(", ").take(3).collect::<Vec<_>>().join(", ");
            let before = epochs.insert(number, learnt.clone()).unwrap_or(learnt.clone());
            assert_eq!(before, learnt, "epoch {number} twice");
        }
        let weights = printed.last().unwrap().split_once(", weights ").unwrap().1;
        Outcome { steps, epochs, weights: weights.lines().next().unwrap().to_owned() }
    }

    pub fn unbroken(&self) -> Outcome {
        let printed = self.run("unbroken", &[]);
        let outcome = self.outcome("unbroken", &[printed]);
        assert_eq!((outcome.steps.len(), outcome.epochs.len()), (27, 3));
        outcome
    }
}

/// The only checkpoint there is.
pub fn newest(folder: &Path) -> Option<String> {
    let entries = fs::read_dir(folder).ok()?;
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("step-")).max()
}

/// Stops at the first batch, amid an epoch, at its end and once more, under other workers each time.
pub fn stopped_anywhere(program: &'static str) {
    let program = Program::new(program);
    let mut printed = vec![program.run("stopped", &["--stop-after", "1"])];
    for (batches, workers) in [("4", "processes:2"), ("4", "threads:3"), ("7", "subprocess:1")] {
        let more = ["--resume", "--stop-after", batches, "--workers", workers];
        printed.push(program.run("stopped", &more));
    }
    assert_eq!(newest(&program.checkpoints("stopped")).unwrap(), "step-00000016");
    printed.push(program.run("stopped", &["--resume"]));
    assert_eq!(program.outcome("stopped", &printed), program.unbroken());
}

/// Runs a program and kills it once there is a checkpoint of the second epoch or later; whether that
/// came before its end.
fn was_killed(program: &mut Command, checkpoints: &Path) -> bool {
    let mut running = program.stdout(Stdio::null()).spawn().unwrap();
    while newest(checkpoints).is_none_or(|name| name.as_str() < "step-00000011") {
        if let Some(status) = running.try_wait().unwrap() {
            assert!(status.success(), "{status}");
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    running.kill().unwrap();
    running.wait().unwrap().signal() == Some(9)
}

/// Kills the program after a checkpoint amid an epoch.
pub fn killed(program: &'static str) {
    let program = Program::new(program);
    let checkpoints = program.checkpoints("killed");
    let every = ["--resume", "--checkpoint-every", "2"];
    while !was_killed(&mut program.command("killed", &every), &checkpoints) {
        // This process was so slow to see the checkpoint that the program ended: once more.
        fs::remove_dir_all(&checkpoints).unwrap();
        fs::remove_file(program.log("killed")).unwrap();
    }

    // The killed part's output is lost, as are the batches after its last checkpoint.
    let printed = program.run("killed", &every);
    assert!(printed.contains("goes on from"), "{printed}");
    let (resumed, unbroken) = (program.outcome("killed", &[printed]), program.unbroken());
    assert_eq!(resumed.steps, unbroken.steps);
    assert_eq!(resumed.weights, unbroken.weights);
    assert!(!resumed.epochs.is_empty());
    for (epoch, learnt) in &resumed.epochs {
        assert_eq!(learnt, &unbroken.epochs[epoch]);
    }
}

/// Trains the larger network too, and goes on with it.
pub fn resnet50(program: &'static str) {
    let program = Program::new(program);
    let stopping = ["--resume", "--arch", "resnet50", "--stop-after", "2"];
    let printed = program.run("resnet50", &stopping);
    assert!(printed.contains("ResNet-50 of width 4, 16x16 pixels"), "{printed}");
    assert!(program.run("resnet50", &stopping).contains("epoch 1, after 2 of 9 batches"));
}

/// Neither takes up another run's checkpoint, nor begins anew beside it.
pub fn other_runs(program: &'static str) {
    let program = Program::new(program);
    program.run("other", &["--stop-after", "1"]);
    let refused = |more: &[&str], reason: &str| {
        let output = program.command("other", more).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && told.contains(reason), "{told}");
    };
    refused(&["--resume", "--lr", "0.2"], "lr was 0.1 and is 0.2");
    refused(&["--resume", "--seed", "1"], "seed");
    refused(&["--resume", "--arch", "resnet50"], "arch was \"resnet18\" and is \"resnet50\"");
    refused(&[], "give --resume");
}
