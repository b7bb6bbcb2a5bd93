//! The files of a device: opened here, or lent by somebody with more rights.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::sys;
use crate::{BusError, inherited_file};

/// How long a launcher may take to send.
const PATIENCE: Duration = Duration::from_secs(10);

/// `/dev/vfio/vfio` is number 196 of the devices of major number 10. Source: Linux
/// `include/linux/miscdevice.h`, `VFIO_MINOR`.
const CONTAINER: (u32, u32) = (10, 196);

/// Files of one device that a launcher opened, so that the program needs no rights of its own.
#[derive(Debug)]
pub enum LentFiles {
    /// `/dev/vfio/vfio` and `/dev/vfio/GROUP`.
    Group {
        /// The container. The group may be in it already.
        container: OwnedFd,
        /// The group.
        group: OwnedFd,
    },
    /// `/dev/iommu` and `/dev/vfio/devices/vfioN`.
    Device {
        /// The file of iommufd.
        iommufd: OwnedFd,
        /// The device's file, not bound yet.
        device: OwnedFd,
    },
}

impl LentFiles {
    /// Takes copies of two files that this process inherited, by their numbers: `/dev/vfio/vfio` or
    /// `/dev/iommu`, then the group's or the device's. The numbers themselves stay open.
    ///
    /// # Errors
    ///
    /// [`BusError::Os`] for a number that is no open file.
    pub fn inherited(first: RawFd, second: RawFd) -> Result<Self, BusError> {
        Self::sorted(inherited_file(first)?, inherited_file(second)?)
    }

    /// Asks a launcher: connects to its socket and takes the same two files, in the same order,
    /// out of one message (`SCM_RIGHTS`) with at least one byte.
    ///
    /// Only root and the user of this process are believed: whoever lends the files of a device
    /// decides what the driver maps and where interrupts come from.
    ///
    /// # Errors
    ///
    /// [`BusError::Os`]: nobody listens, or another user does, nothing comes for ten seconds, or
    /// not two files.
    pub fn receive(socket: &Path) -> Result<Self, BusError> {
        let refuse = |error: io::Error| {
            BusError::os(format!("taking a device's files from {}", socket.display()), error)
        };
        let stream = UnixStream::connect(socket).map_err(refuse)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(refuse)?;
        let sender = socket_peercred(&stream).map_err(|errno| refuse(errno.into()))?.uid;
        let own = rustix::process::geteuid();
        if !sender.is_root() && sender != own {
            let what = format!("user {sender} listens there, neither root nor user {own}");
            return Err(refuse(io::Error::new(io::ErrorKind::PermissionDenied, what)));
        }
        let files = files_of_message(stream.as_fd()).map_err(refuse)?;
        let count = files.len();
        let Ok([first, second]) = <[OwnedFd; 2]>::try_from(files) else {
            let what = format!("{count} files came; send the container's and the group's");
            return Err(refuse(io::Error::new(io::ErrorKind::InvalidData, what)));
        };
        Self::sorted(first, second)
    }

    fn sorted(first: OwnedFd, second: OwnedFd) -> Result<Self, BusError> {
        let status = rustix::fs::fstat(&first)
            .map_err(|errno| BusError::os("looking at a lent file", errno))?;
        let device = (rustix::fs::major(status.st_rdev), rustix::fs::minor(status.st_rdev));
        Ok(match device == CONTAINER {
            true => Self::Group { container: first, group: second },
            false => Self::Device { iommufd: first, device: second },
        })
    }
}

/// The files that come with the next message.
fn files_of_message(stream: BorrowedFd<'_>) -> io::Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 16];
    let mut parts = [io::IoSliceMut::new(&mut byte)];
    let got = recvmsg(stream, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    if got.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(ancillary
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        })
        .flatten()
        .collect())
}

/// Opens a file of VFIO.
pub(super) fn open(path: &Path) -> io::Result<OwnedFd> {
    std::fs::OpenOptions::new().read(true).write(true).open(path).map(Into::into)
}

/// Puts a group into a container, and opens one of its devices.
///
/// Each step that a launcher has done already is left out.
pub(super) fn device_of_group(
    container: RawFd,
    group: BorrowedFd<'_>,
    name: &str,
) -> Result<OwnedFd, BusError> {
    let step = |what: &str, way_out: &str| {
        let what = format!("{what} of device {name}{way_out}");
        move |error: io::Error| BusError::os(what.clone(), error)
    };
    let status = status_of(group, name)?;
    if !status.viable {
        let way_out = " (bind every device of the group to vfio-pci)";
        return Err(step("using the group", way_out)(io::Error::other("it is not viable")));
    }
    if !status.in_container {
        let set = sys::set_container(group, container);
        set.map_err(step("joining container and group", " (is the group another container's?)"))?;
    }
    if sys::iommu_info(container).is_err() {
        let way_out = " (load vfio_iommu_type1, look for \"no interrupt remapping\" in the log)";
        sys::set_iommu(container).map_err(step("choosing the IOMMU", way_out))?;
    }
    sys::group_device(group, name).map_err(step("opening the file", " (is it open already?)"))
}

fn status_of(group: BorrowedFd<'_>, name: &str) -> Result<sys::GroupStatus, BusError> {
    sys::group_status(group)
        .map_err(|error| BusError::os(format!("asking the group of device {name}"), error))
}

/// Whether a group has joined a container.
pub(super) fn is_in_container(group: BorrowedFd<'_>, name: &str) -> Result<bool, BusError> {
    Ok(status_of(group, name)?.in_container)
}

/// Whether an error says that a file is not there, or not for this user.
pub(super) fn is_out_of_reach(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    fn send(stream: &UnixStream, files: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(files.is_empty() || ancillary.push(SendAncillaryMessage::ScmRights(files)));
        let sent = sendmsg(stream, &[io::IoSlice::new(b"x")], &mut ancillary, SendFlags::empty());
        assert_eq!(sent, Ok(1));
    }

    #[test]
    fn inherited_numbers_are_copied() {
        use rustix::io::{FdFlags, fcntl_setfd};
        let [first, second] = [(); 2].map(|()| tempfile::tempfile().expect("a file"));
        for file in [&first, &second] {
            // Rust opens files so that they are closed on exec: a parent's would not be here.
            let refused = LentFiles::inherited(file.as_raw_fd(), file.as_raw_fd()).unwrap_err();
            assert!(refused.to_string().contains("this process opened it"), "{refused}");
            fcntl_setfd(file, FdFlags::empty()).expect("open");
        }
        let files = LentFiles::inherited(first.as_raw_fd(), second.as_raw_fd()).expect("open");
        // No file of VFIO's containers, so it must be one of iommufd.
        let LentFiles::Device { iommufd, device } = files else { panic!("{files:?}") };
        assert_ne!(iommufd.as_raw_fd(), first.as_raw_fd());
        assert_ne!(device.as_raw_fd(), second.as_raw_fd());
        for number in [-1, 1_000_000] {
            let refused = LentFiles::inherited(first.as_raw_fd(), number).unwrap_err().to_string();
            assert!(refused.starts_with(&format!("inherited file {number}: ")), "{refused}");
        }
    }

    /// Whoever made the socket may not be trusted with more than this process's own user.
    #[test]
    fn files_of_another_user_are_not_taken() {
        use rustix::thread::set_thread_res_uid;
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).expect("ours");
        let path = dir.path().join("launcher");
        let stranger = rustix::process::Uid::from_raw(65_534);
        let at = path.clone();
        // The system notes who listens; only this one thread becomes another user.
        let listener = std::thread::spawn(move || {
            set_thread_res_uid(stranger, stranger, stranger).ok()?;
            Some(UnixListener::bind(at).expect("a fresh path"))
        });
        let Some(_listener) = listener.join().expect("no panic") else {
            println!("skipped: only root can listen as another user");
            return;
        };
        let said = LentFiles::receive(&path).unwrap_err().to_string();
        assert!(said.contains("user 65534 listens there"), "{said}");
    }

    #[test]
    fn a_launcher_sends_two_files_and_no_other_number() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("launcher");
        assert!(LentFiles::receive(&path).is_err(), "nobody listens");
        let listener = UnixListener::bind(&path).expect("a fresh path");
        let file = tempfile::tempfile().expect("a file");
        for count in 0..4 {
            let taker = std::thread::spawn({
                let path = path.clone();
                move || LentFiles::receive(&path)
            });
            let (stream, _) = listener.accept().expect("a taker");
            send(&stream, &vec![file.as_fd(); count]);
            let taken = taker.join().expect("no panic");
            match count {
                2 => assert!(matches!(taken, Ok(LentFiles::Device { .. }))),
                _ => {
                    let said = taken.unwrap_err().to_string();
                    assert!(said.contains(&format!("{count} files came; send")), "{said}");
                }
            }
        }
        let taker = std::thread::spawn(move || LentFiles::receive(&path));
        drop(listener.accept().expect("a taker"));
        assert!(taker.join().expect("no panic").is_err(), "the launcher hung up");
    }
}
