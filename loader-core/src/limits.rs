//! Which limit the system means when it refuses, and what raises it.

use std::io;

use rustix::io::Errno;

/// What to say behind such an error; nothing where it speaks for itself.
pub(crate) fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::AGAIN) => {
            ": no further process or thread may be started (ulimit -u, or pids.max of the control group)"
        }
        Some(Errno::MFILE) => ": the limit of this process on open files is reached (ulimit -n)",
        Some(Errno::NFILE) => ": the machine's limit on open files is reached (sysctl fs.file-max)",
        Some(Errno::NOMEM) => {
            ": there is no memory, or there are not so many addresses (ulimit -v)"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_what_raises_its_limit() {
        let of = |errno: Errno| hint(&errno.into());
        assert!(of(Errno::AGAIN).contains("ulimit -u") && of(Errno::MFILE).contains("ulimit -n"));
        assert_eq!(of(Errno::NOENT), "");
        assert_eq!(hint(&io::Error::other("said by us")), "");
    }
}
