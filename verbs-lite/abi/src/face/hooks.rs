//! Calls of stock libraries to the system, led here: their tables of imported functions are
//! rewritten.
//!
//! That works however this library was put first, by `LD_PRELOAD` or by `LD_LIBRARY_PATH` alone,
//! where the C library would win every name; and it leaves the calls of everybody else, the
//! program's own `write` included, as they are. UCX and others rewrite tables in the same way.
//!
//! It is done when the list of devices is asked for: librdmacm does that before it opens its file,
//! UCX before it looks whether a device has one.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::node::lock;

/// An entry of the dynamic section: a tag and a value. Source: ELF-64 Object File Format 1.5.
#[repr(C)]
struct Dyn {
    tag: i64,
    value: u64,
}

/// A relocation with an addend.
#[repr(C)]
struct Rela {
    offset: u64,
    info: u64,
    addend: i64,
}

/// A symbol.
#[repr(C)]
struct Sym {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

const DT_NULL: i64 = 0;
const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;
/// Relocations that put the address of a function into the table: `GLOB_DAT`, `JUMP_SLOT`.
#[cfg(target_arch = "x86_64")]
const SLOTS: [u32; 2] = [6, 7];
#[cfg(target_arch = "aarch64")]
const SLOTS: [u32; 2] = [1025, 1026];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const SLOTS: [u32; 2] = [u32::MAX; 2];

/// A function that takes the place of one that is imported.
pub(super) struct Replacement {
    pub(super) name: &'static CStr,
    pub(super) function: *const c_void,
}

/// Whose calls are led elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of<'a> {
    /// Every loaded library whose file has a name that begins so.
    Library(&'a str),
    /// The program itself.
    Program,
}

/// What is looked for, and where that was done already.
struct Search<'a> {
    of: Of<'a>,
    replacements: &'a [Replacement],
    done: &'a mut Vec<u64>,
}

/// Objects whose tables were rewritten, by where they lie.
static DONE: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// Leads calls to the replacements.
pub(super) fn redirect(of: Of<'_>, replacements: &[Replacement]) {
    let mut search = Search { of, replacements, done: &mut lock(&DONE) };
    // SAFETY: the callback has the form that is asked for, and its argument lives through the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
}

unsafe extern "C" fn visit(
    object: *mut libc::dl_phdr_info,
    _size: usize,
    search: *mut c_void,
) -> c_int {
    // SAFETY: the loader's own description of an object that stays loaded through the call; the
    // argument is that of `redirect`.
    let (object, search) = unsafe { (&*object, &mut *search.cast::<Search<'_>>()) };
    if object.dlpi_name.is_null() || search.done.contains(&object.dlpi_addr) {
        return 0;
    }
    // SAFETY: the loader ends names with a zero.
    let name = unsafe { CStr::from_ptr(object.dlpi_name) }.to_string_lossy();
    let is_it = match search.of {
        Of::Library(start) => name.rsplit('/').next().is_some_and(|file| file.starts_with(start)),
        // It alone has no name. Source: dl_iterate_phdr(3).
        Of::Program => name.is_empty(),
    };
    if is_it {
        search.done.push(object.dlpi_addr);
        // SAFETY: the object is loaded and relocated.
        unsafe { rewrite(object, search.replacements) };
    }
    0
}

/// Rewrites the table of an object.
///
/// # Safety
/// The object is loaded, relocated, and stays.
unsafe fn rewrite(object: &libc::dl_phdr_info, replacements: &[Replacement]) {
    let base = object.dlpi_addr;
    // SAFETY: the loader keeps as many program headers as it says, and they describe the object.
    let headers = unsafe { std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
    let Some(dynamic) = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC) else {
        return;
    };
    // What the loader makes read-only once it has filled it.
    let relro = headers.iter().find(|header| header.p_type == libc::PT_GNU_RELRO);
    let relro = relro.map_or(0..0, |part| {
        let start = base + part.p_vaddr;
        start..start + part.p_memsz
    });
    let mut table = [0_u64; 24];
    let mut entry: *const Dyn = at(base + dynamic.p_vaddr);
    // SAFETY: the section ends with an entry of tag 0.
    while let Dyn { tag, value } = unsafe { entry.read() }
        && tag != DT_NULL
    {
        if let Some(place) = usize::try_from(tag).ok().and_then(|tag| table.get_mut(tag)) {
            *place = value;
        }
        entry = entry.wrapping_add(1);
    }
    // The loader has made addresses of these, on most machines.
    let absolute = |tag: i64| {
        let value = table[tag as usize];
        if value < base { base + value } else { value }
    };
    let (symbols, names): (*const Sym, *const c_char) =
        (at(absolute(DT_SYMTAB)), at(absolute(DT_STRTAB)));
    let lists = [(DT_JMPREL, DT_PLTRELSZ), (DT_RELA, DT_RELASZ)];
    let relocations = lists.into_iter().flat_map(|(start, bytes)| {
        let first: *const Rela = at(absolute(start));
        (0..table[bytes as usize] as usize / size_of::<Rela>()).map(move |n| first.wrapping_add(n))
    });
    for relocation in relocations {
        // SAFETY: the list has as many entries as its size says.
        let Rela { offset, info, .. } = unsafe { relocation.read() };
        if !SLOTS.contains(&(info as u32)) {
            continue;
        }
        // SAFETY: relocations name symbols of the table, which lead to names that end with a zero.
        let name = unsafe {
            let symbol = symbols.wrapping_add((info >> 32) as usize);
            CStr::from_ptr(names.wrapping_add((*symbol).name as usize))
        };
        if let Some(found) = replacements.iter().find(|replacement| replacement.name == name) {
            let slot = base + offset;
            // SAFETY: the slot is the object's own, of the size of a pointer.
            unsafe { put(slot, found.function, relro.contains(&slot)) };
        }
    }
}

/// A place in an object, which is nobody's in particular.
fn at<T>(address: u64) -> *const T {
    std::ptr::with_exposed_provenance(address as usize)
}

/// Writes a slot, which the loader may have made read-only.
///
/// # Safety
/// `slot` is an entry of a table of imported functions.
unsafe fn put(slot: u64, function: *const c_void, is_read_only: bool) {
    // SAFETY: it only asks for a number.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let page = slot as usize & !(page_bytes - 1);
    let page: *mut c_void = std::ptr::with_exposed_provenance_mut(page);
    // SAFETY: the page belongs to the object, and gets back the rights that it had. A slot is
    // aligned, so it lies in one page, and other threads see the old function or the new one.
    unsafe {
        if is_read_only && libc::mprotect(page, page_bytes, libc::PROT_READ | libc::PROT_WRITE) != 0
        {
            return;
        }
        let slot = at::<AtomicPtr<c_void>>(slot);
        (*slot).store(function.cast_mut(), Ordering::Release);
        if is_read_only {
            libc::mprotect(page, page_bytes, libc::PROT_READ);
        }
    }
}
