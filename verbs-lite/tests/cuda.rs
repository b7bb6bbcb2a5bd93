//! The CUDA provider on a stand-in for the driver library, which `cc` makes of `cuda/standin.c`.
//! No GPU is involved; the memory is the host's.

mod common;

use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use common::{Two, pattern};
use ferrocx_verbs_lite::peer::cuda::{CudaError, CudaProvider, MappedBlock};
use ferrocx_verbs_lite::peer::*;
use ferrocx_verbs_lite::*;

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);
const GPU_PAGE: u64 = 65_536;

/// Devices of the stand-in.
const NO_DMA_BUF: u32 = 1;
const NOT_MAPPABLE: u32 = 2;
const OUT_OF_MEMORY: u32 = 3;
const BAD_DESCRIPTOR: u32 = 4;
const DEVICES: u32 = 5;

/// Path of the stand-in, made once; the lock keeps its counters to one test at a time.
fn standin() -> (&'static str, MutexGuard<'static, ()>) {
    static PATH: OnceLock<String> = OnceLock::new();
    static LOCK: Mutex<()> = Mutex::new(());
    let path = PATH.get_or_init(|| {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cuda/standin.c");
        let library = format!("{}/libcuda-standin.so", env!("CARGO_TARGET_TMPDIR"));
        let made = Command::new("cc").args(["-shared", "-fPIC", "-o", &library, source]).status();
        // Rust links with cc, so it is there.
        assert!(made.expect("cc can be run").success());
        library
    });
    (path, LOCK.lock().unwrap_or_else(PoisonError::into_inner))
}

fn open(path: &str, ordinal: u32) -> Result<CudaProvider, CudaError> {
    // SAFETY: the stand-in runs no code when it is loaded, and its functions have the types of
    // `cuda.h`. The other libraries that tests name do not exist or have none of the functions.
    unsafe { CudaProvider::open_library(path, ordinal) }
}

/// Allocations and contexts that were not given back.
fn held(path: &str) -> (i32, i32) {
    // SAFETY: the stand-in runs no code when it is loaded.
    let library = unsafe { libloading::Library::new(path) }.unwrap();
    let ask = |symbol: &[u8]| {
        // SAFETY: `cuda/standin.c` declares both so.
        unsafe { library.get::<unsafe extern "C" fn() -> i32>(symbol).unwrap()() }
    };
    (ask(b"standin_live\0"), ask(b"standin_retained\0"))
}

#[test]
fn a_peer_reads_and_writes_gpu_memory() {
    let (path, _lock) = standin();
    let mut two = Two::new();
    let (mut qa, mut qb) = two.connected::<Buf>();
    let local = two.a.mr();
    let gpu = open(path, 0).unwrap();
    assert_eq!((gpu.device(), gpu.pci_address()), ("Stand-in GPU", "0000:3b:00.0"));
    gpu.synchronize().unwrap();
    let registry = PeerRegistry::new();
    let client = registry.register(Arc::new(gpu.clone())).unwrap();
    let on_gpu = gpu.alloc(100_000).unwrap();
    let MappedBlock { block: mapped, device_address } = gpu.alloc_mapped(10_000).unwrap();
    assert_eq!((on_gpu.len_bytes(), on_gpu.addr() % GPU_PAGE), (2 * GPU_PAGE, 0));
    assert_eq!((mapped.len_bytes(), mapped.addr()), (12_288, device_address));
    let bytes = pattern(8000, 1);
    two.a.fill(0, &bytes);
    for block in [&on_gpu, &mapped] {
        let range = block.range(500, 9000);
        let mr = registry.reg_mr(&two.b.pd, range, &PeerConfig::new(ALL)).unwrap();
        assert_eq!(mr.provider(), "cuda:0");
        let remote = RemoteAddr { addr: range.addr, rkey: mr.mr().rkey().unwrap() };
        for (op, at) in [(SendOp::Write(remote), 0), (SendOp::Read(remote), 16_384)] {
            let buf = local.buf(at..at + 8000).unwrap();
            qa.post_send(&SendWr::signaled(1, op), Some(buf)).unwrap();
            let (done, _) = two.run(&mut qa, &mut qb);
            assert_eq!(done[0].result, Ok(()));
        }
        assert_eq!(two.a.read(16_384, 8000), bytes);
        let (region, start) = block.region();
        let mut there = vec![0; 8000];
        region.copy_out(start + 500, &mut there).unwrap();
        assert_eq!(there, bytes);
        block.invalidate().unwrap();
        assert!(!mr.is_live());
    }
    let stats = client.stats().unwrap();
    assert_eq!((stats.num_invalidations, stats.num_reg_pages), (2, 1 + 3));
    assert_eq!(held(path), (2, 1));
    drop((on_gpu, mapped));
    assert_eq!(held(path), (0, 1));
    drop((client, registry, gpu));
    assert_eq!(held(path), (0, 0));
}

#[test]
fn memory_of_somebody_else_is_adopted_if_it_is_the_gpus() {
    let (path, _lock) = standin();
    let gpu = open(path, 0).unwrap();
    let theirs = gpu.alloc(4 * GPU_PAGE as usize).unwrap();
    let (inside, all) = (theirs.range(0, 2 * GPU_PAGE), theirs.range(0, 6 * GPU_PAGE));
    let ours = gpu.adopt(inside).unwrap();
    assert_eq!((ours.addr(), ours.len_bytes()), (theirs.addr(), 2 * GPU_PAGE));
    for range in [all, theirs.range(4096, GPU_PAGE), theirs.range(0, 0), theirs.range(0, 4096)] {
        let refused = gpu.adopt(range).unwrap_err();
        assert!(matches!(refused, CudaError::NotDevice(_)), "{refused}");
    }
    let host = PeerRange { addr: 0x1000, len_bytes: GPU_PAGE };
    let refused = gpu.adopt(host).unwrap_err().to_string();
    assert!(refused.contains("cuPointerGetAttribute failed with 1: no explanation"), "{refused}");
}

#[test]
fn a_driver_or_gpu_that_lacks_something_is_named() {
    let (path, _lock) = standin();
    let none = open("libno-such-driver.so", 0).unwrap_err().to_string();
    assert!(none.contains("libno-such-driver.so cannot be loaded"), "{none}");
    let old = open("libc.so.6", 0).unwrap_err().to_string();
    assert!(old.contains("the CUDA driver has no cuInit; version 11.7"), "{old}");
    let device = open(path, DEVICES).unwrap_err().to_string();
    assert_eq!(device, "cuDeviceGet failed with 101: invalid device ordinal");
    let alloc = |ordinal| {
        let gpu = open(path, ordinal).unwrap();
        gpu.alloc(1).unwrap_err().to_string()
    };
    assert!(alloc(NO_DMA_BUF).contains("Stand-in GPU does not export its memory as a dma-buf"));
    assert!(alloc(NOT_MAPPABLE).contains("use CudaProvider::alloc_mapped"));
    assert_eq!(alloc(OUT_OF_MEMORY), "cuMemAlloc failed with 2: out of memory");
    assert!(alloc(BAD_DESCRIPTOR).contains("answered with descriptor -1"));
    let gpu = open(path, OUT_OF_MEMORY).unwrap();
    let refused = gpu.alloc_mapped(1).unwrap_err().to_string();
    assert_eq!(refused, "cuMemHostAlloc failed with 2: out of memory");
    drop(gpu);
    assert_eq!(held(path), (0, 0), "nothing is left behind");
}
