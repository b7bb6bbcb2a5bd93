//! Peer memory of a GPU that is there: its own kernel and copies see what the adapter wrote, and
//! the adapter reads what they wrote. Where there is no GPU, `cuda.rs` has a stand-in for one.

mod common;

use std::ffi::{c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use common::{Two, pattern};
use ferrocx_prm::syndrome::CqeSyndrome;
use ferrocx_verbs_lite::peer::cuda::{CudaError, CudaProvider};
use ferrocx_verbs_lite::peer::*;
use ferrocx_verbs_lite::*;
use libloading::{Library, Symbol};

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);
const GPU_PAGE: u64 = 65_536;
/// Where messages begin in a block, and their bytes.
const START: usize = 500;
const LEN: usize = 80_000;

/// A kernel that inverts bytes, each in a thread of its own. Source: NVIDIA, "PTX ISA".
const INVERT: &str = r"
.version 7.0
.target sm_75
.address_size 64
.visible .entry invert(.param .u64 start, .param .u32 len) {
    .reg .pred %outside;
    .reg .b16 %byte;
    .reg .b32 %at, %block, %size, %end;
    .reg .b64 %place, %first;
    mov.u32 %block, %ctaid.x;
    mov.u32 %size, %ntid.x;
    mov.u32 %at, %tid.x;
    mad.lo.u32 %at, %block, %size, %at;
    ld.param.u32 %end, [len];
    setp.ge.u32 %outside, %at, %end;
    @%outside bra DONE;
    ld.param.u64 %first, [start];
    cvt.u64.u32 %place, %at;
    add.u64 %place, %place, %first;
    ld.global.u8 %byte, [%place];
    not.b16 %byte, %byte;
    st.global.u8 [%place], %byte;
DONE:
    ret;
}
";

/// The driver's own functions, by which the test looks at memory without the provider.
struct Gpu {
    library: Library,
    invert: *mut c_void,
}

impl Gpu {
    /// The calling thread's context is the provider's, which made it current.
    fn new() -> Self {
        // SAFETY: NVIDIA's driver, which the provider has loaded already.
        let library = unsafe { Library::new("libcuda.so.1") }.unwrap();
        let mut gpu = Self { library, invert: null_mut() };
        let (mut module, mut invert) = (null_mut::<c_void>(), null_mut::<c_void>());
        let text = format!("{INVERT}\0");
        // SAFETY: types of `cuda.h`; the text ends with a zero, and so does the name.
        unsafe {
            type Load = unsafe extern "C" fn(*mut *mut c_void, *const u8) -> i32;
            type Find = unsafe extern "C" fn(*mut *mut c_void, *mut c_void, *const u8) -> i32;
            gpu.did(gpu.call::<Load>("cuModuleLoadData")(&raw mut module, text.as_ptr()));
            let find = gpu.call::<Find>("cuModuleGetFunction");
            gpu.did(find(&raw mut invert, module, c"invert".as_ptr().cast()));
        }
        gpu.invert = invert;
        gpu
    }

    fn call<T>(&self, name: &str) -> Symbol<'_, T> {
        // SAFETY: callers say the type that `cuda.h` declares.
        unsafe { self.library.get(name.as_bytes()) }.unwrap()
    }

    #[track_caller]
    fn did(&self, code: i32) {
        assert_eq!(code, 0, "CUresult");
    }

    /// What the GPU has at an address of its own.
    fn read(&self, address: u64, len: usize) -> Vec<u8> {
        type Copy = unsafe extern "C" fn(*mut u8, u64, usize) -> i32;
        let mut bytes = vec![0; len];
        // SAFETY: as many bytes as are there; the driver checks the other side.
        self.did(unsafe { self.call::<Copy>("cuMemcpyDtoH_v2")(bytes.as_mut_ptr(), address, len) });
        bytes
    }

    /// Has a kernel invert bytes, and waits for it.
    fn invert(&self, address: u64, len: usize) {
        type Launch = unsafe extern "C" fn(
            *mut c_void,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            *mut c_void,
            *mut *mut c_void,
            *mut *mut c_void,
        ) -> i32;
        type Wait = unsafe extern "C" fn() -> i32;
        const THREADS: c_uint = 256;
        let (mut address, mut len) = (address, len as u32);
        let mut values = [(&raw mut address).cast(), (&raw mut len).cast::<c_void>()];
        let blocks = len.div_ceil(THREADS);
        // SAFETY: the values are of the kernel's types, and outlive the call, which copies them.
        self.did(unsafe {
            self.call::<Launch>("cuLaunchKernel")(
                self.invert,
                blocks,
                1,
                1,
                THREADS,
                1,
                1,
                0,
                null_mut(),
                values.as_mut_ptr(),
                null_mut(),
            )
        });
        // SAFETY: no arguments.
        self.did(unsafe { self.call::<Wait>("cuCtxSynchronize")() });
    }

    /// Memory that another library would have allocated.
    fn alloc(&self, len: usize) -> u64 {
        type Alloc = unsafe extern "C" fn(*mut u64, usize) -> i32;
        let mut address = 0;
        // SAFETY: the pointer is to a local variable.
        self.did(unsafe { self.call::<Alloc>("cuMemAlloc_v2")(&raw mut address, len) });
        address
    }
}

/// The GPU, unless this machine has none.
fn open() -> Option<CudaProvider> {
    match CudaProvider::open(0) {
        Ok(gpu) => Some(gpu),
        Err(CudaError::Library { path, .. }) => {
            println!("skipped: no GPU of NVIDIA's with {path}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The NIC writes into a block, a kernel changes that, the NIC reads it back; then the block is
/// taken back, and the NIC reaches it no more, while the GPU does.
fn works(provider: &CudaProvider, gpu: &Gpu, block: &PeerBlock, device_address: u64) {
    let mut two = Two::new();
    let (mut qa, mut qb) = two.connected::<Buf>();
    let local = two.a.mr();
    let registry = PeerRegistry::new();
    let client = registry.register(Arc::new(provider.clone())).unwrap();
    let range = block.range(START as u64, LEN as u64);
    let there = device_address + START as u64;
    let mr = registry.reg_mr(&two.b.pd, range, &PeerConfig::new(ALL)).unwrap();
    let remote = RemoteAddr { addr: range.addr, rkey: mr.mr().rkey().unwrap() };
    let mut request = |two: &mut Two, op, at: usize| {
        let buf = local.buf(at..at + LEN).unwrap();
        qa.post_send(&SendWr::signaled(1, op), Some(buf)).unwrap();
        let (done, _) = two.run(&mut qa, &mut qb);
        done[0].result.as_ref().map(|_| ()).map_err(|failure| failure.syndrome)
    };
    let bytes = pattern(LEN, 7);
    let inverted: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
    two.a.fill(0, &bytes);
    assert_eq!(request(&mut two, SendOp::Write(remote), 0), Ok(()));
    assert_eq!(gpu.read(there, LEN), bytes, "what the NIC wrote");
    gpu.invert(there, LEN);
    assert_eq!(request(&mut two, SendOp::Read(remote), LEN), Ok(()));
    assert_eq!(two.a.read(LEN, LEN), inverted, "what the kernel wrote");
    block.invalidate().unwrap();
    assert!(!mr.is_live());
    assert_eq!(
        request(&mut two, SendOp::Write(remote), 0),
        Err(CqeSyndrome::REMOTE_ACCESS_ERR),
        "access has ended"
    );
    assert_eq!(gpu.read(there, LEN), inverted, "nothing was written behind that");
    gpu.invert(there, LEN);
    assert_eq!(gpu.read(there, LEN), bytes, "the GPU has it as before");
    assert_eq!(client.stats().unwrap().num_invalidations, 1);
}

#[test]
fn host_memory_that_a_gpu_reaches() {
    let Some(provider) = open() else { return };
    provider.synchronize().unwrap();
    let (gpu, mapped) = (Gpu::new(), provider.alloc_mapped(2 * LEN).unwrap());
    works(&provider, &gpu, &mapped.block, mapped.device_address);
}

#[test]
fn memory_of_a_gpu() {
    let Some(provider) = open() else { return };
    provider.synchronize().unwrap();
    let gpu = Gpu::new();
    let own = match provider.alloc(2 * LEN) {
        Err(error @ (CudaError::NoDmaBuf(_) | CudaError::NotMappable(_))) => {
            return println!("skipped: {}: {error}", provider.device());
        }
        own => own.unwrap(),
    };
    works(&provider, &gpu, &own, own.addr());
    let theirs = gpu.alloc(2 << 20).next_multiple_of(GPU_PAGE);
    let adopted = provider.adopt(PeerRange { addr: theirs, len_bytes: 4 * GPU_PAGE }).unwrap();
    works(&provider, &gpu, &adopted, adopted.addr());
}

#[test]
fn what_is_not_the_gpus_is_refused() {
    let Some(provider) = open() else { return };
    provider.synchronize().unwrap();
    let (gpu, host) = (Gpu::new(), vec![0_u8; 4 * GPU_PAGE as usize]);
    let at = (host.as_ptr().addr() as u64).next_multiple_of(GPU_PAGE);
    let ours = gpu.alloc(2 << 20);
    for (addr, len_bytes) in [(at, GPU_PAGE), (ours, 4096), (ours, 4 << 30), (ours + 8, GPU_PAGE)] {
        let refused = provider.adopt(PeerRange { addr, len_bytes });
        assert!(refused.is_err(), "{addr:#x}, {len_bytes} bytes");
    }
    let none = CudaProvider::open(1000).unwrap_err().to_string();
    assert!(none.starts_with("cuDeviceGet failed with 101"), "{none}");
}
