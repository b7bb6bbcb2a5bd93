//! Children of a fork, and memory of their parent's device.

use std::ffi::c_int;
use std::io::Error;
use std::mem::offset_of;
use std::ptr::null_mut;

use super::abi::*;
use super::{Api, c};

/// Runs something in a child, which it gives.
pub(crate) fn child(run: impl FnOnce()) -> libc::pid_t {
    match c!(libc::fork()) {
        0 => {
            // A child that waits for what its parent's threads hold is ended by the alarm.
            c!(libc::alarm(60));
            run();
            c!(libc::_exit(0));
        }
        child => child,
    }
}

/// How a child ended.
pub(crate) fn status_of(child: libc::pid_t) -> c_int {
    let mut status = -1;
    assert_eq!(c!(libc::waitpid(child, &raw mut status, 0)), child);
    status
}

/// An open device, for its memory.
#[derive(Clone, Copy)]
pub(crate) struct Lender<'a> {
    pub(crate) api: &'a Api,
    pub(crate) context: *mut ibv_context,
}

fn errno() -> c_int {
    Error::last_os_error().raw_os_error().unwrap_or(0)
}

impl Lender<'_> {
    fn verbs(&self) -> &verbs_context {
        c!(&*self.context.byte_sub(offset_of!(verbs_context, context)).cast())
    }

    fn most(&self) -> usize {
        let mut attr: ibv_device_attr_ex = c!(std::mem::zeroed());
        let (query, len) = (self.verbs().query_device_ex, size_of_val(&attr));
        assert_eq!(c!(query(self.context, std::ptr::null(), &raw mut attr, len)), 0);
        attr.max_dm_size as usize
    }

    fn alloc(&self, length: usize, log_align_req: u32) -> Result<*mut ibv_dm, c_int> {
        let mut attr = ibv_alloc_dm_attr { length, log_align_req, comp_mask: 0 };
        let dm = c!((self.verbs().alloc_dm)(self.context, &raw mut attr));
        if dm.is_null() { Err(errno()) } else { Ok(dm) }
    }

    fn free(&self, dm: *mut ibv_dm) -> c_int {
        c!((self.verbs().free_dm)(dm))
    }

    /// Fills memory and reads it again.
    fn fill(&self, dm: *mut ibv_dm, offset: u64, bytes: &[u8]) {
        let mut back = vec![0; bytes.len()];
        let (from, to, len) = (bytes.as_ptr().cast(), back.as_mut_ptr().cast(), bytes.len());
        assert_eq!(c!(((*dm).memcpy_to_dm)(dm, offset, from, len)), 0);
        assert_eq!(c!(((*dm).memcpy_from_dm)(to, dm, offset, len)), 0);
        assert!(back == bytes, "other bytes came back");
    }

    fn read(&self, dm: *mut ibv_dm, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let read = c!((*dm).memcpy_from_dm);
        assert_eq!(c!(read(bytes.as_mut_ptr().cast(), dm, offset, len)), 0);
        bytes
    }

    /// Has children use memory of the device, all at once, and each its part of the parent's.
    pub(crate) fn lend_to_children(&self) {
        const CHILDREN: u8 = 5;
        const PART: usize = 64;
        let most = self.most();
        let dm = self.alloc(PART * usize::from(CHILDREN), 0).unwrap();
        self.fill(dm, 0, &[0xee; PART * CHILDREN as usize]);
        let pd = c!((self.api.ibv_alloc_pd)(self.context));
        let children = [0, 1, 2, 3, 4].map(|name| {
            child(|| {
                let part = u64::from(name) * PART as u64;
                assert_eq!(self.read(dm, part, PART), [0xee; PART]);
                self.fill(dm, part, &[name; PART]);
                for round in 0..20 {
                    let own = self.alloc(most / 10, 3).unwrap();
                    self.fill(own, 0, &vec![(name << 5) | round; (most / 10) & !3]);
                    assert_eq!(self.free(own), 0);
                }
            })
        });
        assert_eq!(children.map(status_of), [0; CHILDREN as usize]);
        let parts = self.read(dm, 0, PART * usize::from(CHILDREN));
        let expected: Vec<_> = (0..CHILDREN).flat_map(|name| [name; PART]).collect();
        assert_eq!(parts, expected, "what children have written is in the device");
        // What is wrong, and what is much.
        let alone = child(|| {
            assert_eq!(self.alloc(0, 0), Err(libc::EINVAL));
            assert_eq!(self.alloc(most + 1, 0), Err(libc::EINVAL));
            assert_eq!(self.alloc(64, 40), Err(libc::EINVAL));
            assert_eq!(self.alloc(most, 0), Err(libc::ENOMEM));
            let bytes = [7_u8; 8];
            for (offset, length, result) in
                [(1, 4, libc::EINVAL), (0, 1 << 20, libc::EFAULT), (u64::MAX, 4, libc::EFAULT)]
            {
                let copied = c!(((*dm).memcpy_to_dm)(dm, offset, bytes.as_ptr().cast(), length));
                assert_eq!(copied, result, "{offset} {length}");
            }
            let length = PART as u64;
            let mr = c!((self.verbs().reg_dm_mr)(pd, dm, 0, length as usize, 0x21));
            assert_eq!((mr, errno()), (null_mut(), libc::ENODEV));
            let large = self.alloc(most / 4 * 3, 12).unwrap();
            let bytes: Vec<_> = (0..most / 4 * 3).map(|at| (at / 7) as u8).collect();
            self.fill(large, 0, &bytes);
            // Left behind, and the parent's given back.
            assert_eq!(self.free(dm), 0);
        });
        assert_eq!(status_of(alone), 0);
        assert_eq!(self.free(dm), libc::EINVAL, "a child has given it back");
        assert_eq!(self.alloc(most / 2, 0), Err(libc::ENOMEM), "a child has left so much");
        assert_eq!(c!((self.api.ibv_dealloc_pd)(pd)), 0);
    }

    /// Has a child ask after its parent has ended, while a brother still lives.
    pub(crate) fn outlive_parent(&self) {
        let parent = c!(libc::getpid());
        let (dm, mut ends) = (self.alloc(64, 0).unwrap(), [0; 2]);
        assert_eq!(c!(libc::pipe(ends.as_mut_ptr())), 0);
        let brother = child(|| c!(_ = libc::read(ends[0], [0_u8; 1].as_mut_ptr().cast(), 1)));
        let orphan = child(|| {
            while c!(libc::getppid()) == parent {
                std::thread::yield_now();
            }
            let bytes = [0_u8; 4];
            let copied = c!(((*dm).memcpy_to_dm)(dm, 0, bytes.as_ptr().cast(), 4));
            let refused = self.alloc(64, 0) == Err(libc::ENODEV) && copied == libc::ENODEV;
            c!({
                libc::kill(brother, libc::SIGKILL);
                libc::_exit(if refused { 7 } else { 8 });
            });
        });
        assert!(brother > 0 && orphan > 0);
    }
}
