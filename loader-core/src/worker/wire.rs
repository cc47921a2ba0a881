//! Messages between the loader, the fork server and the workers: one packet each, JSON and
//! descriptors. JSON, because transforms and datasets describe themselves in it already, and a job
//! is small either way.

use std::io;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes of a packet at most.
pub(super) const MAX_BYTES: usize = 64 << 10;
/// Descriptors that go with one at most: the system's limit.
pub(super) const MAX_FILES: usize = 253;

/// Two connected ends. Packets keep their borders, and the end of one side is seen by the other.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Sends a message, whole or not at all.
pub(super) fn send<T: Serialize>(
    socket: BorrowedFd<'_>,
    message: &T,
    files: &[BorrowedFd<'_>],
) -> io::Result<()> {
    send_with(socket, message, files, SendFlags::empty())
}

/// The same where that need not be waited for. False where it would have to be.
pub(super) fn send_now<T: Serialize>(
    socket: BorrowedFd<'_>,
    message: &T,
    files: &[BorrowedFd<'_>],
) -> io::Result<bool> {
    match send_with(socket, message, files, SendFlags::DONTWAIT) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        sent => sent.map(|()| true),
    }
}

fn send_with<T: Serialize>(
    socket: BorrowedFd<'_>,
    message: &T,
    files: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > MAX_BYTES {
        return Err(too_much("bytes", bytes.len(), MAX_BYTES));
    }
    send_packet(socket, &[IoSlice::new(&bytes)], files, flags)
}

fn too_much(what: &str, found: usize, max: usize) -> io::Error {
    let text = format!("a message of {found} {what}: at most {max} fit");
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// Sends a packet of those bytes, at most [`MAX_BYTES`], and files.
pub(super) fn send_packet(
    socket: BorrowedFd<'_>,
    bytes: &[IoSlice<'_>],
    files: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    if files.len() > MAX_FILES {
        return Err(too_much("open files", files.len(), MAX_FILES));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(files));
    }
    loop {
        match sendmsg(socket, bytes, &mut ancillary, flags | SendFlags::NOSIGNAL) {
            Err(rustix::io::Errno::INTR) => {}
            sent => return Ok(sent.map(drop)?),
        }
    }
}

/// Waits for a message. `None` where the other side has ended.
pub(super) fn receive<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MAX_BYTES];
    match receive_packet(socket, &mut bytes, RecvFlags::empty())? {
        None => Ok(None),
        // Mostly because this process may not open as many files.
        Some(packet) if !packet.is_whole => {
            Err(io::Error::other("a message came without all of its bytes or open files"))
        }
        Some(packet) => Ok(Some((serde_json::from_slice(&bytes[..packet.len])?, packet.files))),
    }
}

/// What came in one packet, beside its bytes.
pub(super) struct Packet {
    /// Bytes of it.
    pub(super) len: usize,
    pub(super) files: Vec<OwnedFd>,
    /// False where bytes or files are missing.
    pub(super) is_whole: bool,
}

/// Receives a packet into a buffer of [`MAX_BYTES`]. `None` where the other side has ended.
pub(super) fn receive_packet(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    flags: RecvFlags,
) -> io::Result<Option<Packet>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        match recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut ancillary, flags) {
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CONNRESET) => return Ok(None),
            received => break received?,
        }
    };
    let mut files = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            files.extend(fds);
        }
    }
    let is_whole = !received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    Ok((received.bytes > 0).then_some(Packet { len: received.bytes, files, is_whole }))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Seek, Write};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_message_arrives_with_its_files() {
        let (a, b) = pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"hello").unwrap();
        send(a.as_fd(), &("job", 7), &[file.as_fd(), a.as_fd()]).unwrap();
        let (message, files) = receive::<(String, u32)>(b.as_fd()).unwrap().unwrap();
        assert_eq!((message.0.as_str(), message.1, files.len()), ("job", 7, 2));
        let mut same = File::from(files.into_iter().next().unwrap());
        same.rewind().unwrap();
        let mut text = String::new();
        same.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
    }

    #[test]
    fn the_other_sides_end_is_told() {
        let (a, b) = pair().unwrap();
        drop(a);
        assert!(receive::<u32>(b.as_fd()).unwrap().is_none());
        assert!(send(b.as_fd(), &1, &[]).is_err());
    }

    #[test]
    fn what_does_not_fit_is_an_error_with_both_sides() {
        let (a, _b) = pair().unwrap();
        let error = send(a.as_fd(), &"x".repeat(MAX_BYTES), &[]).unwrap_err();
        assert!(error.to_string().contains("65538 bytes: at most 65536"), "{error}");
    }
}
