//! A file by io_uring, from and to memory of a port of the model.

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use ferrocx::verbs::{Access, Memory, Mr};
use ferrocx::{Port, RegionConfig};
use ferrocx_uring::{Done, Request, Ring};

fn memory(port: &Port) -> Mr {
    let context = port.rdma().unwrap();
    let config = RegionConfig { len_bytes: 65536, ..RegionConfig::default() };
    let memory: Arc<Memory> = Memory::alloc(&context, &config).unwrap();
    context.alloc_pd().unwrap().reg_mr(&memory, 0..65536, Access::LOCAL_WRITE).unwrap()
}

/// Waits for the next request that ends.
fn wait(ring: &mut Ring) -> Done {
    ring.submit();
    loop {
        if let Some(done) = ring.poll() {
            return done;
        }
        std::thread::yield_now();
    }
}

#[test]
fn bytes_go_to_the_file_and_come_back() {
    let port = Port::open("model:net=uring").unwrap();
    let mr = memory(&port);
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[1; 8192]).unwrap();
    let mut ring = match Ring::new(4) {
        Ok(ring) => ring,
        Err(error) => {
            println!("skipped: no io_uring here: {error}");
            return;
        }
    };
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
