//! `cxctl hugepages`: what is reserved, where, by whom it is used; reserving and releasing.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use crate::bind::{Kernel, Write};
use crate::host::Tree;

/// Hugepages of one size on one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// NUMA node; `None` on a kernel that has none.
    pub node: Option<u32>,
    /// Bytes of a page, in KiB.
    pub size_kib: u64,
    /// Pages that exist.
    pub total: u64,
    /// Pages that nobody has touched. Some of them may be promised to a mapping.
    pub free: u64,
    /// Pages beyond the reserved ones, made on demand.
    pub surplus: u64,
    #[serde(skip)]
    path: PathBuf,
}

/// A process that uses hugepages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct User {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// How much of its memory lies in hugepages.
    pub kib: u64,
    /// Where those are, of what size, and what for; empty where this user may not look.
    pub uses: Vec<Use>,
}

/// Hugepages that a process has touched, of one size on one node for one purpose.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Use {
    /// NUMA node.
    pub node: u32,
    /// Bytes of a page, in KiB.
    pub size_kib: u64,
    /// The file that is mapped; `anonymous` without one.
    pub file: String,
    /// Pages.
    pub pages: u64,
}

/// All there is to say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Per node and size.
    pub rows: Vec<Row>,
    /// Pages of the default size that are promised to mappings and not touched yet, per size.
    pub promised: Vec<(u64, u64)>,
    /// Processes that this user may look at, most memory first.
    pub users: Vec<User>,
    /// Mounted hugetlbfs folders and their options.
    pub mounts: Vec<String>,
}

/// Sizes below a folder such as `sys/devices/system/node/node0/hugepages`.
fn rows(tree: &Tree, node: Option<u32>, folder: &Path) -> Vec<Row> {
    let row = |name: &String| {
        let size_kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let path = folder.join(name);
        let number = |file: &str| tree.number(path.join(file)).unwrap_or(0);
        let (total, free) = (number("nr_hugepages"), number("free_hugepages"));
        Some(Row { node, size_kib, total, free, surplus: number("surplus_hugepages"), path })
    };
    let mut rows: Vec<Row> = tree.list(folder).iter().filter_map(row).collect();
    rows.sort_by_key(|row| row.size_kib);
    rows
}

/// Hugepages per node and size, or per size only on a kernel without nodes.
#[must_use]
pub fn table(tree: &Tree) -> Vec<Row> {
    let nodes = tree.list("sys/devices/system/node");
    let nodes = nodes.iter().filter_map(|name| name.strip_prefix("node")?.parse::<u32>().ok());
    let found: Vec<Row> = nodes
        .flat_map(|node| {
            let folder = format!("sys/devices/system/node/node{node}/hugepages");
            rows(tree, Some(node), Path::new(&folder))
        })
        .collect();
    if found.is_empty() { rows(tree, None, Path::new("sys/kernel/mm/hugepages")) } else { found }
}

/// Reads everything.
#[must_use]
pub fn report(tree: &Tree) -> Report {
    let all = rows(tree, None, Path::new("sys/kernel/mm/hugepages"));
    let promised = all
        .iter()
        .map(|row| (row.size_kib, tree.number(row.path.join("resv_hugepages")).unwrap_or(0)))
        .filter(|(_, promised)| *promised != 0)
        .collect();
    let mounts = tree.text("proc/mounts").unwrap_or_default();
    let mounts = mounts.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words.get(2) == Some(&"hugetlbfs"))
            .then(|| format!("{} ({})", words[1], words.get(3).unwrap_or(&"")))
    });
    Report { rows: table(tree), promised, users: users(tree), mounts: mounts.collect() }
}

/// Processes with `HugetlbPages` in their status.
fn users(tree: &Tree) -> Vec<User> {
    let user = |pid: &String| {
        let status = tree.text(Path::new("proc").join(pid).join("status"))?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.trim_start_matches(':').trim().to_owned())
        };
        let kib = field("HugetlbPages")?.split_whitespace().next()?.parse().ok()?;
        let name = field("Name")?;
        let maps = tree.text(Path::new("proc").join(pid).join("numa_maps"));
        let uses = uses(&maps.unwrap_or_default());
        (kib != 0).then_some(User { pid: pid.parse().ok()?, name, kib, uses })
    };
    let mut users: Vec<User> = tree.list("proc").iter().filter_map(user).collect();
    users.sort_by_key(|user| (std::cmp::Reverse(user.kib), user.pid));
    users
}

/// The hugepages of a process by node, size and file. Source: Linux `fs/proc/task_mmu.c`,
/// `show_numa_map`: `ADDRESS POLICY [file=NAME] [huge] ... N0=PAGES ... kernelpagesize_kB=KIB`.
fn uses(numa_maps: &str) -> Vec<Use> {
    let mut found: Vec<Use> = Vec::new();
    for line in numa_maps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let value = |key: &str| words.iter().find_map(|word| word.strip_prefix(key));
        let size = value("kernelpagesize_kB=").and_then(|kib| kib.parse().ok());
        let (true, Some(size_kib)) = (words.contains(&"huge"), size) else { continue };
        let file = value("file=").unwrap_or("anonymous").to_owned();
        for word in &words {
            let node = word.strip_prefix('N').and_then(|rest| rest.split_once('='));
            let node = node.and_then(|(node, n)| Some((node.parse().ok()?, n.parse().ok()?)));
            let Some((node, pages)) = node else { continue };
            let same = |known: &&mut Use| {
                (known.node, known.size_kib, &known.file) == (node, size_kib, &file)
            };
            match found.iter_mut().find(same) {
                Some(known) => known.pages += pages,
                None => found.push(Use { node, size_kib, file: file.clone(), pages }),
            }
        }
    }
    found.sort();
    found
}

/// `2M`, `1G`, `2048K` as KiB.
///
/// # Errors
///
/// For text of another form.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is no size of pages; write it as 2M or 1G");
    let upper = text.to_ascii_uppercase();
    let upper = upper.trim_end_matches("IB").trim_end_matches('B');
    let (digits, kib) = match upper.char_indices().last() {
        Some((at, 'K')) => (&upper[..at], 1),
        Some((at, 'M')) => (&upper[..at], 1 << 10),
        Some((at, 'G')) => (&upper[..at], 1 << 20),
        _ => return Err(bad()),
    };
    let count: u64 = digits.parse().map_err(|_| bad())?;
    count.checked_mul(kib).filter(|kib| *kib != 0).ok_or_else(bad)
}

/// The row of a size on a node; without a node, the kernel's total.
fn find(tree: &Tree, size_kib: u64, node: Option<u32>) -> Result<Row> {
    let (known, place) = match node {
        None => (rows(tree, None, Path::new("sys/kernel/mm/hugepages")), String::new()),
        Some(node) => (table(tree), format!(" on node {node}")),
    };
    let mut known = known.into_iter().filter(|row| row.node == node).peekable();
    ensure!(known.peek().is_some(), "there are no hugepages{place}; see `cxctl hugepages`");
    let sizes: Vec<Row> = known.collect();
    let names: Vec<String> = sizes.iter().map(|row| format!("{} KiB", row.size_kib)).collect();
    sizes.into_iter().find(|row| row.size_kib == size_kib).with_context(|| {
        format!("no hugepages of {size_kib} KiB{place}; there are {}", names.join(", "))
    })
}

/// The write after which `count` more pages exist.
///
/// # Errors
///
/// A size or node that does not exist.
pub fn plan_reserve(tree: &Tree, count: u64, size_kib: u64, node: Option<u32>) -> Result<Write> {
    let row = find(tree, size_kib, node)?;
    let total = row.total.checked_add(count).context("too many pages")?;
    Ok(Write { path: row.path.join("nr_hugepages"), value: total.to_string() })
}

/// The write after which `count` pages less exist, or all that are free are given back.
///
/// # Errors
///
/// A size or node that does not exist; more pages than are free.
pub fn plan_release(
    tree: &Tree,
    count: Option<u64>,
    size_kib: u64,
    node: Option<u32>,
) -> Result<Write> {
    let row = find(tree, size_kib, node)?;
    let promised: u64 = tree.number(row.path.join("resv_hugepages")).unwrap_or(0);
    let free = row.free.saturating_sub(promised);
    let count = count.unwrap_or(free);
    if count > free {
        bail!(
            "{count} pages of {size_kib} KiB cannot be released: {free} of {} are free; \
             `cxctl hugepages` names who uses them",
            row.total
        );
    }
    Ok(Write { path: row.path.join("nr_hugepages"), value: (row.total - count).to_string() })
}

/// Carries a plan out and checks that the kernel did it all.
///
/// # Errors
///
/// The write was refused, or memory is too fragmented for so many pages.
pub fn carry_out(tree: &Tree, kernel: &dyn Kernel, write: &Write) -> Result<()> {
    let path = tree.path(&write.path);
    kernel
        .write(&path, &write.value)
        .with_context(|| format!("`{}` was refused; run as root", write.shell()))?;
    let got: u64 = tree.number(&write.path).context("the kernel took its file back")?;
    ensure!(
        got.to_string() == write.value,
        "the kernel has {got} pages now, {} were asked for: memory is fragmented; reserve them \
         right after boot, or on the kernel command line (hugepages=)",
        write.value
    );
    Ok(())
}
