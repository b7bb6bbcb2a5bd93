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
use std::sync::atomic::{AtomicPtr, Ordering};

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

/// What is looked for.
struct Search<'a> {
    of: Of<'a>,
    replacements: &'a [Replacement],
}

/// Leads calls to the replacements, where they are not led there already: a library that is loaded
/// again may lie where it lay before, and has a new table.
pub(super) fn redirect(of: Of<'_>, replacements: &[Replacement]) {
    let mut search = Search { of, replacements };
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
    let (object, search) = unsafe { (&*object, &*search.cast::<Search<'_>>()) };
    if object.dlpi_name.is_null() {
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

/// Writes a slot that leads elsewhere, and which the loader may have made read-only.
///
/// # Safety
/// `slot` is an entry of a table of imported functions.
unsafe fn put(slot: u64, function: *const c_void, is_read_only: bool) {
    // SAFETY: the slot is aligned, of the size of a pointer, and the object's for as long as it is
    // loaded.
    let place = unsafe { &*at::<AtomicPtr<c_void>>(slot) };
    if place.load(Ordering::Relaxed).cast_const() == function {
        return;
    }
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
        place.store(function.cast_mut(), Ordering::Release);
        if is_read_only {
            libc::mprotect(page, page_bytes, libc::PROT_READ);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::process::{Command, id};

    use super::*;

    /// A library with a function `ask` that gives what `getppid` does, if there is a compiler.
    fn build(name: &str) -> Option<PathBuf> {
        let [source, library] =
            ["c", "so"].map(|end| std::env::temp_dir().join(format!("{name}-{}.{end}", id())));
        std::fs::write(&source, "int getppid(void); int ask(void) { return getppid(); }").unwrap();
        let mut cc = Command::new("cc");
        let built = cc.args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
        let is_built = built.is_ok_and(|status| status.success());
        std::fs::remove_file(&source).unwrap();
        is_built.then_some(library)
    }

    extern "C" fn instead() -> c_int {
        -7
    }

    /// Loads a library and asks it, before and after its calls are led elsewhere.
    fn ask(library: &Path, name: &str) -> [c_int; 2] {
        let path = std::ffi::CString::new(library.to_str().unwrap()).unwrap();
        // SAFETY: a library of ours, whose function has this form, and that is called as long as it
        // is loaded.
        unsafe {
            let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
            assert!(!handle.is_null());
            let ask = libc::dlsym(handle, c"ask".as_ptr());
            let ask: extern "C" fn() -> c_int = std::mem::transmute(ask);
            let before = ask();
            let replacement = Replacement { name: c"getppid", function: instead as *const c_void };
            redirect(Of::Library(name), &[replacement]);
            let answers = [before, ask()];
            assert_eq!(libc::dlclose(handle), 0);
            answers
        }
    }

    #[test]
    fn a_library_that_is_loaded_again_is_led_again() {
        const NAME: &str = "ferrocx-hooked";
        let Some(library) = build(NAME) else {
            return println!("skipped: no C compiler (apt-get install gcc)");
        };
        let parent = std::os::unix::process::parent_id() as c_int;
        // It lies where it lay before.
        let answers = [(); 3].map(|()| ask(&library, NAME));
        std::fs::remove_file(&library).unwrap();
        assert_eq!(answers, [[parent, -7]; 3]);
    }
}
