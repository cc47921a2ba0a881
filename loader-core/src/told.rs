//! What somebody should hear who waits, or who will wait at each start, whether his program listens or not.

use std::fmt;

/// Through `tracing`, and where nobody listens to that, on standard error: waits without a word are what
/// people lose hours with.
pub(crate) fn tell(what: &dyn fmt::Display) {
    if tracing::dispatcher::has_been_set() {
        tracing::warn!("{what}");
    } else {
        eprintln!("loader: {what}");
    }
}
