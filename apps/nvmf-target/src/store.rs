//! What is behind namespaces, for whoever offers them: files opened, sizes checked.

use std::fs;
use std::io::{ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::fs::{AtFlags, FlockOperation, OFlags, StatxFlags, flock, statx};

use crate::config::{NamespaceConfig, Store, length};
use crate::peer::Peer;
use crate::transport::Ready;
use crate::whole::{Locks, Whole};

/// What is behind a namespace.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) store: Store,
    /// Bytes that it can grow to: of RAM, what was allocated.
    pub(crate) capacity: u64,
    /// Whether a block of it is read and written as one, and data are copied for that.
    pub(crate) is_atomic: bool,
    /// The open file, which holds the lock on it.
    pub(crate) file: Option<fs::File>,
    /// The other device's memory.
    pub(crate) _peer: Option<Arc<Peer>>,
}

/// What is behind a namespace that is about to be offered.
pub(crate) struct Prepared {
    pub(crate) kept: Kept,
    pub(crate) len_bytes: u64,
    pub(crate) block_shift: u8,
    /// One for each core.
    pub(crate) ready: Vec<Ready>,
    /// The file, if it was made for this.
    pub(crate) new_file: Option<NewFile>,
}

/// A file that was made for a namespace: it goes again, unless the namespace is offered.
#[derive(Debug)]
#[must_use = "it is removed"]
pub(crate) struct NewFile(Option<PathBuf>);

impl NewFile {
    /// Lets it stay.
    pub(crate) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0
            && let Err(error) = fs::remove_file(path)
        {
            tracing::warn!(%error, path = %path.display(), "a new file of no namespace stays");
        }
    }
}

/// Memory of the port for each core, as such whose blocks are read and written as one.
pub(crate) fn atomic(ready: Vec<Ready>, block_shift: u8) -> Vec<Ready> {
    let locks = Locks::default();
    let one = |it| match it {
        Ready::Direct(memory) => Ready::Whole(Whole::new(memory, block_shift, &locks)),
        other => other,
    };
    ready.into_iter().map(one).collect()
}

/// The bytes of a drive that are offered: those that were asked for, else all of them.
pub(crate) fn drive_length(
    config: &NamespaceConfig,
    namespace: &ferrocx_nvme::Namespace,
) -> Result<u64> {
    let has = namespace.len_bytes();
    let bytes = config.len_bytes.unwrap_or(has);
    ensure!(bytes <= has, "size is {bytes}, and it has {has} bytes; make size smaller");
    length(bytes, 1 << namespace.block_shift, &config.store)
}

/// Makes a file as long as a namespace is to be.
pub(crate) fn grow(file: &fs::File, bytes: u64, is_read_only: bool) -> Result<()> {
    let mut file = file;
    let len = file.seek(SeekFrom::End(0))?;
    if len >= bytes {
        return Ok(());
    }
    let can_grow = !is_read_only && file.metadata()?.is_file();
    ensure!(can_grow, "it has {len} bytes and cannot grow, and size is {bytes}; make size smaller");
    Ok(file.set_len(bytes)?)
}

/// What the system says of `O_DIRECT` where a file system lacks it. Source: `errno.h`.
const INVALID: i32 = 22;

/// What it says of a block device that is mounted, or part of another. Source: `errno.h`.
const BUSY: i32 = 16;

/// Checks of an open file what [`check_pieces`] does.
pub(crate) fn check_direct(file: &fs::File, block_bytes: u32) -> Result<()> {
    // A system older than Linux 6.1 does not say.
    let found = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    check_pieces(found.map_or(0, |found| found.stx_dio_offset_align), block_bytes)
}

/// Checks that what goes around the page cache can be read and written by the block: in pieces of
/// `piece` bytes, 0 where the system does not say.
fn check_pieces(piece: u32, block_bytes: u32) -> Result<()> {
    ensure!(
        piece <= block_bytes,
        "it is read and written {piece} bytes at a time, and block_bytes is {block_bytes}; give \
         block_bytes = {piece}, or direct = false"
    );
    Ok(())
}

/// What a thing is that can be behind no namespace, for messages. It is told before it is opened:
/// that may wait for ever, as for the other end of a pipe.
pub(crate) fn wrong_kind(kind: &fs::FileType) -> Option<&'static str> {
    match kind {
        kind if kind.is_file() || kind.is_block_device() => None,
        kind if kind.is_dir() => Some("a folder"),
        _ => Some("a pipe, a socket or a character device"),
    }
}

/// A file behind a namespace.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) file: fs::File,
    /// Bytes of its whole blocks, or those that were asked for.
    pub(crate) len_bytes: u64,
    /// It, if it was not there before.
    pub(crate) new_file: Option<NewFile>,
}

/// Opens a file or a block device, for this process only. One that is not there is made, if its
/// length was said.
pub(crate) fn open_file(path: &Path, is_direct: bool, config: &NamespaceConfig) -> Result<Opened> {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(!config.read_only);
    let mut flags = OFlags::empty();
    flags.set(OFlags::DIRECT, is_direct);
    let found = fs::metadata(path).map(|it| it.file_type());
    if let Some(what) = found.as_ref().ok().and_then(wrong_kind) {
        bail!("it is {what}; give a file or a block device");
    }
    // One that a file system has, or another program alone.
    let is_device = found.as_ref().is_ok_and(FileTypeExt::is_block_device);
    let is_new = found.is_err_and(|error| error.kind() == ErrorKind::NotFound)
        && config.len_bytes.is_some()
        && !config.read_only;
    options.create(is_new);
    flags.set(OFlags::EXCL, is_device && !config.read_only);
    options.custom_flags(flags.bits() as i32);
    let mut file = options.open(path).map_err(|error| match error.raw_os_error() {
        Some(INVALID) if is_direct => {
            // Which the system finds out once it has made it.
            if is_new {
                let _ = fs::remove_file(path);
            }
            anyhow!("its file system has no O_DIRECT; give direct = false")
        }
        Some(BUSY) => anyhow!("it is mounted, or part of another device; take it out of there"),
        _ => error.into(),
    })?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).context("somebody else has it")?;
    // Not before it is ours. Where a link leads, if it is one.
    let made = || fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let new_file = is_new.then(|| NewFile(Some(made())));
    if is_direct {
        check_direct(&file, 1 << config.block_shift)?;
    }
    if let Some(wanted) = config.len_bytes {
        grow(&file, wanted, config.read_only)?;
    }
    let len = config.len_bytes.map_or_else(|| file.seek(SeekFrom::End(0)), Ok)?;
    // What is behind the last whole block is nobody's.
    let len = len >> config.block_shift << config.block_shift;
    let len_bytes = length(len, 1 << config.block_shift, &config.store)?;
    Ok(Opened { file, len_bytes, new_file })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;
    use crate::backend::{Backend, Outside};
    use crate::config::Config;
    use crate::doctor;
    use ferrocx_app_common::host::Host;

    /// Nobody writes to the pipe, so whoever opens it to read waits.
    #[test]
    fn a_pipe_is_refused_before_it_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let text = format!(
            "address = \"192.0.2.1/24\"\n[[subsystem]]\nnqn = \"nqn.2014-08.a:b\"\n\
             allow_any_host = true\n[[subsystem.namespace]]\nbackend = \"file\"\n\
             path = \"{}\"\nread_only = true\ndirect = false",
            path.display()
        );
        let (done, wait) = channel();
        std::thread::spawn(move || {
            let config = Config::parse(&text).unwrap();
            let machine = Host::read();
            let namespace = &config.subsystems[0].namespaces[0];
            done.send(open_file(&path, false, namespace).unwrap_err().to_string()).unwrap();
            let found = doctor::examine(&config, &machine);
            done.send(found.iter().map(ToString::to_string).collect()).unwrap();
        });
        let expected = "a pipe, a socket or a character device; give a file or a block device";
        for of in ["a namespace", "the doctor"] {
            let said = wait.recv_timeout(Duration::from_secs(10));
            assert!(said.as_ref().is_ok_and(|it| it.contains(expected)), "{of}: {said:?}");
        }
    }

    #[test]
    fn cores_share_the_locks_of_a_namespace_and_no_others() {
        let memory = || Ready::Direct(Backend::Outside(Outside::Whole));
        let locks = |ready: Vec<Ready>| -> Vec<Locks> {
            let of = |it| if let Ready::Whole(it) = it { Some(it.locks) } else { None };
            ready.into_iter().filter_map(of).collect()
        };
        let one = locks(atomic(vec![memory(), memory(), memory()], 9));
        let other = locks(atomic(vec![memory()], 9));
        let is_same = |it: &Locks| Arc::ptr_eq(&it.0, &one[0].0);
        assert_eq!((one.len(), other.len()), (3, 1));
        assert!(one.iter().all(is_same) && !other.iter().any(is_same));
    }

    #[test]
    fn blocks_are_no_shorter_than_what_is_read_at_a_time() {
        for (piece, block) in [(0, 512), (1, 512), (512, 512), (512, 4096), (4096, 4096)] {
            check_pieces(piece, block).unwrap();
        }
        assert_eq!(
            check_pieces(4096, 512).unwrap_err().to_string(),
            "it is read and written 4096 bytes at a time, and block_bytes is 512; give \
             block_bytes = 4096, or direct = false"
        );
    }
}
