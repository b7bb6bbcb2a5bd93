//! A file by io_uring, from and to memory of a port of the model.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use ferrocx::verbs::{Access, Memory, Mr};
use ferrocx::{Port, RegionConfig};
use ferrocx_uring::{Done, Request, Ring, TABLE_FILES};

fn memory(port: &Port) -> (Arc<Memory>, Mr) {
    let context = port.rdma().unwrap();
    let config = RegionConfig { len_bytes: 65536, ..RegionConfig::default() };
    let memory = Memory::alloc(&context, &config).unwrap();
    let pd = context.alloc_pd().unwrap();
    let mr = pd.reg_mr(&memory, 0..65536, Access::LOCAL_WRITE).unwrap();
    (memory, mr)
}

/// A ring for four requests; `None`, and it is said, where there is no io_uring.
fn ring() -> Option<Ring> {
    Ring::new(4).inspect_err(|error| println!("skipped: no io_uring here: {error}")).ok()
}

/// Waits for the next request that ends.
fn wait(ring: &mut Ring) -> Done {
    loop {
        ring.submit();
        if let Some(done) = ring.poll() {
            return done;
        }
        std::thread::yield_now();
    }
}

#[test]
fn bytes_go_to_the_file_and_come_back() {
    let port = Port::open("model:net=uring").unwrap();
    let (_, mr) = memory(&port);
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[1; 8192]).unwrap();
    let Some(mut ring) = ring() else { return };
    let seen = file.try_clone().unwrap();
    let id = ring.add(file);
    let mut from = mr.buf(0..4096).unwrap();
    from.copy_in(0, &[7; 4096]).unwrap();
    ring.push(1, id, Request::Write { from, offset: 4096, is_durable: true }).unwrap();
    let done = wait(&mut ring);
    assert!(done.token == 1 && done.result.is_ok() && done.buf.is_some());
    // A file that is taken away while a request is under way is there until that has ended.
    let mut other = tempfile::tempfile().unwrap();
    other.write_all(&[9; 4096]).unwrap();
    let leaving = ring.add(other);
    ring.push(9, leaving, Request::Read { to: mr.buf(0..4096).unwrap(), offset: 0 }).unwrap();
    ring.remove(leaving);
    assert!(ring.push(10, leaving, Request::Flush).is_err());
    let done = wait(&mut ring);
    assert!(done.token == 9 && done.result.is_ok());
    assert_eq!(done.buf.unwrap().to_vec(), [9; 4096]);
    assert!(ring.push(10, leaving, Request::Flush).is_err());
    assert_eq!(ring.add(tempfile::tempfile().unwrap()), leaving, "the place is free");
    let mut bytes = [0; 8192];
    seen.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!((bytes[4095], bytes[4096], bytes[8191]), (1, 7, 7));
    ring.push(2, id, Request::Flush).unwrap();
    assert!(wait(&mut ring).result.is_ok());
    let to = mr.buf(4096..12288).unwrap();
    ring.push(3, id, Request::Read { to, offset: 0 }).unwrap();
    assert_eq!(wait(&mut ring).buf.unwrap().to_vec(), bytes);
    // Past the end of the file.
    let to = mr.buf(0..4096).unwrap();
    ring.push(4, id, Request::Read { to, offset: 6000 }).unwrap();
    assert!(wait(&mut ring).result.is_err());
    // Where the file system cannot, it says so.
    let (offset, len) = (0, 4096);
    for request in [Request::Punch { offset, len }, Request::Zero { offset, len }] {
        ring.push(5, id, request).unwrap();
        if wait(&mut ring).result.is_ok() {
            seen.read_exact_at(&mut bytes, 0).unwrap();
            assert_eq!((bytes[0], bytes[4095], bytes[4096]), (0, 0, 7));
        }
    }
    // Every place taken; and a ring that goes waits for what is under way.
    for token in 0..4 {
        let to = mr.buf(0..4096).unwrap();
        ring.push(token, id, Request::Read { to, offset: 0 }).unwrap();
    }
    assert!(matches!(ring.push(9, id, Request::Flush), Err(Request::Flush)));
    ring.submit();
    drop(ring);
    assert_eq!(mr.buf(0..4096).unwrap().to_vec()[..], bytes[..4096]);
}

/// Every kind of request by memory that the kernel keeps and by memory that it does not, on files
/// that it has in its table and on those beyond.
#[test]
fn what_the_kernel_keeps_and_what_it_does_not_are_served_alike() {
    let port = Port::open("model:net=uring-kept").unwrap();
    let (memory, kept) = self::memory(&port);
    let (_, other) = self::memory(&port);
    let Some(mut ring) = ring() else { return };
    ring.register(&[&memory]).unwrap();
    assert_eq!(ring.register(&[&memory]).unwrap_err().raw_os_error(), Some(libc::EBUSY));
    drop(memory);
    let file = || {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[5; 8192]).unwrap();
        file
    };
    let all: Vec<_> = (0..TABLE_FILES + 2).map(|_| ring.add(file())).collect();
    for &id in [all[0], all[TABLE_FILES - 1], all[TABLE_FILES], all[TABLE_FILES + 1]].iter() {
        for (name, mr) in [(1, &kept), (2, &other)] {
            let mut from = mr.buf(8192..12288).unwrap();
            from.copy_in(0, &[name; 4096]).unwrap();
            ring.push(1, id, Request::Write { from, offset: 4096, is_durable: true }).unwrap();
            wait(&mut ring).result.unwrap();
            ring.push(2, id, Request::Flush).unwrap();
            wait(&mut ring).result.unwrap();
            let mut to = mr.buf(57344..65536).unwrap();
            to.copy_in(0, &[0; 8192]).unwrap();
            ring.push(3, id, Request::Read { to, offset: 0 }).unwrap();
            let read = wait(&mut ring).buf.unwrap().to_vec();
            assert_eq!((&read[..4096], &read[4096..]), (&[5; 4096][..], &[name; 4096][..]));
        }
    }
    // A place of the table that another file takes over.
    ring.remove(all[3]);
    let mut newer = tempfile::tempfile().unwrap();
    newer.write_all(&[6; 4096]).unwrap();
    assert_eq!(ring.add(newer), all[3]);
    ring.push(4, all[3], Request::Read { to: kept.buf(0..4096).unwrap(), offset: 0 }).unwrap();
    assert_eq!(wait(&mut ring).buf.unwrap().to_vec(), [6; 4096]);
}

/// A pipe with room for one page, as a file system that is nearly full. What the kernel says of the
/// rest is how a write ends that it cuts short.
#[test]
fn a_write_that_is_cut_short_goes_on_or_says_why_not() {
    const PAGE: usize = 4096;
    let port = Port::open("model:net=uring-short").unwrap();
    let (memory, mr) = self::memory(&port);
    let Some(mut ring) = ring() else { return };
    for is_kept in [false, true] {
        if is_kept {
            ring.register(&[&memory]).unwrap();
        }
        let (mut reader, mut filler) = std::io::pipe().unwrap();
        let id = ring.add(File::from(OwnedFd::from(filler.try_clone().unwrap())));
        let mut begin = |ring: &mut Ring, token| {
            for _ in 0..15 {
                filler.write_all(&[1; PAGE]).unwrap();
            }
            let mut from = mr.buf(PAGE..3 * PAGE).unwrap();
            from.copy_in(0, &[2; PAGE]).unwrap();
            from.copy_in(PAGE, &[3; PAGE]).unwrap();
            ring.push(token, id, Request::Write { from, offset: 0, is_durable: false }).unwrap();
            ring.submit();
        };
        // There is room again before the rest comes.
        begin(&mut ring, 1);
        let mut page = [0; PAGE];
        for expected in [vec![1; 15], vec![2]].concat() {
            reader.read_exact(&mut page).unwrap();
            assert_eq!(page, [expected; PAGE]);
        }
        let done = wait(&mut ring);
        assert!(done.token == 1 && done.result.is_ok() && done.buf.unwrap().len() == 2 * PAGE);
        reader.read_exact(&mut page).unwrap();
        assert_eq!(page, [3; PAGE]);
        // And never.
        begin(&mut ring, 2);
        drop(reader);
        let done = wait(&mut ring);
        assert_eq!(done.result.unwrap_err().raw_os_error(), Some(libc::EPIPE));
        assert_eq!(done.buf.unwrap().len(), 2 * PAGE);
        ring.remove(id);
    }
}

/// A file of the table is closed when its last request has ended, not when the ring goes.
#[test]
fn a_file_that_was_removed_is_closed() {
    let Some(mut ring) = ring() else { return };
    let (mut reader, writer) = UnixStream::pair().unwrap();
    reader.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let id = ring.add(File::from(OwnedFd::from(writer)));
    ring.push(1, id, Request::Flush).unwrap();
    ring.remove(id);
    // What is no file cannot be synced.
    assert!(wait(&mut ring).result.is_err());
    // The end, once nobody has the other side.
    assert_eq!(reader.read_to_end(&mut Vec::new()).unwrap(), 0);
}
