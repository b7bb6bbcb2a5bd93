//! [`Keeper`]: the folder of reservations that outlive the target, and the thread that writes
//! there, so that no core waits for a disk.
//!
//! A namespace's reservation is a file of its own, named by the namespace's identifier. It is
//! written beside its place, brought to disk, moved to its place, and the folder is brought to
//! disk: whenever the power fails, the file is the old one or the new one, whole. One target at a
//! time has a folder.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::fs::{Access, FlockOperation, OFlags, access, flock};
use uuid::Uuid;

use crate::controller::reservation::{MAX_TEXT_BYTES, Reservation, Save};

/// What files end with whose writing has not come to its end.
const UNFINISHED: &str = ".new";

/// What is said of a folder that cannot be written.
const WRITABLE: &str = "let the target write there";

/// What the thread is to do, in order.
enum Job {
    Save(Save),
    Load([u8; 16], SyncSender<Result<Option<Reservation>>>),
}

/// The numbers of saves that have ended, and whether they are on disk.
type Done = Vec<(u64, bool)>;

/// A folder of reservations, and the thread that writes there. Dropping it brings to disk what it
/// was given before.
#[derive(Debug)]
pub struct Keeper {
    jobs: Option<Sender<Job>>,
    done: Arc<Mutex<Done>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Takes a folder, which must be there, for this target alone.
    ///
    /// # Errors
    ///
    /// One sentence: it is no folder, cannot be written, or is another target's.
    pub fn open(path: &Path) -> Result<Self> {
        let folder = Folder::open(path)?;
        let (jobs, todo) = channel();
        let done = Arc::new(Mutex::new(Done::new()));
        let its = Arc::clone(&done);
        let builder = thread::Builder::new().name("nvmf-keeper".into());
        let thread = Some(builder.spawn(move || work(&folder, &todo, &its))?);
        Ok(Self { jobs: Some(jobs), done, thread })
    }

    /// Brings a change to disk, behind those that were given before.
    pub(crate) fn save(&self, save: Save) {
        let number = save.number;
        // The thread takes what comes until this is dropped.
        let is_taken = self.jobs.as_ref().is_some_and(|jobs| jobs.send(Job::Save(save)).is_ok());
        if !is_taken {
            lock(&self.done).push((number, false));
        }
    }

    /// The changes that have ended since it was asked last, and whether they are on disk.
    pub(crate) fn take_done(&self) -> Done {
        std::mem::take(&mut lock(&self.done))
    }

    /// What is kept of a namespace, behind all changes that were given before. Waits for the disk.
    ///
    /// # Errors
    ///
    /// One sentence about a file that cannot be read, is damaged, or is another program's.
    pub fn load(&self, namespace: [u8; 16]) -> Result<Option<Reservation>> {
        let (answer, wait) = sync_channel(1);
        let ended = || anyhow!("the thread that keeps reservations has ended; restart the target");
        let jobs = self.jobs.as_ref().ok_or_else(ended)?;
        jobs.send(Job::Load(namespace, answer)).map_err(|_| ended())?;
        wait.recv().map_err(|_| ended())?
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(done: &Mutex<Done>) -> MutexGuard<'_, Done> {
    done.lock().unwrap_or_else(PoisonError::into_inner)
}

fn work(folder: &Folder, todo: &Receiver<Job>, done: &Mutex<Done>) {
    for job in todo {
        match job {
            Job::Save(Save { number, uuid, text }) => {
                let saved = folder.put(uuid, text.as_deref(), |_| Ok(()));
                if let Err(error) = &saved {
                    let path = folder.file(uuid);
                    tracing::error!(path = %path.display(), %error, "a reservation was not kept");
                }
                lock(done).push((number, saved.is_ok()));
            }
            Job::Load(uuid, answer) => drop(answer.send(folder.get(uuid))),
        }
    }
}

/// Steps of a change, as they are about to be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Write,
    Sync,
    Move,
    SyncFolder,
}

/// The folder, and the lock on it.
#[derive(Debug)]
struct Folder {
    path: PathBuf,
    folder: File,
}

/// Looks at the folder of a target that does not run, and at what is kept there of namespaces; of
/// how many there is something. Changes nothing.
///
/// # Errors
///
/// What a target would refuse to start with.
pub fn check(path: &Path, namespaces: impl Iterator<Item = [u8; 16]>) -> Result<usize> {
    let folder = Folder::take(path)?;
    let place = || format!("reservations `{}`", path.display());
    access(path, Access::WRITE_OK).context(WRITABLE).with_context(place)?;
    let mut count = 0;
    for namespace in namespaces {
        count += usize::from(folder.get(namespace)?.is_some());
    }
    Ok(count)
}

impl Folder {
    /// Takes a folder to write there.
    fn open(path: &Path) -> Result<Self> {
        let it = Self::take(path)?;
        let place = || format!("reservations `{}`", path.display());
        it.clean().context(WRITABLE).with_context(place)?;
        Ok(it)
    }

    fn take(path: &Path) -> Result<Self> {
        let place = || format!("reservations `{}`", path.display());
        let kind = fs::metadata(path).context("make that folder").with_context(place)?;
        ensure!(kind.is_dir(), "{} is no folder; give one", place());
        let folder = File::open(path).with_context(place)?;
        let is_free = flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok();
        ensure!(is_free, "{} is another target's; give each a folder of its own", place());
        Ok(Self { path: path.into(), folder })
    }

    /// Takes away what was being written when an earlier target ended, and sees whether it can
    /// write.
    fn clean(&self) -> io::Result<()> {
        drop(self.create(Uuid::nil())?);
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|it| it.to_str()).unwrap_or("");
            let of = name.strip_suffix(UNFINISHED);
            if of.is_some_and(|of| Uuid::parse_str(of).is_ok()) {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    /// Where the reservation of a namespace is.
    fn file(&self, namespace: [u8; 16]) -> PathBuf {
        self.path.join(Uuid::from_bytes(namespace).to_string())
    }

    fn unfinished(&self, namespace: Uuid) -> PathBuf {
        self.path.join(format!("{namespace}{UNFINISHED}"))
    }

    /// A file to be written. Keys of hosts are nobody else's business.
    fn create(&self, namespace: Uuid) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        options.custom_flags(OFlags::NOFOLLOW.bits() as i32);
        options.open(self.unfinished(namespace))
    }

    /// Brings a text to disk, or takes it away. `before` is told of each step before it is taken,
    /// and may end it there, as a power failure does.
    fn put(
        &self,
        namespace: [u8; 16],
        text: Option<&str>,
        mut before: impl FnMut(Step) -> io::Result<()>,
    ) -> io::Result<()> {
        let (uuid, file) = (Uuid::from_bytes(namespace), self.file(namespace));
        if let Some(text) = text {
            before(Step::Write)?;
            let mut new = self.create(uuid)?;
            new.write_all(text.as_bytes())?;
            before(Step::Sync)?;
            new.sync_all()?;
            before(Step::Move)?;
            fs::rename(self.unfinished(uuid), file)?;
        } else {
            before(Step::Move)?;
            match fs::remove_file(file) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        before(Step::SyncFolder)?;
        self.folder.sync_all()
    }

    /// What is kept of a namespace.
    fn get(&self, namespace: [u8; 16]) -> Result<Option<Reservation>> {
        let path = self.file(namespace);
        let place = || format!("its reservation in {}", path.display());
        let mut options = OpenOptions::new();
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        options.read(true).custom_flags(flags.bits() as i32);
        let file = match options.open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.with_context(place)?,
        };
        let way_out = "take it away, and hosts register again";
        ensure!(file.metadata()?.is_file(), "{} is no file; {way_out}", place());
        let mut bytes = Vec::new();
        file.take(MAX_TEXT_BYTES + 1).read_to_end(&mut bytes).with_context(place)?;
        let is_short = bytes.len() as u64 <= MAX_TEXT_BYTES;
        ensure!(is_short, "{} has more than {MAX_TEXT_BYTES} bytes; {way_out}", place());
        let text = String::from_utf8_lossy(&bytes);
        let kept = Reservation::from_text(&text, namespace);
        kept.map(Some).map_err(|why| anyhow!("{}: {why}; {way_out}", place()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::reservation::HostId;

    const SPACE: [u8; 16] = [7; 16];
    const OTHER: [u8; 16] = [8; 16];
    const NAME: &str = "07070707-0707-0707-0707-070707070707";

    /// A reservation that a host with this key has.
    fn reservation(key: u64) -> Reservation {
        let mut it = Reservation::default();
        it.register(&HostId::nameless([1; 16]), 3 << 30, (0, key)).unwrap();
        it
    }

    fn put(folder: &Folder, key: u64) {
        folder.put(SPACE, Some(&reservation(key).text(SPACE)), |_| Ok(())).unwrap();
    }

    /// What a target finds that starts now.
    fn found(path: &Path) -> Option<Reservation> {
        let folder = Folder::open(path).unwrap();
        let left: Vec<_> = fs::read_dir(path).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| name == NAME), "{left:?}");
        folder.get(SPACE).unwrap()
    }

    #[test]
    fn whenever_a_target_is_killed_the_file_is_the_old_one_or_the_new_one() {
        use Step::*;
        for has_old in [false, true] {
            for (is_text, step, is_new) in [
                (true, Write, false),
                (true, Sync, false),
                (true, Move, false),
                (true, SyncFolder, true),
                (false, Move, false),
                (false, SyncFolder, true),
            ] {
                let dir = tempfile::tempdir().unwrap();
                let folder = Folder::open(dir.path()).unwrap();
                if has_old {
                    put(&folder, 1);
                }
                let text = is_text.then(|| reservation(2).text(SPACE));
                let mut reached = false;
                let killed = folder.put(SPACE, text.as_deref(), |next| {
                    reached |= next == step;
                    if reached { Err(io::Error::other("killed")) } else { Ok(()) }
                });
                assert!(killed.is_err() && reached, "{step:?}");
                if step == Move && is_text {
                    // Half of it had reached the disk.
                    let new = folder.unfinished(Uuid::from_bytes(SPACE));
                    let len = fs::metadata(&new).unwrap().len();
                    OpenOptions::new().write(true).open(new).unwrap().set_len(len / 2).unwrap();
                }
                drop(folder);
                let old = has_old.then(|| reservation(1));
                let new = is_text.then(|| reservation(2));
                let expected = if is_new { new } else { old };
                assert_eq!(found(dir.path()), expected, "{step:?}, {has_old}");
            }
        }
    }

    #[test]
    fn changes_and_questions_are_carried_out_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = Keeper::open(dir.path()).unwrap();
        let text = |key| Some(reservation(key).text(SPACE));
        for number in 1..=50 {
            keeper.save(Save { number, uuid: SPACE, text: text(number) });
        }
        assert_eq!(keeper.load(SPACE).unwrap(), Some(reservation(50)));
        assert_eq!(keeper.load(OTHER).unwrap(), None);
        let all: Vec<(u64, bool)> = (1..=50).map(|number| (number, true)).collect();
        assert_eq!(keeper.take_done(), all);
        keeper.save(Save { number: 51, uuid: SPACE, text: None });
        assert_eq!(keeper.load(SPACE).unwrap(), None);
        // Whoever goes leaves what it was given on disk.
        keeper.save(Save { number: 52, uuid: SPACE, text: text(52) });
        drop(keeper);
        assert_eq!(found(dir.path()), Some(reservation(52)));
        let mode = fs::metadata(dir.path().join(NAME)).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::mode(&mode) & 0o777, 0o600);
    }

    #[test]
    fn what_cannot_be_written_is_said_and_leaves_the_old_one() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = Keeper::open(dir.path()).unwrap();
        keeper.save(Save { number: 1, uuid: SPACE, text: Some(reservation(1).text(SPACE)) });
        assert_eq!(keeper.load(SPACE).unwrap(), Some(reservation(1)));
        // A folder stands where the new one is to be written.
        fs::create_dir(dir.path().join(format!("{NAME}.new"))).unwrap();
        keeper.save(Save { number: 2, uuid: SPACE, text: Some(reservation(2).text(SPACE)) });
        assert_eq!(keeper.load(SPACE).unwrap(), Some(reservation(1)));
        assert_eq!(keeper.take_done(), [(1, true), (2, false)]);
    }

    #[test]
    fn folders_and_files_that_are_not_right_are_refused_by_one_sentence() {
        let dir = tempfile::tempdir().unwrap();
        let why = |path: &Path| format!("{:#}", Folder::open(path).unwrap_err());
        let none = dir.path().join("none");
        assert_eq!(
            why(&none),
            format!(
                "reservations `{}`: make that folder: No such file or directory (os error 2)",
                none.display()
            )
        );
        fs::write(&none, "").unwrap();
        assert_eq!(why(&none), format!("reservations `{}` is no folder; give one", none.display()));
        let folder = Folder::open(dir.path()).unwrap();
        assert!(why(dir.path()).ends_with("is another target's; give each a folder of its own"));
        let file = dir.path().join(NAME);
        drop(folder);
        assert_eq!(check(dir.path(), [SPACE, OTHER].into_iter()).unwrap(), 0);
        let folder = Folder::open(dir.path()).unwrap();
        put(&folder, 1);
        drop(folder);
        assert_eq!(check(dir.path(), [SPACE, OTHER].into_iter()).unwrap(), 1);
        let folder = Folder::open(dir.path()).unwrap();
        let end = |kept: Result<Option<Reservation>>| {
            let text = format!("{:#}", kept.unwrap_err());
            let place = format!("its reservation in {}", file.display());
            text.strip_prefix(&place).expect(&text).to_owned()
        };
        fs::write(&file, "{}").unwrap();
        let way_out = "take it away, and hosts register again";
        let foreign = format!(": it is no reservation of ours; {way_out}");
        assert_eq!(end(folder.get(SPACE)), foreign);
        fs::write(&file, [0xff; 100]).unwrap();
        assert_eq!(end(folder.get(SPACE)), foreign);
        fs::write(&file, vec![b' '; MAX_TEXT_BYTES as usize + 1]).unwrap();
        assert_eq!(end(folder.get(SPACE)), format!(" has more than 16384 bytes; {way_out}"));
        let text = reservation(1).text(SPACE);
        fs::write(&file, &text[..text.len() - 20]).unwrap();
        assert_eq!(end(folder.get(SPACE)), format!(": it is damaged; {way_out}"));
        fs::write(&file, reservation(1).text(OTHER)).unwrap();
        assert!(end(folder.get(SPACE)).starts_with(": it is of namespace `08080808-"));
        // A link could be to what others may change.
        fs::rename(&file, &none).unwrap();
        std::os::unix::fs::symlink(&none, &file).unwrap();
        assert!(folder.get(SPACE).is_err());
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert_eq!(end(folder.get(SPACE)), format!(" is no file; {way_out}"));
    }
}
