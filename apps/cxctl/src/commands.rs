//! What the commands print: text for people, JSON for programs.

use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::{Context, Result};
use ferrocx_app_common::report::{JsonTarget, Table};
use serde::Serialize;

use crate::bind::{self, Live, Write};
use crate::doctor::{self, Need};
use crate::host::{Nic, Tree, nics};
use crate::hugepages;
use crate::{BindOptions, DoctorOptions, HugepageAction, HugepageOptions, StatusOptions, Which};

fn say(text: &str) {
    // A closed pipe is the reader's decision.
    let _ = io::stdout().write_all(text.as_bytes());
}

fn say_json(report: &impl Serialize) -> Result<()> {
    Ok(JsonTarget::Stdout.write(report)?)
}

/// `cxctl status`.
///
/// # Errors
///
/// Standard output cannot be written.
pub fn status(tree: &Tree, options: &StatusOptions) -> Result<()> {
    let nics = nics(tree, options.all);
    if options.json {
        return say_json(&nics);
    }
    say(&status_text(&nics));
    Ok(())
}

/// The table of adapters, and which groups have other members.
#[must_use]
pub fn status_text(nics: &[Nic]) -> String {
    if nics.is_empty() {
        return "no ConnectX-4 or later here (--all lists every network controller)\n".to_owned();
    }
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let mut table =
        Table::new(&["address", "device", "driver", "group", "node", "pcie", "firmware", "link"]);
    for nic in nics {
        let model = nic.model.map_or_else(|| nic.ids.clone(), str::to_owned);
        table.row([
            nic.address.clone(),
            model,
            or_dash(&nic.driver),
            or_dash(&nic.group.as_ref().map(|group| group.number.to_string())),
            or_dash(&nic.numa_node.map(|node| node.to_string())),
            or_dash(&nic.pcie.as_ref().map(|link| format!("x{} {}", link.width, link.speed))),
            or_dash(&nic.firmware),
            nic.link_text(),
        ]);
    }
    let mut text = table.render();
    for nic in nics {
        let Some(group) = &nic.group else { continue };
        let others = group.members.iter().filter(|(name, _)| *name != nic.address);
        let others: Vec<String> = others
            .map(|(name, driver)| format!("{name} ({})", driver.as_deref().unwrap_or("no driver")))
            .collect();
        if !others.is_empty() {
            text.push_str(&format!(
                "{}: in group {} with {}\n",
                nic.address,
                group.number,
                others.join(", ")
            ));
        }
    }
    text
}

/// The writes as a shell would do them.
fn show(writes: &[Write]) {
    for write in writes {
        say(&format!("{}\n", write.shell()));
    }
}

/// `cxctl bind`.
///
/// # Errors
///
/// The first function that must not or cannot be bound, and why.
pub fn bind(tree: &Tree, options: &BindOptions) -> Result<()> {
    for address in &options.addresses {
        let writes = bind::plan_bind(tree, address)?;
        show(&writes);
        match (writes.is_empty(), options.apply) {
            (true, _) => say(&format!("# {address} has vfio-pci already\n")),
            (false, false) => say("# nothing was written; --apply does it\n"),
            (false, true) => {
                bind::bind(tree, &Live, address)?;
                say(&format!("# {address} is bound to vfio-pci\n"));
            }
        }
    }
    Ok(())
}

/// `cxctl unbind`.
///
/// # Errors
///
/// The first function that must not or cannot be given back, and why.
pub fn unbind(tree: &Tree, options: &BindOptions) -> Result<()> {
    for address in &options.addresses {
        let writes = bind::plan_unbind(tree, address)?;
        show(&writes);
        match (writes.is_empty(), options.apply) {
            (true, _) => say(&format!("# {address} is not vfio-pci's\n")),
            (false, false) => say("# nothing was written; --apply does it\n"),
            (false, true) => {
                bind::unbind(tree, &Live, address)?;
                let driver = Nic::read(tree, address)?.driver;
                let driver = driver.unwrap_or_else(|| "no driver".to_owned());
                say(&format!("# {address} is bound to {driver}\n"));
            }
        }
    }
    Ok(())
}

/// `cxctl hugepages`.
///
/// # Errors
///
/// A size, node or count that does not exist; what the kernel refused.
pub fn hugepages(tree: &Tree, options: &HugepageOptions) -> Result<()> {
    let (write, apply) = match &options.action {
        None => {
            let report = hugepages::report(tree);
            if options.json {
                return say_json(&report);
            }
            say(&hugepages_text(&report));
            return Ok(());
        }
        Some(HugepageAction::Reserve { count, which: Which { size, node, apply } }) => {
            (hugepages::plan_reserve(tree, *count, *size, *node)?, *apply)
        }
        Some(HugepageAction::Release { count, which: Which { size, node, apply } }) => {
            (hugepages::plan_release(tree, *count, *size, *node)?, *apply)
        }
    };
    show(std::slice::from_ref(&write));
    if apply {
        hugepages::carry_out(tree, &Live, &write)?;
        say(&format!("# {} pages now\n", write.value));
    } else {
        say("# nothing was written; --apply does it\n");
    }
    Ok(())
}

/// The tables of [`hugepages::report`].
#[must_use]
pub fn hugepages_text(report: &hugepages::Report) -> String {
    let mut table = Table::new(&["node", "size", "pages", "free", "surplus"]);
    for row in &report.rows {
        table.row([
            row.node.map_or_else(|| "-".to_owned(), |node| node.to_string()),
            size_text(row.size_kib),
            row.total.to_string(),
            row.free.to_string(),
            row.surplus.to_string(),
        ]);
    }
    let mut text = table.render();
    for (size_kib, pages) in &report.promised {
        text.push_str(&format!("{pages} of {} are promised to mappings\n", size_text(*size_kib)));
    }
    for mount in &report.mounts {
        text.push_str(&format!("hugetlbfs at {mount}\n"));
    }
    for user in &report.users {
        text.push_str(&format!("{} ({}) uses {} KiB\n", user.name, user.pid, user.kib));
        for part in &user.uses {
            let (size, node) = (size_text(part.size_kib), part.node);
            let line = format!("    {} of {size} on node {node}: {}\n", part.pages, part.file);
            text.push_str(&line);
        }
    }
    text
}

fn size_text(kib: u64) -> String {
    match kib {
        kib if kib % (1 << 20) == 0 => format!("{}G", kib >> 20),
        kib if kib % (1 << 10) == 0 => format!("{}M", kib >> 10),
        kib => format!("{kib}K"),
    }
}

/// `cxctl doctor`.
///
/// # Errors
///
/// An address that names no device.
pub fn doctor(tree: &Tree, options: &DoctorOptions) -> Result<ExitCode> {
    let nics = if options.addresses.is_empty() {
        nics(tree, false)
    } else {
        let read = |address: &String| Nic::read(tree, address);
        options.addresses.iter().map(read).collect::<Result<_, _>>()?
    };
    let gids = match options.uid {
        Some(uid) => doctor::groups_of(tree, uid),
        None => {
            let mut gids = rustix::process::getgroups().context("reading the groups")?;
            gids.push(rustix::process::getegid());
            gids.into_iter().map(|gid| gid.as_raw()).collect()
        }
    };
    let uid = options.uid.unwrap_or_else(|| rustix::process::geteuid().as_raw());
    let is_caller = options.uid.is_none();
    let need = Need { bytes: options.need_mib << 20, uid, gids, is_caller };
    let findings = doctor::examine(tree, &nics, options.peer.as_deref(), &need);
    let worst = doctor::worst(&findings);
    if options.json {
        say_json(&findings)?;
    } else {
        findings.iter().for_each(|finding| say(&format!("{}\n", finding.line())));
    }
    Ok(ExitCode::from(worst.exit_code()))
}

#[cfg(test)]
#[path = "commands_tests.rs"]
mod tests;
