//! The calls byte by byte, against a stand-in of the kernel.

use std::sync::Mutex;

use super::*;

/// Answers like a kernel with one address space, number 7, of two ranges.
#[derive(Default)]
struct Fake {
    calls: Mutex<Vec<(libc::Ioctl, Vec<u8>)>>,
    /// The number that the next call of a request fails with.
    refuse: Mutex<Option<(libc::Ioctl, i32)>>,
}

impl Fake {
    fn taken(&self) -> Vec<(libc::Ioctl, Vec<u8>)> {
        std::mem::take(&mut self.calls.lock().expect("not poisoned"))
    }
}

impl Kernel for Fake {
    unsafe fn ioctl(
        &self,
        _: BorrowedFd<'_>,
        request: libc::Ioctl,
        argument: *mut c_void,
    ) -> io::Result<()> {
        // SAFETY: every structure begins with its size in bytes, and is that long.
        let bytes = unsafe {
            let size = argument.cast::<u32>().read() as usize;
            std::slice::from_raw_parts(argument.cast::<u8>(), size).to_vec()
        };
        self.calls.lock().expect("not poisoned").push((request, bytes));
        if let Some((refused, errno)) = *self.refuse.lock().expect("not poisoned")
            && refused == request
        {
            return Err(io::Error::from_raw_os_error(errno));
        }
        // SAFETY: the request says which structure it is.
        unsafe {
            match request {
                DEVICE_BIND => (*argument.cast::<Bind>()).out_devid = 3,
                IOAS_ALLOC => (*argument.cast::<Alloc>()).out_ioas_id = 7,
                IOAS_IOVA_RANGES => {
                    let ranges = &mut *argument.cast::<IovaRanges>();
                    let list = std::ptr::with_exposed_provenance_mut::<u64>(crate::to_usize(
                        ranges.allowed_iovas,
                    ));
                    let pairs = [0, 0xfedf_ffff, 0xfef0_0000, 0x7f_ffff_ffff];
                    std::ptr::copy_nonoverlapping(pairs.as_ptr(), list, 4);
                    (ranges.num_iovas, ranges.out_iova_alignment) = (2, 0x1000);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn attached() -> (Arc<Fake>, io::Result<Ioas>) {
    let (fake, device) = (Arc::new(Fake::default()), tempfile::tempfile().expect("a file"));
    let file = tempfile::tempfile().expect("a file").into();
    let ioas = Ioas::with(Arc::clone(&fake) as _, file, device.as_fd());
    (fake, ioas)
}

fn words(bytes: &[u8]) -> Vec<u32> {
    let word = |four: &[u8]| u32::from_ne_bytes(four.try_into().expect("four bytes"));
    bytes.chunks_exact(4).map(word).collect()
}

#[test]
fn a_device_is_bound_to_an_address_space_of_its_own() {
    let (fake, ioas) = attached();
    let ioas = ioas.expect("attached");
    let calls = fake.taken();
    assert_eq!(calls.iter().map(|call| call.0).collect::<Vec<_>>(), [0x3b81, 0x3b76, 0x3b77]);
    let fd = u32::try_from(ioas.file.as_raw_fd()).expect("not negative");
    assert_eq!(words(&calls[0].1), [12, 0, 0]);
    assert_eq!(words(&calls[1].1), [16, 0, fd, 0]);
    assert_eq!(words(&calls[2].1), [12, 0, 7]);

    // A second device joins the same one.
    ioas.attach(tempfile::tempfile().expect("a file").as_fd()).expect("attached");
    let calls = fake.taken();
    assert_eq!(calls.iter().map(|call| call.0).collect::<Vec<_>>(), [0x3b76, 0x3b77]);
    assert_eq!(words(&calls[1].1), [12, 0, 7]);
}

#[test]
fn ranges_are_the_kernels() {
    let (fake, ioas) = attached();
    let (ranges, alignment) = ioas.expect("attached").ranges().expect("answered");
    assert_eq!(ranges, [0..=0xfedf_ffff, 0xfef0_0000..=0x7f_ffff_ffff]);
    assert_eq!(alignment, 0x1000);
    let (request, bytes) = fake.taken().pop().expect("a call");
    assert_eq!((request, &words(&bytes)[..4]), (0x3b84, &[32, 7, 256, 0][..]));
}

#[test]
fn maps_and_unmaps_are_literal() {
    let (fake, ioas) = attached();
    let ioas = ioas.expect("attached");
    fake.taken();
    let at = std::ptr::without_provenance_mut(0x7000_1000);
    // SAFETY: the stand-in touches no memory.
    unsafe { ioas.map(MAP_READABLE | MAP_WRITEABLE, at, 0x1_2345_6000, 0x2000).expect("mapped") };
    assert_eq!(ioas.unmap(0x1_2345_6000, 0x2000).expect("unmapped"), 0x2000);
    ioas.unmap_all().expect("unmapped");
    let calls = fake.taken();
    assert_eq!(calls.iter().map(|call| call.0).collect::<Vec<_>>(), [0x3b85, 0x3b86, 0x3b86]);
    let map = [40, 7, 7, 0, 0x7000_1000, 0, 0x2000, 0, 0x2345_6000, 1];
    assert_eq!(words(&calls[0].1), map);
    assert_eq!(words(&calls[1].1), [24, 7, 0x2345_6000, 1, 0x2000, 0]);
    assert_eq!(words(&calls[2].1), [24, 7, 0, 0, u32::MAX, u32::MAX]);
}

#[test]
fn refusals_keep_their_number() {
    for request in [DEVICE_BIND, IOAS_ALLOC, DEVICE_ATTACH] {
        let fake = Arc::new(Fake::default());
        *fake.refuse.lock().expect("not poisoned") = Some((request, libc::EBUSY));
        let (file, device) = (tempfile::tempfile(), tempfile::tempfile().expect("a file"));
        let made = Ioas::with(Arc::clone(&fake) as _, file.expect("a file").into(), device.as_fd());
        assert_eq!(made.err().and_then(|error| error.raw_os_error()), Some(libc::EBUSY));
        assert_eq!(fake.taken().last().expect("a call").0, request);
    }
    let (fake, ioas) = attached();
    let ioas = ioas.expect("attached");
    *fake.refuse.lock().expect("not poisoned") = Some((IOAS_UNMAP, libc::ENOENT));
    assert!(ioas.unmap(0x1000, 0x1000).is_err());
    ioas.unmap_all().expect("nothing is mapped, so all is unmapped");
    *fake.refuse.lock().expect("not poisoned") = Some((IOAS_UNMAP, libc::EFAULT));
    assert!(ioas.unmap_all().is_err());
}
