//! `cxctl doctor`: what would go wrong with the first packet, and how to mend it.
//!
//! # Architecture
//!
//! - [`machine`]: IOMMU, VFIO's modules and files, memory, cores. Once per machine.
//! - [`device`]: a function's group, driver, port, link, node, BAR, reset. Once per function.
//! - [`peer`]: the way between two devices and the BAR at its end, for peer memory.
//!
//! Each check is a function from a [`Tree`] to a [`Finding`]: ok, or what is wrong and what mends
//! it. Checks change nothing.

pub mod device;
pub mod machine;
pub mod peer;
#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::host::{Nic, Tree};

/// How bad it is. The worst one decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// As it should be.
    Ok,
    /// It will work, but slower or less safely than it could.
    Warning,
    /// It will not work.
    Problem,
}

impl Severity {
    /// Exit code of the command: 0, 3, 4. 1 and 2 are those of errors and of wrong usage.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Warning => 3,
            Self::Problem => 4,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Which check, as in `memlock`.
    pub check: &'static str,
    /// The device it is about, if it is about one.
    pub device: Option<String>,
    /// How bad it is.
    pub severity: Severity,
    /// What was found.
    pub text: String,
    /// What mends it, if anything is to be mended.
    pub mend: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, text: impl Into<String>) -> Self {
        Self { check, device: None, severity: Severity::Ok, text: text.into(), mend: None }
    }

    fn bad(
        check: &'static str,
        severity: Severity,
        text: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        let (text, mend) = (text.into(), Some(mend.into()));
        Self { check, device: None, severity, text, mend }
    }

    fn problem(check: &'static str, text: impl Into<String>, mend: impl Into<String>) -> Self {
        Self::bad(check, Severity::Problem, text, mend)
    }

    fn warning(check: &'static str, text: impl Into<String>, mend: impl Into<String>) -> Self {
        Self::bad(check, Severity::Warning, text, mend)
    }

    fn about(mut self, device: &str) -> Self {
        self.device = Some(device.to_owned());
        self
    }

    /// The line for people.
    #[must_use]
    pub fn line(&self) -> String {
        let device = self.device.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
        let mend = self.mend.as_ref().map(|mend| format!("; mend: {mend}")).unwrap_or_default();
        format!("{:<8} {:<12} {device}{}{mend}", self.severity.word(), self.check, self.text)
    }
}

/// What the program that is to run needs, and who runs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    /// Bytes of buffers and rings that are locked and mapped for the device.
    pub bytes: u64,
    /// The user.
    pub uid: u32,
    /// The user's groups.
    pub gids: Vec<u32>,
    /// Whether it is the user who asks, whose limits are known.
    pub is_caller: bool,
}

/// The groups of a user, by `/etc/passwd` and `/etc/group`.
#[must_use]
pub fn groups_of(tree: &Tree, uid: u32) -> Vec<u32> {
    let text = |path: &str| tree.text(path).unwrap_or_default();
    let (users, groups) = (text("etc/passwd"), text("etc/group"));
    // name:password:uid:gid:..., and name:password:gid:member,member.
    let mut users = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let is_it = |user: &Vec<&str>| user.get(2).and_then(|id| id.parse().ok()) == Some(uid);
    let Some(user) = users.find(is_it) else { return Vec::new() };
    let others = groups.lines().filter_map(|line| {
        let group: Vec<_> = line.split(':').collect();
        let is_member = group.get(3)?.split(',').any(|name| name == user[0]);
        group[2].parse().ok().filter(|_| is_member)
    });
    user.get(3).and_then(|gid| gid.parse().ok()).into_iter().chain(others).collect()
}

/// Runs every check for these functions, and for the way from each to `peer`.
#[must_use]
pub fn examine(tree: &Tree, nics: &[Nic], peer: Option<&str>, need: &Need) -> Vec<Finding> {
    let mut found = machine::checks(tree, nics, need);
    // Without an adapter there is no way to it, but it may be none itself.
    if nics.is_empty() {
        found.extend(peer.and_then(|peer| peer::named(tree, peer).err()));
    }
    for nic in nics {
        let checks = device::checks(tree, nic, need);
        let peer = peer.map(|peer| peer::checks(tree, &nic.address, peer)).unwrap_or_default();
        found.extend(checks.into_iter().chain(peer).map(|finding| finding.about(&nic.address)));
    }
    found
}

/// The worst of all.
#[must_use]
pub fn worst(findings: &[Finding]) -> Severity {
    findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Ok)
}
