//! Compiles the one C++ function of this crate against the headers of the libtorch that torch-sys
//! found.

use std::env;
use std::path::PathBuf;
use std::process::exit;

const SOURCE: &str = "cpp/wrap.cpp";

fn main() {
    println!("cargo:rerun-if-changed={SOURCE}");
    println!("cargo:rerun-if-env-changed=LIBTORCH_INCLUDE");
    println!("cargo:rerun-if-env-changed=LIBTORCH_CXX11_ABI");
    if env::var_os("CARGO_FEATURE_DOC_ONLY").is_some() {
        return;
    }
    // Set by the build script of torch-sys, for crates that depend on it directly.
    let Some(libraries) = env::var_os("DEP_TCH_LIBTORCH_LIB").map(PathBuf::from) else {
        fail("torch-sys did not tell where libtorch is; this crate supports Linux and macOS");
    };
    let root = match env::var_os("LIBTORCH_INCLUDE") {
        Some(root) => PathBuf::from(root),
        None => libraries.join(".."),
    };
    let include = root.join("include");
    let header = include.join("ATen/ops/from_blob.h");
    if !header.exists() {
        fail(&format!(
            "libtorch's headers are not where its libraries are: there is no {}. Set \
             LIBTORCH_INCLUDE to the folder that holds include/, or let scripts/libtorch make a \
             libtorch that has both",
            header.display()
        ));
    }
    let abi = env::var("LIBTORCH_CXX11_ABI").unwrap_or_else(|_| "1".to_owned());
    let compiled = cc::Build::new()
        .cpp(true)
        .std("c++17")
        .warnings(false)
        .include(&include)
        .define("_GLIBCXX_USE_CXX11_ABI", abi.as_str())
        .file(SOURCE)
        .try_compile("loader_tch");
    if let Err(error) = compiled {
        fail(&format!(
            "{SOURCE} does not compile against the libtorch in {}: {error}\nIt needs a C++17 \
             compiler and the libtorch version that torch-sys names",
            root.display()
        ));
    }
    // For this package's tests; an rpath does not reach the programs that depend on it.
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", libraries.display());
    println!("cargo:libtorch_lib={}", libraries.display());
}

fn fail(message: &str) -> ! {
    eprintln!("\nloader-tch: {message}.\n");
    exit(1);
}
