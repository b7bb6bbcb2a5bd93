//! No circle of files: inside each crate a reader can start at the bottom and read upwards.
//!
//! An arrow goes from a file to each file of the same crate whose names it takes, by `use` or by a
//! path in its code (`crate::`, `super::`, `self::`, or a child module's name). A name that is
//! re-exported leads to the file that defines it, so a facade, which uses none of the names that it
//! passes on, makes no circle. Arrows from code under `#[cfg(test)]`, which may look at everything,
//! are left out.
//!
//! Arrows from a file to the folder that it lies in (`mod.rs` or `lib.rs`) are looked at apart: a
//! folder whose own file takes names of its parts, which take names of it, is read as one piece.
//! Such folders are listed, each with its reason, and no more come without one.

#[path = "circles/modules.rs"]
mod modules;
#[path = "circles/tokens.rs"]
mod tokens;
mod tree;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use cargo_metadata::{MetadataCommand, TargetKind};

use modules::Crate;
use tree::root;

/// Circles that may exist, and how many of them at most.
const ALLOWED: &[Allowed] = &[];
const MOST: usize = 5;

/// Folders that are read as one piece.
const FOLDERS: &[Allowed] = &[
    Allowed {
        holds: "apps/cxctl/src/doctor/mod.rs",
        reason: "Every look returns a finding, and the folder lists the looks.",
    },
    Allowed {
        holds: "apps/cxctl/src/lib.rs",
        reason: "The commands take their options, which are the library's face as `run` is.",
    },
    Allowed {
        holds: "apps/nvmf-target/src/bench/mod.rs",
        reason: "The load carries the plan out, and gives the outcome that is printed.",
    },
    Allowed {
        holds: "apps/nvmf-target/src/config/mod.rs",
        reason: "The parts check values whose types and ranges are the configuration's.",
    },
    Allowed {
        holds: "apps/nvmf-target/src/controller/mod.rs",
        reason: "The parts are methods of the target and of its controllers.",
    },
    Allowed {
        holds: "apps/nvmf-target/src/host/mod.rs",
        reason: "The parts are methods of the host, and fail as it does.",
    },
    Allowed {
        holds: "apps/nvmf-target/src/transport/mod.rs",
        reason: "The parts are methods of the server, one for each thing that it does.",
    },
    Allowed {
        holds: "apps/simulation/src/storage/mod.rs",
        reason: "Commands are methods of the storage that draws and gives them.",
    },
    Allowed {
        holds: "apps/tick2trade/src/feed/mod.rs",
        reason: "A session calls the arbiter back with what it heard.",
    },
    Allowed {
        holds: "apps/tick2trade/src/measure.rs",
        reason: "The cores are watched as the plan says, phase by phase.",
    },
    Allowed {
        holds: "apps/tick2trade/src/orders.rs",
        reason: "Asking is a method of the order entry, and gives its events.",
    },
    Allowed {
        holds: "apps/tick2trade/src/proto/ouch/mod.rs",
        reason: "Messages and answers share the fields that both have.",
    },
    Allowed {
        holds: "apps/tick2trade/src/trader.rs",
        reason: "What is measured on a device are methods of the trader.",
    },
    Allowed {
        holds: "benches/src/cases/mod.rs",
        reason: "Each case has the type of the list that it is in.",
    },
    Allowed {
        holds: "pmd/model/src/eth/steering.rs",
        reason: "A compiled table is read by the rules that it was made of.",
    },
    Allowed {
        holds: "pmd/model/src/objects/mod.rs",
        reason: "Every object says its bytes in the measure of the whole list.",
    },
    Allowed {
        holds: "pmd/net/src/icmpecho/mod.rs",
        reason: "The protocols answer for the station that asks them.",
    },
    Allowed {
        holds: "pmd/net/src/packet/mod.rs",
        reason: "Reading and writing share the sizes of headers, and writing ends by sealing.",
    },
    Allowed {
        holds: "pmd/src/rx/mod.rs",
        reason: "Slower kinds of queue are methods of the ring that a burst starts with.",
    },
    Allowed {
        holds: "verbs-lite/abi/src/face/rdma_cm/mod.rs",
        reason: "Identifiers stand in the table that they are looked up in.",
    },
    Allowed {
        holds: "verbs-lite/abi/src/node/mod.rs",
        reason: "The parts are methods of the node, which owns what they run.",
    },
    Allowed {
        holds: "verbs-lite/src/mr/mod.rs",
        reason: "A buffer holds the registration that it was cut from.",
    },
    Allowed {
        holds: "verbs-lite/src/qp/mod.rs",
        reason: "States, posting and raw packets are methods of the queue pair.",
    },
    Allowed {
        holds: "verbs-lite/uring/src/lib.rs",
        reason: "The queue takes requests, which are the library's face as it is.",
    },
];
/// Crates that shall have few of them, and how many at most.
const HOUSE: &[&str] =
    &["pmd/src/", "pmd/core/", "verbs-lite/src/", "mempool/", "apps/perftest/", "apps/testpmd/"];

/// A circle that has a reason.
struct Allowed {
    /// One of its files, relative to the root of the tree.
    holds: &'static str,
    /// Why its files cannot be read one after the other.
    reason: &'static str,
}

/// The first files of all libraries and programs of the workspace, relative to its root.
fn first_files() -> Vec<PathBuf> {
    let metadata = MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .no_deps()
        .other_options(vec!["--offline".into()])
        .exec()
        .expect("cargo metadata answers for this workspace");
    let has_code = |kinds: &[TargetKind]| {
        let is_test = |kind: &TargetKind| {
            [TargetKind::Test, TargetKind::Bench, TargetKind::Example, TargetKind::CustomBuild]
                .contains(kind)
        };
        !kinds.iter().any(is_test)
    };
    let mut found = Vec::new();
    for package in metadata.workspace_packages() {
        for target in package.targets.iter().filter(|target| has_code(&target.kind)) {
            let path = target.src_path.strip_prefix(&metadata.workspace_root);
            found.push(path.expect("members lie below the root").as_std_path().to_owned());
        }
    }
    found
}

/// The circles of one crate: all sets of files of which each reaches every other.
fn circles(arrows: &BTreeMap<PathBuf, BTreeSet<PathBuf>>) -> Vec<Vec<PathBuf>> {
    let mut reached = BTreeMap::new();
    for file in arrows.keys() {
        let (mut seen, mut open) = (BTreeSet::new(), vec![file]);
        while let Some(file) = open.pop() {
            open.extend(arrows.get(file).into_iter().flatten().filter(|to| seen.insert(*to)));
        }
        reached.insert(file, seen);
    }
    let mut found = BTreeSet::new();
    for (file, others) in &reached {
        let back = |other: &&PathBuf| reached.get(other).is_some_and(|seen| seen.contains(file));
        let circle: Vec<PathBuf> = others.iter().copied().filter(back).cloned().collect();
        if circle.len() > 1 {
            found.insert(circle);
        }
    }
    found.into_iter().collect()
}

/// What is wrong with a crate that starts at `first`: a line for each circle that has no reason.
fn unexplained(first: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Vec<String> {
    said_nowhere(&Crate::read(first, read).arrows(), ALLOWED)
}

/// A line for each circle that none of `allowed` is in.
fn said_nowhere(arrows: &BTreeMap<PathBuf, BTreeSet<PathBuf>>, allowed: &[Allowed]) -> Vec<String> {
    let is_allowed = |circle: &[PathBuf]| {
        allowed.iter().any(|allowed| circle.iter().any(|file| file == Path::new(allowed.holds)))
    };
    let mut found = Vec::new();
    for circle in circles(arrows) {
        if is_allowed(&circle) {
            continue;
        }
        let mut line = format!("{} files:", circle.len());
        for from in &circle {
            let inside = arrows[from].iter().filter(|to| circle.contains(to));
            for to in inside {
                line += &format!("\n  {} -> {}", from.display(), to.display());
            }
        }
        found.push(line);
    }
    found
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(root().join(path)).ok()
}

#[test]
fn no_files_stand_in_a_circle() {
    let first = first_files();
    assert!(first.len() > 10, "the workspace has more than {} crates", first.len());
    let found: Vec<String> = first.iter().flat_map(|first| unexplained(first, &read)).collect();
    assert!(found.is_empty(), "{} circles:\n{}", found.len(), found.join("\n"));
}

#[test]
fn every_circle_that_is_allowed_exists_and_has_a_reason() {
    assert!(ALLOWED.len() <= MOST, "at most {MOST} circles");
    let all: Vec<Vec<PathBuf>> = first_files()
        .iter()
        .flat_map(|first| circles(&Crate::read(first, &read).arrows()))
        .collect();
    for Allowed { holds, reason } in ALLOWED {
        let has = |circle: &Vec<PathBuf>| circle.iter().any(|file| file == Path::new(holds));
        assert!(all.iter().any(has), "no circle any more: {holds}");
        assert!(reason.ends_with('.'), "{holds}: the reason is a sentence");
    }
}

#[test]
fn a_folder_is_one_piece_with_its_files_only_where_a_reason_says_so() {
    let all: Vec<_> =
        first_files().iter().map(|first| Crate::read(first, &read).all_arrows()).collect();
    let found: Vec<String> = all.iter().flat_map(|arrows| said_nowhere(arrows, FOLDERS)).collect();
    assert!(found.is_empty(), "{} folders:\n{}", found.len(), found.join("\n"));
    let circles: Vec<Vec<PathBuf>> = all.iter().flat_map(circles).collect();
    for Allowed { holds, reason } in FOLDERS {
        let has = |circle: &Vec<PathBuf>| circle.iter().any(|file| file == Path::new(holds));
        assert!(circles.iter().any(has), "no circle any more: {holds}");
        assert!(reason.ends_with('.'), "{holds}: the reason is a sentence");
    }
    let house = FOLDERS.iter().filter(|row| HOUSE.iter().any(|of| row.holds.starts_with(of)));
    assert!(house.count() <= MOST, "at most {MOST} in {HOUSE:?}");
}

/// The check itself must be able to fail: a circle is planted in a crate that has none.
#[test]
fn a_planted_circle_is_found() {
    let first = Path::new("apps/perftest/src/lib.rs");
    assert_eq!(unexplained(first, &read), [""; 0]);
    let planted = |path: &Path| {
        let mut text = read(path)?;
        if path.ends_with("measure.rs") && !path.ends_with("config/measure.rs") {
            text += "\nuse crate::{cli, report::{self as printed}};\n";
        }
        Some(text)
    };
    let found = unexplained(first, &planted);
    let expected = "2 files:\n  apps/perftest/src/measure.rs -> apps/perftest/src/report.rs\n  \
                    apps/perftest/src/report.rs -> apps/perftest/src/measure.rs";
    assert_eq!(found, [expected]);
}

#[test]
fn a_planted_folder_is_found() {
    let first = Path::new("apps/perftest/src/lib.rs");
    let planted = |path: &Path| {
        let mut text = read(path)?;
        if path.ends_with("config/measure.rs") {
            text += "\nuse super::Job;\n";
        }
        Some(text)
    };
    let arrows = Crate::read(first, &planted).all_arrows();
    let (folder, part) = ("apps/perftest/src/config/mod.rs", "apps/perftest/src/config/measure.rs");
    let expected = format!("2 files:\n  {part} -> {folder}\n  {folder} -> {part}");
    assert_eq!(said_nowhere(&arrows, &[]), [expected]);
    let allowed = [Allowed { holds: folder, reason: "It is planted." }];
    assert_eq!(said_nowhere(&arrows, &allowed), [""; 0]);
}

/// The arrows of a crate made up of these files, as `from -> to`.
fn arrows_of(files: &[(&str, &str)]) -> Vec<String> {
    let read = |path: &Path| {
        let found = files.iter().find(|(name, _)| Path::new(name) == path);
        found.map(|(_, text)| (*text).to_owned())
    };
    let name = |path: &Path| path.display().to_string();
    let arrows = Crate::read(Path::new("lib.rs"), &read).arrows();
    let lines = arrows
        .iter()
        .flat_map(|(from, to)| to.iter().map(move |to| format!("{} -> {}", name(from), name(to))));
    lines.collect()
}

#[test]
fn paths_lead_to_the_files_that_define_their_names() {
    let files = [
        // A facade: of the library, and of a folder.
        ("lib.rs", "pub mod a; mod b; pub use b::{B, Low as Lowest}; fn f() { a::run(); }"),
        ("a/mod.rs", "mod inner; #[path = \"x.rs\"] mod other; pub use inner::*; pub fn run() {}"),
        ("a/inner.rs", "use super::other::X; pub struct Inner<'a>(&'a crate::Lowest);"),
        ("a/x.rs", "// use crate::b::B;\npub struct X; const S: &str = \"crate::b::B\";"),
        ("b.rs", "mod low; pub use self::low::Low; pub struct B(crate::a::Inner, Low);"),
        ("b/low.rs", "pub struct Low; #[cfg(test)] mod tests { use super::super::B; }"),
    ];
    let expected = [
        "a/inner.rs -> a/x.rs",
        "a/inner.rs -> b/low.rs",
        "b.rs -> a/inner.rs",
        "b.rs -> b/low.rs",
        "lib.rs -> a/mod.rs",
    ];
    assert_eq!(arrows_of(&files), expected);
}

#[test]
fn a_child_takes_from_its_parent_and_siblings_from_each_other() {
    let low = "mod deep { use super::super::{LIMIT, high}; } pub fn check() {}";
    let files = [
        ("lib.rs", "mod high; mod low; const LIMIT: u8 = b'\\''; fn f() { low::check() }"),
        ("low.rs", low),
        ("high.rs", "/* use crate::LIMIT; */ type High = fn(super::low::deep::Deep) -> u8;"),
    ];
    let arrows = ["high.rs -> low.rs", "lib.rs -> low.rs", "low.rs -> high.rs"];
    assert_eq!(arrows_of(&files), arrows);
}
