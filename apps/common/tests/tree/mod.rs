//! The tree that the tests of its form read.
#![allow(dead_code, reason = "each of its users needs a part")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Where the tree begins.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the tree is there")
}

/// The text files below the root whose names `wanted` accepts, with their texts; without build
/// output and what git keeps.
pub(crate) fn files(wanted: impl Fn(&str) -> bool) -> BTreeMap<String, String> {
    let root = root();
    let mut folders = vec![root.clone()];
    let mut found = BTreeMap::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the tree") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            let generated = ["target", "artifacts", "corpus"].contains(&name.as_str());
            if name.starts_with('.') || generated || path.is_symlink() {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if wanted(&name) {
                let Ok(text) = fs::read_to_string(&path) else { continue };
                let path = path.strip_prefix(&root).expect("below the root");
                found.insert(path.to_string_lossy().into_owned(), text);
            }
        }
    }
    found
}
