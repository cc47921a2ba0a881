//! Files in memory that nobody can change any more, so that they can be read as slices.

use std::fs::File;
use std::io::{self, Write};

use memmap2::Mmap;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};

/// Not `WRITE`: before Linux 6.7 a file with that seal can't be mapped shared, even to be read.
const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// A file that exists in memory only and can't be changed any more.
pub(crate) fn sealed_file(name: &str, bytes: &[u8]) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(memfd_create(name, flags)?);
    file.write_all(bytes)?;
    seal(&file, name);
    Ok(file)
}

/// Bars everyone from changing a file in memory, which is mapped writable nowhere.
pub(super) fn seal(file: &File, name: &str) {
    // Kernels before 5.1 don't know all of them; without, the file is merely not protected from bugs.
    if let Err(error) = fcntl_add_seals(file, SEALS) {
        tracing::debug!(%error, name, "a file in memory is not sealed");
    }
}

/// True where nobody can change the file any more.
pub(super) fn is_sealed(file: &File) -> bool {
    fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SEALS))
}

/// Maps such a file; an error where it is another kind of file.
pub(crate) fn map_sealed(file: &File) -> io::Result<Mmap> {
    if !is_sealed(file) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a file that is not sealed"));
    }
    // SAFETY: the seals, which can't be taken off, bar everyone from changing bytes or length, but
    // through a writable map that was there before them; `sealed_file` makes none.
    unsafe { Mmap::map(file) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_bytes_can_be_mapped_and_not_changed() {
        let mut file = sealed_file("test", b"numbers").unwrap();
        assert!(file.write_all(b"x").is_err() && file.set_len(1).is_err());
        assert_eq!(&*map_sealed(&file).unwrap(), b"numbers");
    }

    #[test]
    fn other_files_are_refused() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8).unwrap();
        assert!(map_sealed(&file).is_err());
    }
}
