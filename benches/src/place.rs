//! Where and how something was measured, for the record beside the numbers.

use std::fs;
use std::num::NonZeroUsize;
use std::process::Command;

use serde_json::{Value, json};

/// The machine: its processor, the CPUs that this process may use, memory and kernel.
fn machine() -> Value {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    json!({
        "processor": field(&read("/proc/cpuinfo"), "model name"),
        "cpus": std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
        "memory": field(&read("/proc/meminfo"), "MemTotal"),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "huge_pages_for_shared_memory": read("/sys/kernel/mm/transparent_hugepage/shmem_enabled").trim(),
    })
}

/// The versions of what is measured here: the crate's, the commit of its sources and the compiler.
fn versions() -> Value {
    let said = |program: &str, args: &[&str]| {
        let folder = env!("CARGO_MANIFEST_DIR");
        let out = Command::new(program).args(args).current_dir(folder).output().ok()?;
        out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
    };
    json!({
        "loader": env!("CARGO_PKG_VERSION"),
        "commit": said("git", &["describe", "--always", "--dirty"]),
        "rustc": said("rustc", &["--version"]),
        "optimised": !cfg!(debug_assertions),
    })
}

/// The command that is running.
fn command() -> String {
    std::env::args().collect::<Vec<_>>().join(" ")
}

/// Writes results to a file, an object a line, each with where and how it was measured.
///
/// # Errors
/// Where the file can't be written.
pub fn write_results(
    path: &str,
    benchmark: &str,
    results: impl IntoIterator<Item = Value>,
) -> Result<(), String> {
    let place = json!({
        "benchmark": benchmark, "versions": versions(), "machine": machine(), "command": command(),
    });
    let lines = results.into_iter().map(|mut result| {
        if let (Some(result), Some(place)) = (result.as_object_mut(), place.as_object()) {
            result.extend(place.clone());
        }
        result.to_string()
    });
    let text = format!("[\n{}\n]\n", lines.collect::<Vec<_>>().join(",\n"));
    fs::write(path, text).map_err(|e| format!("{path}: {e}"))
}
