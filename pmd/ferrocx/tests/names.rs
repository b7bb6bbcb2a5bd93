//! The guide's table of foreign names is right: what stands beside each is in the sources, and
//! answers to that name in the documentation's search.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// The Rust files below a folder.
fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|end| end == "rs") {
            into.push(path);
        }
    }
}

/// Every alias of a file, with the name of the item that has it.
fn aliases(text: &str) -> Vec<(String, String)> {
    let (mut found, mut waiting) = (Vec::new(), Vec::new());
    for line in text.lines().map(str::trim) {
        if let Some(alias) = line.strip_prefix("#[doc(alias = \"") {
            waiting.push(alias.trim_end_matches("\")]").to_owned());
        } else if let Some(item) = line.strip_prefix("pub ") {
            let name = item.split(' ').nth(if item.starts_with("unsafe") { 2 } else { 1 });
            let name = name.unwrap_or_default().split(['(', '<', ':', ';', '{']).next();
            let name = name.unwrap_or_default().to_owned();
            found.extend(waiting.drain(..).map(|alias| (alias, name.clone())));
        }
    }
    assert!(waiting.is_empty(), "of no item: {waiting:?}");
    found
}

#[test]
fn every_name_of_the_table_is_an_alias_of_what_stands_beside_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    for folder in ["mempool", "pmd", "pmd/core", "pmd/ferrocx", "verbs-lite"] {
        sources(&root.join(folder).join("src"), &mut files);
    }
    let read = |path: &PathBuf| aliases(&std::fs::read_to_string(path).unwrap());
    let known: HashSet<_> = files.iter().flat_map(read).collect();
    let page = std::fs::read_to_string(root.join("docs/guide/src/names.md")).unwrap();
    let mut listed = HashSet::new();
    for line in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        // Rows in words name no item.
        let items: Vec<_> = cells[2].split(", ").collect();
        if !items.iter().all(|item| item.starts_with('`') && item.ends_with('`')) {
            continue;
        }
        for item in items {
            let name = item.trim_matches('`').rsplit("::").next().unwrap();
            listed.insert((cells[1].trim_matches('`').to_owned(), name.to_owned()));
        }
    }
    assert!(listed.len() > 80, "{}", listed.len());
    let missing: Vec<_> = listed.difference(&known).collect();
    assert!(missing.is_empty(), "not aliases: {missing:?}");
    // `to_rtr` and its kin are no names of others.
    let unlisted: Vec<_> =
        known.difference(&listed).filter(|(alias, _)| !alias.starts_with("to_")).collect();
    assert!(unlisted.is_empty(), "not in the table: {unlisted:?}");
}
