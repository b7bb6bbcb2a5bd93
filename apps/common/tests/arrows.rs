//! The dependency arrows between our crates: only those of the table below may exist.
//!
//! The table is the architecture. The model must never see a driver type and the driver must never
//! see the model, or their agreement in tests would prove nothing; only applications and benches
//! choose between hardware and model.

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};

/// One crate of ours, the crates of ours that it may use, and those that its tests may add.
struct Row {
    name: &'static str,
    normal: &'static [&'static str],
    dev: &'static [&'static str],
}

const LIBRARIES: &[Row] = &[
    Row { name: "ferrocx-prm", normal: &[], dev: &[] },
    Row { name: "ferrocx-mempool", normal: &[], dev: &[] },
    Row { name: "ferrocx-heapcount", normal: &[], dev: &[] },
    Row { name: "ferrocx-net", normal: &[], dev: &[] },
    Row { name: "ferrocx-netdev", normal: &[], dev: &[] },
    Row { name: "ferrocx-bus", normal: &["ferrocx-mempool"], dev: &[] },
    // Beside the driver of the NIC: neither knows the other; memory is what they share.
    Row {
        name: "ferrocx-nvme",
        normal: &["ferrocx-bus", "ferrocx-mempool"],
        dev: &["ferrocx-heapcount"],
    },
    Row {
        name: "ferrocx-model",
        normal: &["ferrocx-prm", "ferrocx-bus", "ferrocx-netdev"],
        // The model takes regions from the bus; its tests have to make one first.
        dev: &["ferrocx-mempool", "ferrocx-heapcount"],
    },
    Row {
        name: "ferrocx-core",
        // Of the net only what names a station and a protocol: it uses nothing itself.
        normal: &["ferrocx-prm", "ferrocx-bus", "ferrocx-mempool", "ferrocx-net"],
        dev: &["ferrocx-model"],
    },
    // Siblings: neither knows the other.
    Row {
        name: "ferrocx-pmd",
        normal: &["ferrocx-core", "ferrocx-prm", "ferrocx-bus", "ferrocx-mempool", "ferrocx-net"],
        dev: &["ferrocx-model"],
    },
    Row {
        name: "ferrocx-verbs-lite",
        normal: &["ferrocx-core", "ferrocx-prm", "ferrocx-bus", "ferrocx-mempool", "ferrocx-net"],
        dev: &["ferrocx-model", "ferrocx-heapcount"],
    },
    Row {
        name: "ferrocx-uring",
        normal: &["ferrocx-mempool", "ferrocx-verbs-lite"],
        dev: &["ferrocx"],
    },
    // The C interface: it chooses the device at run time, as applications do.
    Row {
        name: "ferrocx-verbs-abi",
        normal: &[
            "ferrocx-verbs-lite",
            "ferrocx-core",
            "ferrocx-bus",
            "ferrocx-mempool",
            "ferrocx-net",
            "ferrocx-prm",
            "ferrocx-model",
        ],
        dev: &[],
    },
    // The facade: what applications use, and so the model, too.
    Row {
        name: "ferrocx",
        normal: &[
            "ferrocx-core",
            "ferrocx-pmd",
            "ferrocx-verbs-lite",
            "ferrocx-bus",
            "ferrocx-mempool",
            "ferrocx-net",
            "ferrocx-model",
        ],
        dev: &[],
    },
];

/// Crates below these folders may use every crate of ours: they choose the device at run time.
const APPLICATIONS: &[&str] = &["apps/", "benches/"];

fn metadata() -> Metadata {
    MetadataCommand::new()
        .manifest_path(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml"))
        .no_deps()
        .other_options(vec!["--offline".into()])
        .exec()
        .expect("cargo metadata answers for this workspace")
}

/// All arrows between members of the workspace that the table does not have.
fn forbidden(metadata: &Metadata) -> Vec<String> {
    let members = metadata.workspace_packages();
    let ours = |name: &str| members.iter().any(|member| member.name.as_str() == name);
    let mut found = Vec::new();
    for package in &members {
        let folder = package.manifest_path.strip_prefix(&metadata.workspace_root);
        let folder = folder.expect("members lie below the root").as_str();
        let row = LIBRARIES.iter().find(|row| row.name == package.name.as_str());
        if APPLICATIONS.iter().any(|prefix| folder.starts_with(prefix)) {
            continue;
        }
        let Some(row) = row else {
            found.push(format!("{}: not in the table of this test", package.name));
            continue;
        };
        for dependency in package.dependencies.iter().filter(|d| ours(&d.name)) {
            let name = dependency.name.as_str();
            let test = dependency.kind == DependencyKind::Development;
            let allowed = row.normal.contains(&name) || test && row.dev.contains(&name);
            if !allowed {
                found.push(format!("{} -> {name} ({:?})", package.name, dependency.kind));
            }
        }
    }
    found
}

#[test]
fn every_arrow_between_our_crates_is_in_the_table() {
    let found = forbidden(&metadata());
    assert!(found.is_empty(), "forbidden dependencies:\n{}", found.join("\n"));
}

#[test]
fn the_table_names_the_crates_that_exist() {
    let metadata = metadata();
    let members = metadata.workspace_packages();
    for row in LIBRARIES {
        let name = row.name;
        assert!(members.iter().any(|member| member.name.as_str() == name), "{name} is missing");
    }
}

/// The check itself must be able to fail: an arrow from the model to the driver is planted.
#[test]
fn a_planted_arrow_is_found() {
    let mut metadata = metadata();
    let find = |metadata: &Metadata, name: &str| {
        metadata.packages.iter().position(|package| package.name.as_str() == name).expect("ours")
    };
    let (driver, model) = (find(&metadata, "ferrocx-pmd"), find(&metadata, "ferrocx-model"));
    let mut arrow = metadata.packages[driver]
        .dependencies
        .iter()
        .find(|dependency| dependency.name == "ferrocx-model")
        .expect("the driver's tests use the model")
        .clone();
    arrow.kind = DependencyKind::Normal;
    metadata.packages[driver].dependencies.push(arrow.clone());
    arrow.name = "ferrocx-pmd".into();
    metadata.packages[model].dependencies.push(arrow);
    let found = forbidden(&metadata);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found.contains(&"ferrocx-model -> ferrocx-pmd (Normal)".to_string()), "{found:?}");
}
