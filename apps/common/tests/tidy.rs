//! Rules of the tree that no compiler checks: line length, file size, tabs, words, headers.
//!
//! | rule | where | limit |
//! |---|---|---|
//! | columns, but for rows of tables in comments | Rust, shell | 100 |
//! | lines of code before the tests of the file | Rust | 600; up to 1000 with a reason |
//! | lines of a file of tests | Rust | 1000; more with a reason |
//! | tabs, trailing blanks, no newline at the end | all text | none |
//! | superlatives, open tasks without an issue | all text | none |
//! | `forbid(unsafe_code)` or `deny(unsafe_code)` | root of each crate | present |
//! | places of bits as numbers, constants of `ferrocx-prm` defined again | driver crates | none |
//! | shifts and masks by numbers | driver crates | those of `device_words`, each with a reason |
//! | inputs kept for a fuzz target | pmd/fuzz/corpus | 100 KiB, 200 files |
//! | `set -euo pipefail`, `--help` | programs in scripts | present |
//!
//! A reason is a comment line in the first 40 lines that starts with `Long file:`.

mod device_words;
mod tree;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use tree::root;

const COLUMNS: usize = 100;
const CODE_LINES: usize = 600;
const MOST_LINES: usize = 1000;
/// Inputs of one fuzz target that are kept; scripts/test.sh keeps to it.
const CORPUS_FILES: usize = 200;
const CORPUS_BYTES: u64 = 100 << 10;

/// Words that promise instead of stating; whole words, any case.
const BANNED: &[&str] = &[
    "blazing",
    "blazingly",
    "best-in-class",
    "cutting-edge",
    "fastest",
    "game-changing",
    "groundbreaking",
    "lightning-fast",
    "production-ready",
    "revolutionary",
    "seamless",
    "seamlessly",
    "state-of-the-art",
    "unmatched",
    "unparalleled",
    "world-class",
];

/// Open tasks; allowed only with an issue behind them, as in `TODO(#12)`.
const OPEN: &[&str] = &["TODO", "FIXME", "XXX", "HACK"];

/// Crates that drive the device: every place and value of a bit is that of `ferrocx-prm`.
///
/// Not among them: `ferrocx-bus`, which knows no structure of the device (its numbers are those of
/// Linux's VFIO and of PCI); `ferrocx-nvme`, whose device is another, with its layouts in that
/// crate; `ferrocx-verbs-abi`, whose numbers are those of the C interface, one table of them.
const DRIVERS: &[&str] = &["pmd/core/src/", "pmd/src/", "verbs-lite/src/"];

/// Crates without a line of unsafe code.
const FORBID: &[&str] = &["pmd/prm/", "pmd/model/src/", "apps/"];

/// All text files of the tree.
fn files() -> BTreeMap<String, String> {
    tree::files(|name| name != "Cargo.lock")
}

fn is_shell(path: &str, text: &str) -> bool {
    path.ends_with(".sh") || text.starts_with("#!") && text.lines().next().unwrap().contains("sh")
}

/// Whether the whole file is tests.
fn is_tests(path: &str) -> bool {
    path.contains("/tests/")
        || path.contains("/benches/")
        || path.ends_with("tests.rs")
        || path.ends_with("_test.rs")
}

/// The findings in one file, as `path:line: what`.
fn findings(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let code = path.ends_with(".rs") || is_shell(path, text);
    for (at, line) in text.lines().enumerate() {
        let mut say = |what: String| found.push(format!("{path}:{}: {what}", at + 1));
        let columns = line.chars().count();
        if code && columns > COLUMNS && !is_table_row(line) {
            say(format!("{columns} columns, {COLUMNS} are allowed"));
        }
        if line.contains('\t') && !path.ends_with("Makefile") {
            say("a tab".into());
        }
        if line.ends_with(' ') {
            say("blanks at the end of the line".into());
        }
        for word in words(line) {
            if BANNED.contains(&word.to_lowercase().as_str()) {
                say(format!("`{word}` promises; state what was measured"));
            }
            if OPEN.contains(&word) && !line.contains(&format!("{word}(#")) {
                say(format!("`{word}` without an issue; write {word}(#number)"));
            }
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        found.push(format!("{path}: no newline at the end"));
    }
    if path.ends_with(".rs") {
        found.extend(size(path, text));
    }
    found
}

/// Whether the line is a row of a table in a comment, which cannot be broken.
fn is_table_row(line: &str) -> bool {
    let comment = line.trim_start().trim_start_matches(['/', '!']).trim();
    line.trim_start().starts_with("//") && comment.starts_with('|') && comment.ends_with('|')
}

/// Words of a line, with hyphens inside.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '-').filter(|word| !word.is_empty())
}

/// Whether a Rust file is too long.
fn size(path: &str, text: &str) -> Option<String> {
    let lines: Vec<&str> = text.lines().collect();
    let reason = lines.iter().take(40).any(|line| {
        line.trim_start().trim_start_matches(['/', '!']).trim_start().starts_with("Long file:")
    });
    let tests = is_tests(path);
    let inline = lines.windows(2).position(|pair| {
        pair[0].trim() == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{')
    });
    let count = if tests { lines.len() } else { inline.unwrap_or(lines.len()) };
    let limit = match (tests, reason) {
        (true, true) => return None,
        (true, false) | (false, true) => MOST_LINES,
        (false, false) => CODE_LINES,
    };
    let way_out = if reason { "split it" } else { "split it or say why with `Long file:`" };
    (count > limit).then(|| format!("{path}: {count} lines, {limit} are allowed; {way_out}"))
}

#[test]
fn every_file_of_the_tree_is_tidy() {
    // This file names the words that it bans.
    let files = files();
    assert!(files.len() > 20, "only {} files found", files.len());
    let checked = files.iter().filter(|(path, _)| *path != "apps/common/tests/tidy.rs");
    let found: Vec<String> = checked.flat_map(|(path, text)| findings(path, text)).collect();
    assert!(found.is_empty(), "{} findings:\n{}", found.len(), found.join("\n"));
}

/// Whether an access to the device's memory gives its place as a number: `load_be32::<0x2c>()`,
/// `part::<0, 16>()`, `read_be32(at + 0x30)`.
fn has_literal_place(line: &str) -> bool {
    const CONSTANT: &[&str] = &["load_", "store_", "part::<"];
    let code = line.split("//").next().unwrap_or_default();
    let is_number = |text: &str| text.trim_start().starts_with(|c: char| c.is_ascii_digit());
    let starts = |words: &[&str]| words.iter().any(|word| code.contains(word));
    let constant = starts(CONSTANT) && code.split("::<").skip(1).any(is_number);
    // A place is the first argument; a store of one argument is into a word that has none.
    let places = |word: &str, least: usize| {
        code.split(word).skip(1).any(|rest| {
            let Some((_, rest)) = rest.split_once('(').filter(|(name, _)| !name.contains("::<"))
            else {
                return false;
            };
            let mut arguments = rest.split(',');
            let place = arguments.next().unwrap_or_default();
            let place = place.split(')').next().unwrap_or_default();
            arguments.count() + 1 >= least && place.split('+').any(is_number)
        })
    };
    let loads = ["load_be", "load_acquire_be", "read_be"];
    let stores = ["store_be", "store_release_be", "write_be"];
    let computed = loads.iter().any(|word| places(word, 1));
    constant || computed || stores.iter().any(|word| places(word, 2))
}

/// The name of a constant of numbers, and what it is defined as.
fn constant(line: &str) -> Option<(&str, &str)> {
    let (_, rest) = line.split_once("const ")?;
    let (name, rest) = rest.split_once(": ")?;
    let (_, value) = rest.split_once(" = ")?;
    Some((name, value.trim_end_matches(';')))
}

/// Names that `ferrocx-prm` has for values; those of a module `wq_type` also as `WQ_CYCLIC`.
fn prm_names<'a>(files: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut names = Vec::new();
    for text in files {
        let mut module = "";
        for line in text.lines() {
            let trimmed = line.trim_start();
            if let Some(rest) = trimmed.strip_prefix("pub mod ") {
                module = rest.split(['_', ':', ' ']).next().unwrap_or_default();
            } else if line == "}" {
                module = "";
            }
            // A row of a table: of a set of bits `4 NAME: ..`, of values `4 NAME "..";`.
            let row = trimmed.split_once(' ').filter(|(number, _)| is_number(number));
            let of_row = row.and_then(|(_, rest)| rest.split([':', ' ']).next());
            let of_row = of_row.filter(|name| name.starts_with(|first: char| first.is_uppercase()));
            let Some(name) = constant(trimmed).map(|(name, _)| name).or(of_row) else { continue };
            names.push(name.to_owned());
            if !module.is_empty() {
                names.push(format!("{}_{name}", module.to_uppercase()));
            }
        }
    }
    names
}

fn is_number(text: &str) -> bool {
    text.strip_prefix("0x").map_or(text.parse::<u64>(), |hex| u64::from_str_radix(hex, 16)).is_ok()
}

/// Places and values in a driver's file that should be those of `ferrocx-prm`.
fn respelled(path: &str, text: &str, names: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if line.trim() == "#[cfg(test)]" {
            break;
        }
        let mut say = |what: String| found.push(format!("{path}:{}: {what}", at + 1));
        if has_literal_place(line) {
            say("the place of a field as a number; name the field of ferrocx-prm".into());
        }
        if device_words::has_literal_bits(line) && !device_words::may_stay(path, line) {
            say("bits as a number; name the field of ferrocx-prm, or say why not".into());
        }
        let literal = |value: &str| {
            value
                .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .all(|word| word.is_empty() || word.starts_with(|c: char| c.is_ascii_digit()))
        };
        if let Some((name, value)) = constant(line)
            && literal(value)
            && names.iter().any(|known| known == name)
        {
            say(format!("`{name}` is defined in ferrocx-prm"));
        }
    }
    found
}

#[test]
fn every_bit_has_one_place() {
    let files = files();
    let prm = files.iter().filter(|(path, _)| path.starts_with("pmd/prm/src/"));
    let names = prm_names(prm.map(|(_, text)| text.as_str()));
    assert!(names.len() > 100, "only {} names found", names.len());
    let is_driver = |path: &str| {
        DRIVERS.iter().any(|folder| path.starts_with(folder))
            && path.ends_with(".rs")
            && !is_tests(path)
    };
    let found: Vec<String> = files
        .iter()
        .filter(|(path, _)| is_driver(path))
        .flat_map(|(path, text)| respelled(path, text, &names))
        .collect();
    assert!(found.is_empty(), "{} findings:\n{}", found.len(), found.join("\n"));
    let stale = device_words::stale(|path| files.get(path).map(String::as_str));
    assert!(stale.is_empty(), "{}", stale.join("\n"));

    let planted = |line: &str| respelled("a.rs", line, &names).len();
    for line in [
        "let len = cqe.load_be32::<0x2c>();",
        "slot.store_raw64::<8>(0);",
        "block.part::<0, DS_BYTES>()",
        "buf.store_be32(entry + 0x3c, 1);",
        "bar.read_be32(offset::HEALTH_BUFFER + 0x30)",
        "const CE_ALWAYS: u32 = 2 << 2;",
        "const WQ_CYCLIC: u32 = 1;",
        "    const L4_UDP: u32 = 1 << 30;",
        "let is_fragment = cqe.load(WORD) >> 17;",
        "if word & 0x0000_ff00 == 0 {",
        "let key = index << 8 | variant;",
        "if versions() & 1 << 2 == 0 {",
    ] {
        assert_eq!(planted(line), 1, "{line}");
    }
    for line in [
        "let len = cqe.load_be32::<{ Cqe64::BYTE_CNT.offset }>();",
        "bar.read_be32(offset::HEALTH_BUFFER + at)",
        "const BURST: usize = 32;",
        "const CE: u32 = CE_ALWAYS;",
        "let iova = u64::from(high) << 32 | low;",
        "const CHUNK_BYTES: usize = 2 << 20;",
        "let is_ok = Cqe64::L3_OK.get(word) != 0 && &0u8 != byte;",
    ] {
        assert_eq!(planted(line), 0, "{line}");
    }
}

#[test]
fn each_crate_states_what_it_thinks_of_unsafe_code() {
    let mut found = Vec::new();
    for (path, text) in files() {
        let root = path.ends_with("src/lib.rs") || path.ends_with("src/main.rs");
        if !root {
            continue;
        }
        let forbid = text.contains("#![forbid(unsafe_code)]");
        if FORBID.iter().any(|prefix| path.starts_with(prefix)) && !forbid {
            found.push(format!("{path}: needs #![forbid(unsafe_code)]"));
        } else if !forbid && !text.contains("#![deny(unsafe_code)]") {
            found.push(format!("{path}: needs #![deny(unsafe_code)] or forbid"));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn what_fuzz_targets_start_from_is_small_and_there_for_each() {
    let names = |folder: &str| {
        let entries = fs::read_dir(root().join("pmd/fuzz").join(folder)).expect("a folder");
        entries.map(|entry| entry.expect("an entry").path()).collect::<Vec<_>>()
    };
    let targets: BTreeSet<_> =
        names("fuzz_targets").iter().map(|path| path.file_stem().map(ToOwned::to_owned)).collect();
    let corpora = names("corpus");
    let kept: BTreeSet<_> =
        corpora.iter().map(|path| path.file_name().map(ToOwned::to_owned)).collect();
    assert_eq!(kept, targets, "each has a corpus: FERROCX_FUZZ_KEEP=1 scripts/test.sh fuzz");
    for corpus in corpora {
        let files: Vec<_> = fs::read_dir(&corpus).expect("a folder").collect();
        let len = |file: &std::io::Result<fs::DirEntry>| {
            file.as_ref().expect("an entry").metadata().expect("a file").len()
        };
        let (count, bytes) = (files.len(), files.iter().map(len).sum::<u64>());
        assert!(count <= CORPUS_FILES && bytes <= CORPUS_BYTES, "{corpus:?}: {count}, {bytes}");
    }
}

#[test]
fn each_script_stops_at_errors_and_explains_itself() {
    let mut found = Vec::new();
    for (path, text) in files() {
        let program = path.starts_with("scripts/") && text.starts_with("#!/usr/bin/env bash");
        if !program || path.contains("/lib") {
            continue;
        }
        if !text.contains("\nset -euo pipefail\n") {
            found.push(format!("{path}: no `set -euo pipefail`"));
        }
        if !path.contains("/lab/") && !text.contains("--help") {
            found.push(format!("{path}: no --help"));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Each rule must be able to fail.
#[test]
fn each_rule_finds_what_it_is_for() {
    let one = |path: &str, text: &str| {
        let found = findings(path, text);
        assert_eq!(found.len(), 1, "{path} {found:?}");
        found[0].clone()
    };
    assert!(one("a.rs", &format!("// {}\n", "x".repeat(98))).contains("a.rs:1: 101 columns"));
    assert!(findings("a.rs", &format!("// {}\n", "x".repeat(97))).is_empty());
    assert!(findings("a.md", &format!("{}\n", "x".repeat(200))).is_empty());
    assert!(findings("a.rs", &format!("/// | {} |\n", "x".repeat(100))).is_empty());
    assert!(one("a.rs", &format!("a | {} |\n", "x".repeat(100))).contains("columns"));
    assert!(one("a.md", "a\n\tb\n").contains("a.md:2: a tab"));
    assert!(one("a.md", "a \n").contains("blanks"));
    assert!(one("a.md", "a").contains("no newline"));
    assert!(one("a.md", "Blazing speed\n").contains("`Blazing` promises"));
    assert!(one("a.rs", "// TODO: later\n").contains("TODO(#number)"));
    assert!(findings("a.rs", "// TODO(#12): later\n").is_empty());
    assert!(one("src/a.rs", &"x\n".repeat(601)).contains("601 lines, 600 are allowed"));
    assert!(findings("src/a.rs", &"x\n".repeat(600)).is_empty());
    let tests = format!("{}#[cfg(test)]\nmod tests {{\n{}", "x\n".repeat(600), "y\n".repeat(600));
    assert!(findings("src/a.rs", &tests).is_empty());
    let reason = "//! Long file: one table.\n";
    assert!(findings("src/a.rs", &format!("{reason}{}", "x\n".repeat(999))).is_empty());
    assert!(one("src/a.rs", &format!("{reason}{}", "x\n".repeat(1000))).contains("1001 lines"));
    assert!(one("tests/../tests/a.rs", &"x\n".repeat(1001)).contains("1001 lines"));
}
