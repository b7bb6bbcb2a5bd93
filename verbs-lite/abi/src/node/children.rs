//! [`Requests`]: what children of a fork ask of the process that opened the device.
//!
//! A child has its parent's objects in its memory, but not the thread that makes the device work,
//! and a model is but a copy there. The parent's kernel driver would do what a child asks of the
//! command file that it inherits; here the parent's thread does, and a pair of sockets leads to it.
//!
//! A request goes along with one end of another pair, to which the answer comes: so children, and
//! their threads, cannot take each other's. The thread's end is the parent's alone, for a child
//! closes its copy as soon as it is forked: whoever asks is told by the system when nobody can
//! answer any more, and waits for no parent that has ended.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, recvmsg, send, sendmsg,
    socketpair,
};

use crate::face::life::{self, Kept};
use crate::files;

/// Bytes of the longest request, and of the longest answer.
pub(crate) const MESSAGE_BYTES: usize = 32 << 10;

/// The way from children to the process that opened the device.
#[derive(Debug)]
pub(crate) struct Requests {
    /// Where children ask, and where the parent hears them.
    theirs: OwnedFd,
    ours: Kept<OwnedFd>,
}

/// Two ends of a way for whole messages.
fn ends() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

impl Requests {
    /// Makes the way.
    ///
    /// # Errors
    ///
    /// The system's, for want of files.
    pub(super) fn new() -> io::Result<Self> {
        let (theirs, ours) = ends()?;
        Ok(Self { theirs, ours: Kept::new(ours) })
    }

    /// Asks, in a child, and waits for the answer, whose first bytes come into `answer`; how many
    /// there are.
    ///
    /// # Errors
    ///
    /// The system's. Where nobody can answer any more, this is [`Errno::PIPE`].
    pub(crate) fn ask(&self, parts: &[&[u8]], answer: &mut [u8]) -> rustix::io::Result<usize> {
        match self.send_and_wait(parts, answer) {
            // The same, where requests were not heard.
            Ok(0) | Err(Errno::CONNRESET) => Err(Errno::PIPE),
            heard => heard,
        }
    }

    fn send_and_wait(&self, parts: &[&[u8]], answer: &mut [u8]) -> rustix::io::Result<usize> {
        let (here, there) = ends()?;
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        let files = [there.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&files));
        let parts: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
        retry_on_intr(|| sendmsg(&self.theirs, &parts, &mut control, SendFlags::NOSIGNAL))?;
        // The request has the only other end now: if it is dropped unheard, so is the wait.
        drop(there);
        let heard = retry_on_intr(|| recv(&here, &mut *answer, RecvFlags::empty()));
        heard.map(|(bytes, _)| bytes)
    }

    /// Answers what children have asked since: `answer` is given each request, and puts what is to
    /// be said into an empty buffer. A process that never forked does nothing, and one that nobody
    /// has asked only looks.
    pub(super) fn serve(&self, mut answer: impl FnMut(&[u8], &mut Vec<u8>)) {
        if !life::has_children() || files::is_readable(self.ours.as_fd()) != Ok(true) {
            return;
        }
        let mut request = vec![0; MESSAGE_BYTES];
        while let Some((bytes, file)) = self.next(&mut request) {
            let mut said = Vec::new();
            answer(&request[..bytes], &mut said);
            // One that has ended meanwhile wants no answer.
            let _ = send(&file, &said, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }

    /// The next request that says where its answer is to go.
    fn next(&self, request: &mut [u8]) -> Option<(usize, OwnedFd)> {
        loop {
            let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut room);
            let parts = &mut [IoSliceMut::new(request)];
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let message = recvmsg(&*self.ours, parts, &mut control, flags).ok()?;
            let file = control.drain().find_map(|part| match part {
                RecvAncillaryMessage::ScmRights(files) => files.last(),
                _ => None,
            });
            if let Some(file) = file {
                return Some((message.bytes, file));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_who_asks_gets_its_own_answer() {
        let requests = Requests::new().unwrap();
        life::note_child();
        thread::scope(|scope| {
            let ask = |name: u8| {
                for round in 0..100 {
                    let mut answer = [0; 8];
                    let bytes = requests.ask(&[&[name], &[round]], &mut answer).unwrap();
                    assert_eq!(answer[..bytes], [name, round, 7]);
                }
            };
            let asking: Vec<_> = (0..4).map(|name| scope.spawn(move || ask(name))).collect();
            while asking.iter().any(|thread| !thread.is_finished()) {
                requests.serve(|request, said| said.extend(request.iter().chain(&[7])));
                thread::sleep(Duration::from_micros(100));
            }
        });
    }

    #[test]
    fn who_asks_nobody_is_told_so() {
        let ((theirs, heard), (unused, _)) = (ends().unwrap(), ends().unwrap());
        let requests = Requests { theirs, ours: Kept::new(unused) };
        thread::scope(|scope| {
            let asked = scope.spawn(|| requests.ask(&[&[1]], &mut [0; 8]));
            thread::sleep(Duration::from_millis(20));
            assert!(!asked.is_finished(), "somebody may still answer");
            drop(heard);
            assert_eq!(asked.join().unwrap(), Err(Errno::PIPE));
        });
        assert_eq!(requests.ask(&[&[1]], &mut [0; 8]), Err(Errno::PIPE));
    }
}
