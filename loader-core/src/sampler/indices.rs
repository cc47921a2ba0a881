//! An explicit array of numbers that an order is made of, shared by everyone who reads the order:
//! the threads of a process by reference, processes by a file in memory.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use memmap2::Mmap;

use crate::shm::{map_sealed, sealed_file};

/// Numbers that are made once and read by all workers; a clone shares them.
#[derive(Clone, Debug)]
pub(super) struct Indices(Source);

#[derive(Clone, Debug)]
enum Source {
    Own(Arc<[u64]>),
    /// Of a length that is a multiple of eight, as `attach` checked.
    Mapped(Arc<Mmap>),
}

impl Indices {
    pub(super) fn as_slice(&self) -> &[u64] {
        match &self.0 {
            Source::Own(numbers) => numbers,
            Source::Mapped(map) => bytemuck::cast_slice(map),
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.as_slice().len() as u64
    }

    /// The numbers as a file that another process can attach to.
    pub(super) fn share(&self) -> io::Result<OwnedFd> {
        Ok(sealed_file("loader-order", bytemuck::cast_slice(self.as_slice()))?.into())
    }

    pub(super) fn attach(fd: OwnedFd) -> io::Result<Self> {
        let map = map_sealed(&File::from(fd))?;
        if !map.len().is_multiple_of(8) {
            let text = format!("{} bytes are no whole numbers", map.len());
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(Self(Source::Mapped(Arc::new(map))))
    }
}

impl From<Vec<u64>> for Indices {
    fn from(numbers: Vec<u64>) -> Self {
        Self(Source::Own(numbers.into()))
    }
}
