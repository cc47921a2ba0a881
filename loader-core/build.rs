//! Compiles the C part of the libjpeg-turbo binding. Without that feature there is nothing to do.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "libjpeg-turbo")]
    shim();
}

#[cfg(feature = "libjpeg-turbo")]
fn shim() {
    use std::path::Path;

    let source = "src/image/jpeg/turbo/shim.c";
    println!("cargo::rerun-if-changed={source}");
    let include = std::env::var("DEP_TURBOJPEG_INCLUDE")
        .unwrap_or_else(|_| panic!("turbojpeg-sys doesn't say where libjpeg's headers are"));
    // The first folder is that of the library which is linked.
    let include = Path::new(include.split(',').next().unwrap_or_default());
    let config = include.join("jconfig.h");
    let config =
        std::fs::read_to_string(&config).unwrap_or_else(|e| panic!("{}: {e}", config.display()));
    let version = config.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("#define") && words.next() == Some("LIBJPEG_TURBO_VERSION"))
            .then(|| words.next())?
    });
    let version = version.unwrap_or_else(|| panic!("jconfig.h names no version"));
    println!("cargo::rustc-env=LIBJPEG_TURBO_VERSION={version}");
    cc::Build::new().file(source).include(include).warnings(true).compile("loader_core_jpeg");
}
