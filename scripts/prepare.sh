# Sourced by the scripts beside it: what every one of them needs, and how it is had on Debian and Ubuntu.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

say() { echo "== $*"; }

# need COMMAND PACKAGE: makes sure of a command, installing the package that brings it where it is missing.
need() {
    command -v "$1" >/dev/null || { say "$1 is missing: installing the package $2"; packages $2; }
}

# packages NAME...: installs them.
packages() {
    local sudo=
    [ "$(id -u)" = 0 ] || sudo=sudo
    command -v apt-get >/dev/null || { say "there is no apt-get: please install $* by hand"; exit 1; }
    $sudo apt-get update -qq
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# What the feature libjpeg-turbo is built with.
need_libjpeg_turbo() {
    need nasm nasm
    need cmake "cmake make"
}

# rustup may have been installed by this very shell's parent.
[ -d "${CARGO_HOME:-$HOME/.cargo}/bin" ] && PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
if ! command -v cargo >/dev/null; then
    say "cargo is missing: install Rust 1.95 or newer with rustup, then run this again"
    exit 1
fi
need cc "gcc libc6-dev"
