//! The CUDA driver's functions, found at run time.
//!
//! Names, types and constants: NVIDIA, "CUDA Driver API", chapters *Initialization*, *Context
//! Management*, *Primary Context Management*, *Context Management*, *Memory Management*, *Unified
//! Addressing*, and `cuda.h` for the values.
#![expect(unsafe_code, reason = "functions of a library that is loaded at run time")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};

use libloading::Library;

use super::error::CudaError;

/// `CUresult`: 0 is success.
type CuResult = c_int;
type CuDevice = c_int;
type CuContext = *mut c_void;
type CuDevicePtr = u64;

/// `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`.
pub(super) const DMA_BUF_SUPPORTED: c_int = 124;
/// `CU_DEVICE_ATTRIBUTE_PCI_BUS_ID`, `..._PCI_DEVICE_ID`, `..._PCI_DOMAIN_ID`.
const PCI_BUS_ID: c_int = 33;
const PCI_DEVICE_ID: c_int = 34;
const PCI_DOMAIN_ID: c_int = 50;
/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`, `..._SYNC_MEMOPS`, `..._RANGE_START_ADDR`, `..._RANGE_SIZE`.
const MEMORY_TYPE: c_int = 2;
const SYNC_MEMOPS: c_int = 6;
const RANGE_START_ADDR: c_int = 11;
const RANGE_SIZE: c_int = 12;
/// `CU_MEMORYTYPE_DEVICE`.
const MEMORYTYPE_DEVICE: c_uint = 2;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const DMA_BUF_FD: c_int = 1;
/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`.
const HOST_ALLOC: c_uint = 1 | 2;
/// Bytes for a device's name.
const NAME_BYTES: usize = 256;

macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($argument:ty),*);)*) => {
        /// Addresses of the functions. They are valid as long as `_library` is loaded.
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> CuResult,)*
            _library: Library,
        }

        impl Functions {
            /// # Safety
            ///
            /// As of [`Driver::open`].
            unsafe fn find(library: Library) -> Result<Self, CudaError> {
                let missing = |symbol: &'static str| move |source| {
                    CudaError::Symbol { symbol, source }
                };
                Ok(Self {
                    $($field: {
                        // SAFETY: the type is the one that `cuda.h` declares for this name, as the
                        // caller promised, and the library stays loaded beside the pointer.
                        *unsafe { library.get(concat!($symbol, "\0").as_bytes()) }
                            .map_err(missing($symbol))?
                    },)*
                    _library: library,
                })
            }
        }
    };
}

functions! {
    init = "cuInit": fn(c_uint);
    device_get = "cuDeviceGet": fn(*mut CuDevice, c_int);
    device_name = "cuDeviceGetName": fn(*mut c_char, c_int, CuDevice);
    device_attribute = "cuDeviceGetAttribute": fn(*mut c_int, c_int, CuDevice);
    retain = "cuDevicePrimaryCtxRetain": fn(*mut CuContext, CuDevice);
    release = "cuDevicePrimaryCtxRelease_v2": fn(CuDevice);
    set_current = "cuCtxSetCurrent": fn(CuContext);
    synchronize = "cuCtxSynchronize": fn();
    alloc = "cuMemAlloc_v2": fn(*mut CuDevicePtr, usize);
    free = "cuMemFree_v2": fn(CuDevicePtr);
    host_alloc = "cuMemHostAlloc": fn(*mut *mut c_void, usize, c_uint);
    host_free = "cuMemFreeHost": fn(*mut c_void);
    host_device_pointer = "cuMemHostGetDevicePointer_v2":
        fn(*mut CuDevicePtr, *mut c_void, c_uint);
    pointer_attribute = "cuPointerGetAttribute": fn(*mut c_void, c_int, CuDevicePtr);
    set_pointer_attribute = "cuPointerSetAttribute": fn(*const c_void, c_int, CuDevicePtr);
    range_handle = "cuMemGetHandleForAddressRange":
        fn(*mut c_void, CuDevicePtr, usize, c_int, u64);
    error_string = "cuGetErrorString": fn(CuResult, *mut *const c_char);
}

/// A device's primary context.
pub(super) struct Driver {
    functions: Functions,
    device: CuDevice,
    context: CuContext,
}

// SAFETY: the driver API may be called from any thread; a context is made current on the thread
// that needs it, by each method that does.
unsafe impl Send for Driver {}
// SAFETY: as above.
unsafe impl Sync for Driver {}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Driver {
    /// Loads the library at `path` and takes the primary context of device `ordinal`.
    ///
    /// # Safety
    ///
    /// As of [`CudaProvider::open_library`](super::CudaProvider::open_library).
    pub(super) unsafe fn open(path: &str, ordinal: u32) -> Result<Self, CudaError> {
        // SAFETY: the caller says that loading it is sound.
        let library = unsafe { Library::new(path) }
            .map_err(|source| CudaError::Library { path: path.to_owned(), source })?;
        // SAFETY: as above.
        let functions = unsafe { Functions::find(library) }?;
        let mut driver = Self { functions, device: 0, context: ptr::null_mut() };
        let f = &driver.functions;
        // SAFETY: no pointers.
        driver.check("cuInit", unsafe { (f.init)(0) })?;
        let ordinal = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        let mut device = 0;
        // SAFETY: the pointer is to a local variable.
        driver.check("cuDeviceGet", unsafe { (f.device_get)(&raw mut device, ordinal) })?;
        let mut context = ptr::null_mut();
        // SAFETY: as above.
        let retained = unsafe { (f.retain)(&raw mut context, device) };
        driver.check("cuDevicePrimaryCtxRetain", retained)?;
        (driver.device, driver.context) = (device, context);
        Ok(driver)
    }

    fn check(&self, call: &'static str, code: CuResult) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        let mut text = ptr::null();
        // SAFETY: the pointer is to a local variable.
        let known = unsafe { (self.functions.error_string)(code, &raw mut text) } == 0;
        let reason = if known && !text.is_null() {
            // SAFETY: the driver's strings are static and end with a zero.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        } else {
            "no explanation".to_owned()
        };
        Err(CudaError::Call { call, code, reason })
    }

    /// Makes the context current on this thread.
    fn enter(&self) -> Result<&Functions, CudaError> {
        // SAFETY: the context lives as long as `self`.
        self.check("cuCtxSetCurrent", unsafe { (self.functions.set_current)(self.context) })?;
        Ok(&self.functions)
    }

    pub(super) fn attribute(&self, attribute: c_int) -> Result<c_int, CudaError> {
        let mut value = 0;
        // SAFETY: the pointer is to a local variable.
        let code =
            unsafe { (self.functions.device_attribute)(&raw mut value, attribute, self.device) };
        self.check("cuDeviceGetAttribute", code)?;
        Ok(value)
    }

    /// Name and PCI address.
    pub(super) fn identity(&self) -> Result<(String, String), CudaError> {
        let mut name = [0; NAME_BYTES];
        // SAFETY: the buffer has as many bytes as are said.
        let code = unsafe {
            (self.functions.device_name)(name.as_mut_ptr(), NAME_BYTES as c_int, self.device)
        };
        self.check("cuDeviceGetName", code)?;
        let name = name.map(c_char::cast_unsigned);
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        let [domain, bus, slot] = [PCI_DOMAIN_ID, PCI_BUS_ID, PCI_DEVICE_ID];
        let (domain, bus) = (self.attribute(domain)?, self.attribute(bus)?);
        let address = format!("{domain:04x}:{bus:02x}:{:02x}.0", self.attribute(slot)?);
        Ok((name.to_string_lossy().into_owned(), address))
    }

    /// Waits until all work that was given to the device is done.
    pub(super) fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: no pointers; the context is current.
        self.check("cuCtxSynchronize", unsafe { (self.enter()?.synchronize)() })
    }

    pub(super) fn alloc(&self, len_bytes: usize) -> Result<u64, CudaError> {
        let mut address = 0;
        // SAFETY: the pointer is to a local variable.
        self.check("cuMemAlloc", unsafe { (self.enter()?.alloc)(&raw mut address, len_bytes) })?;
        Ok(address)
    }

    pub(super) fn free(&self, address: u64) -> Result<(), CudaError> {
        // SAFETY: `address` came from `alloc`, and its owner gives it up.
        self.check("cuMemFree", unsafe { (self.enter()?.free)(address) })
    }

    /// Host memory that the device reaches: where this process and where the device sees it.
    pub(super) fn host_alloc(&self, len_bytes: usize) -> Result<(NonNull<u8>, u64), CudaError> {
        let f = self.enter()?;
        let mut base = ptr::null_mut();
        // SAFETY: the pointer is to a local variable.
        let code = unsafe { (f.host_alloc)(&raw mut base, len_bytes, HOST_ALLOC) };
        self.check("cuMemHostAlloc", code)?;
        let Some(memory) = NonNull::new(base.cast::<u8>()) else {
            let reason = "it answered with address 0".to_owned();
            return Err(CudaError::Call { call: "cuMemHostAlloc", code, reason });
        };
        let mut address = 0;
        // SAFETY: the pointer is to a local variable, and `base` was only just allocated.
        let code = unsafe { (f.host_device_pointer)(&raw mut address, base, 0) };
        if let Err(error) = self.check("cuMemHostGetDevicePointer", code) {
            self.host_free(memory)?;
            return Err(error);
        }
        Ok((memory, address))
    }

    pub(super) fn host_free(&self, memory: NonNull<u8>) -> Result<(), CudaError> {
        // SAFETY: `memory` came from `host_alloc`, and its owner gives it up.
        self.check("cuMemFreeHost", unsafe { (self.enter()?.host_free)(memory.as_ptr().cast()) })
    }

    fn pointer_attribute<T: Default>(&self, which: c_int, address: u64) -> Result<T, CudaError> {
        let mut value = T::default();
        // SAFETY: callers choose `T` as wide as the attribute, see `allocation`.
        let code =
            unsafe { (self.enter()?.pointer_attribute)((&raw mut value).cast(), which, address) };
        self.check("cuPointerGetAttribute", code)?;
        Ok(value)
    }

    /// First address and bytes of the allocation that holds `address`; `None` unless it is the
    /// device's memory.
    pub(super) fn allocation(&self, address: u64) -> Result<Option<(u64, u64)>, CudaError> {
        let kind: c_uint = self.pointer_attribute(MEMORY_TYPE, address)?;
        if kind != MEMORYTYPE_DEVICE {
            return Ok(None);
        }
        let start: u64 = self.pointer_attribute(RANGE_START_ADDR, address)?;
        let len: usize = self.pointer_attribute(RANGE_SIZE, address)?;
        Ok(Some((start, len as u64)))
    }

    /// Copies of this memory by the driver are done when their call returns.
    pub(super) fn sync_memops(&self, address: u64) -> Result<(), CudaError> {
        let on: c_uint = 1;
        // SAFETY: the attribute is an unsigned int, which the pointer is to.
        let code = unsafe {
            (self.enter()?.set_pointer_attribute)((&raw const on).cast(), SYNC_MEMOPS, address)
        };
        self.check("cuPointerSetAttribute", code)
    }

    /// A dma-buf of a range of whole pages.
    pub(super) fn dma_buf(&self, address: u64, len_bytes: usize) -> Result<OwnedFd, CudaError> {
        let mut fd: RawFd = -1;
        // SAFETY: for a dma-buf the handle is an int, which the pointer is to.
        let code = unsafe {
            (self.enter()?.range_handle)((&raw mut fd).cast(), address, len_bytes, DMA_BUF_FD, 0)
        };
        self.check("cuMemGetHandleForAddressRange", code)?;
        if fd < 0 {
            let reason = format!("it answered with descriptor {fd}");
            return Err(CudaError::Call { call: "cuMemGetHandleForAddressRange", code, reason });
        }
        // SAFETY: the descriptor is new, and nobody else's.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.context.is_null() {
            return;
        }
        // SAFETY: retained in `open`, and all memory of it is gone: its owners hold the driver.
        let code = unsafe { (self.functions.release)(self.device) };
        if let Err(error) = self.check("cuDevicePrimaryCtxRelease", code) {
            tracing::warn!(%error, "CUDA context not released");
        }
    }
}
