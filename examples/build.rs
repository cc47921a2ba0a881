//! Lets the programs in tch find the libtorch that they are built against.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Set by loader-tch, which is there with the feature `tch`.
    if let Ok(libraries) = env::var("DEP_LOADER_TCH_LIBTORCH_LIB") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{libraries}");
    }
}
