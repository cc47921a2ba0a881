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
/// Descriptors that go with one at most; the system's limit is 253.
pub(super) const MAX_FILES: usize = 128;

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
    let bytes = serde_json::to_vec(message)?;
    let too_much = |what, found: usize, max: usize| {
        let text = format!("a message of {found} {what}: at most {max} fit");
        io::Error::new(io::ErrorKind::InvalidInput, text)
    };
    if bytes.len() > MAX_BYTES {
        return Err(too_much("bytes", bytes.len(), MAX_BYTES));
    }
    if files.len() > MAX_FILES {
        return Err(too_much("open files", files.len(), MAX_FILES));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(files));
    }
    loop {
        match sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
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
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let flags = RecvFlags::CMSG_CLOEXEC;
        match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags) {
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
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        // Mostly because this process may not open as many files.
        return Err(io::Error::other("a message came without all of its bytes or open files"));
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    Ok(Some((serde_json::from_slice(&bytes[..received.bytes])?, files)))
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
