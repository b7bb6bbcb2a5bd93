//! Makes the table of exported names from `symbols.txt`: the linker's version script, and for each
//! name and version a symbol in assembly that jumps to its function.
//!
//! A fuzz target links the functions into a program, where no name has a version: it gets a
//! function that finds them by their names instead.
//!
//! The jump is needed: a default version cannot be given to a symbol of another object, and a name
//! that rustc exports has no version, which `dlvsym` does not find.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

/// A jump to an operand, for the assembler of the target.
fn jump(arch: &str) -> &'static str {
    match arch {
        "aarch64" => "b {f}",
        _ => "jmp {f}",
    }
}

fn main() {
    println!("cargo:rerun-if-changed=symbols.txt");
    let table = fs::read_to_string("symbols.txt").expect("symbols.txt is readable");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let (mut map, mut code, mut found) = (String::new(), String::new(), String::new());
    let (mut node, mut is_open) = (String::new(), false);
    // A name is of its newest public version by default; the older ones are there for old binaries.
    let newer: Vec<&str> = table.lines().skip_while(|line| *line != "IBVERBS_1.1:").collect();
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        if let Some(name) = line.strip_suffix(':') {
            if is_open {
                map.push_str("};\n");
            }
            writeln!(map, "{name} {{ global:").expect("a string takes it");
            (node, is_open) = (name.to_owned(), true);
            continue;
        }
        let (name, kind) = line.split_once(' ').unwrap_or((line, ""));
        writeln!(map, "  {name};").expect("a string takes it");
        let is_old = node == "IBVERBS_1.0" && newer.contains(&name);
        let at = if is_old || node.contains("PRIVATE") { "@" } else { "@@" };
        let alias = format!("ferrocx_{}_{name}", node.replace('.', "_"));
        let versioned = format!(".symver {alias}, {name}{at}{node}");
        if kind.is_empty() && !node.contains("PRIVATE") {
            writeln!(found, "{name:?} => crate::face::{name} as *const core::ffi::c_void,")
                .expect("a string takes it");
        }
        let entry = match kind {
            "$" => format!(
                "core::arch::global_asm!(\".pushsection .data.{alias},\\\"aw\\\",@progbits\", \
                 \".globl {alias}\", \".type {alias}, @object\", \".size {alias}, 1\", \
                 \"{alias}: .byte 0\", \"{versioned}\", \".popsection\");"
            ),
            _ => {
                let target = if kind == "!" { "refused::refuse" } else { name };
                format!(
                    "core::arch::global_asm!(\".pushsection .text.{alias},\\\"ax\\\",@progbits\", \
                     \".globl {alias}\", \".type {alias}, @function\", \"{alias}: {}\", \
                     \"{versioned}\", \".popsection\", f = sym crate::face::{target});",
                    jump(&arch)
                )
            }
        };
        code.push_str(&entry);
        code.push('\n');
    }
    map.push_str("};\n");
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let script = Path::new(&out).join("libibverbs.map");
    fs::write(&script, map).expect("OUT_DIR is writable");
    fs::write(Path::new(&out).join("exports.rs"), code).expect("OUT_DIR is writable");
    let found = format!("match name {{ {found} _ => core::ptr::null() }}");
    fs::write(Path::new(&out).join("found.rs"), found).expect("OUT_DIR is writable");
    println!("cargo:rustc-check-cfg=cfg(fuzzing)");
    if env::var_os("CARGO_CFG_FUZZING").is_some() {
        return;
    }
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", script.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    // A thread of its own runs in it, and handlers of signals and forks point into it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
