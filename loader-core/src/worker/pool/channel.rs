//! What goes between a pool and one of its processes: packets of a head, bytes and descriptors. Bytes
//! that don't fit into one lie in memory whose descriptor goes in their place.

use std::io::{self, IoSlice};
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use memmap2::Mmap;
use rustix::net::{RecvFlags, SendFlags};

use crate::shared::parcel::Parcel;
use crate::shm::{MemoryError, SharedBytes, map_sealed};
use crate::worker::wire::{self, MAX_BYTES, MAX_FILES};

/// Bytes of a head: a number, what the packet is, and whether its bytes are the first file.
const HEAD: usize = 16;
/// The name under which the system shows bytes that don't fit into a packet.
const ASIDE: &str = "loader-parcel";

/// A parcel that can be sent, again and again.
#[derive(Debug)]
pub(super) struct Packed {
    here: Vec<u8>,
    aside: Option<SharedBytes>,
    held: Vec<SharedBytes>,
}

impl Packed {
    /// Prepares a parcel; says why where it can't travel.
    pub(super) fn new(parcel: Parcel) -> Result<Self, String> {
        let Parcel { bytes, held } = parcel;
        let packed = if bytes.len() > MAX_BYTES - HEAD {
            Self { here: Vec::new(), aside: Some(aside(&bytes)?), held }
        } else {
            Self { here: bytes, aside: None, held }
        };
        let files = packed.files().len();
        if files > MAX_FILES {
            let why = format!(
                "{files} arrays and tables at once: at most {MAX_FILES} can be passed, so put several \
                 into one"
            );
            return Err(why);
        }
        Ok(packed)
    }

    /// The same for bytes that go as a file, whatever their size.
    pub(super) fn as_files(parcel: Parcel) -> Result<Self, String> {
        let Parcel { bytes, held } = parcel;
        Ok(Self { here: Vec::new(), aside: Some(aside(&bytes)?), held })
    }

    pub(super) fn files(&self) -> Vec<BorrowedFd<'_>> {
        self.aside.iter().chain(&self.held).map(AsFd::as_fd).collect()
    }

    /// Sends it, under that number and with what it is.
    pub(super) fn send(
        &self,
        channel: BorrowedFd<'_>,
        number: u64,
        what: u32,
        flags: SendFlags,
    ) -> io::Result<()> {
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&number.to_le_bytes());
        head[8..12].copy_from_slice(&what.to_le_bytes());
        head[12] = u8::from(self.aside.is_some());
        let bytes = [IoSlice::new(&head), IoSlice::new(&self.here)];
        wire::send_packet(channel, &bytes, &self.files(), flags)
    }
}

/// Bytes in memory of their own.
fn aside(bytes: &[u8]) -> Result<SharedBytes, String> {
    let copy = |to: &mut [u8]| {
        to.copy_from_slice(bytes);
        Ok(())
    };
    SharedBytes::in_memory::<MemoryError>(ASIDE, bytes.len(), copy).map_err(|e| e.to_string())
}

/// A packet that came.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) number: u64,
    pub(super) what: u32,
    /// Bytes and descriptors, or why they did not come along.
    pub(super) content: Result<(Bytes, Vec<OwnedFd>), String>,
}

/// Bytes, wherever they came.
#[derive(Debug)]
pub(super) enum Bytes {
    Here(Vec<u8>),
    Aside(Mmap),
}

impl Bytes {
    /// Those that [`Packed::as_files`] has sent.
    pub(super) fn of_file(file: OwnedFd) -> io::Result<Self> {
        map_sealed(&file.into()).map(Self::Aside)
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Here(bytes) => bytes,
            Self::Aside(map) => map,
        }
    }
}

/// Receives a packet; `None` where the other side has ended. The buffer has [`MAX_BYTES`].
pub(super) fn receive(
    channel: BorrowedFd<'_>,
    buffer: &mut [u8],
    flags: RecvFlags,
) -> io::Result<Option<Received>> {
    let Some(packet) = wire::receive_packet(channel, buffer, flags)? else { return Ok(None) };
    let Some((head, here)) = buffer[..packet.len].split_first_chunk::<HEAD>() else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a packet without a head"));
    };
    let [n @ .., a, b, c, d, is_aside, _, _, _] = *head;
    let mut files = packet.files;
    let content = if !packet.is_whole {
        let why = "some of the arrays and tables did not come along: this process may not open more \
                   files (ulimit -n)";
        Err(why.to_owned())
    } else if is_aside == 0 {
        Ok((Bytes::Here(here.to_vec()), files))
    } else if files.is_empty() {
        Err("what was too large for a packet did not come along".to_owned())
    } else {
        let file = files.remove(0);
        let mapped = Bytes::of_file(file).map(|bytes| (bytes, files));
        mapped.map_err(|e| format!("what was too large for a packet: {e}"))
    };
    let (number, what) = (u64::from_le_bytes(n), u32::from_le_bytes([a, b, c, d]));
    Ok(Some(Received { number, what, content }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::array::SharedArray;
    use crate::shared::parcel::{pack, unpack};

    fn sent_and_received(parcel: Parcel) -> Received {
        let (a, b) = wire::pair().unwrap();
        Packed::new(parcel).unwrap().send(a.as_fd(), 1 << 40, 7, SendFlags::empty()).unwrap();
        receive(b.as_fd(), &mut vec![0; MAX_BYTES], RecvFlags::DONTWAIT).unwrap().unwrap()
    }

    #[test]
    fn a_parcel_of_any_size_arrives() {
        let limit = MAX_BYTES - HEAD;
        for len in [0, 1, limit - 3, limit, limit + 1, 1 << 22] {
            let text = "x".repeat(len);
            let received = sent_and_received(pack(&text).unwrap());
            assert_eq!((received.number, received.what), (1 << 40, 7));
            let (bytes, files) = received.content.unwrap();
            assert!(unpack::<String>(&bytes, files).unwrap() == text, "{len} bytes");
        }
    }

    #[test]
    fn as_many_arrays_arrive_as_the_system_passes_and_more_are_an_error() {
        let arrays = |count: u32| {
            let array = |i| SharedArray::from_slice([1], &[i]).unwrap();
            (0..count).map(array).collect::<Vec<_>>()
        };
        let most = MAX_FILES as u32;
        let received = sent_and_received(pack(&arrays(most)).unwrap());
        let (bytes, files) = received.content.unwrap();
        let back: Vec<SharedArray> = unpack(&bytes, files).unwrap();
        for (i, array) in (0..most).zip(&back) {
            assert_eq!(array.as_slice::<u32>().unwrap(), [i]);
        }
        let error = Packed::new(pack(&arrays(most + 1)).unwrap()).unwrap_err();
        assert!(error.contains("254 arrays and tables at once: at most 253"), "{error}");
    }

    #[test]
    fn damaged_packets_are_errors() {
        let (a, b) = wire::pair().unwrap();
        let mut buffer = vec![0; MAX_BYTES];
        let mut answer = |bytes: &[u8]| {
            let bytes = [IoSlice::new(bytes)];
            wire::send_packet(a.as_fd(), &bytes, &[], SendFlags::empty()).unwrap();
            receive(b.as_fd(), &mut buffer, RecvFlags::DONTWAIT)
        };
        assert!(answer(&[1; HEAD - 1]).is_err());
        let lost = answer(&[1; HEAD]).unwrap().unwrap();
        assert!(lost.content.unwrap_err().contains("did not come along"));
        drop(a);
        assert!(receive(b.as_fd(), &mut buffer, RecvFlags::empty()).unwrap().is_none());
    }
}
