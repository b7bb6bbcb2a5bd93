//! What a target has done, as text and as JSON.

use std::fmt::Write;

use serde::Serialize;

use crate::proto::log::Traffic;
use crate::transport::Server;

/// What a target has done so far.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    /// Queues that are connected.
    pub queues: u32,
    /// Queues that were accepted, refused, ended, and those that ended by a failure.
    pub accepted: u64,
    /// Queues that were refused.
    pub rejected: u64,
    /// Queues that have ended.
    pub ended: u64,
    /// Of these, those that ended by a failure.
    pub failed: u64,
    /// Times that a command had to wait for room.
    pub waits: u64,
    /// Controllers that hosts have.
    pub controllers: Vec<ControllerTraffic>,
}

/// What the host of a controller has done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ControllerTraffic {
    /// Number of the controller.
    pub cntlid: u16,
    /// Name of the host.
    pub host: String,
    /// Commands of any kind.
    pub commands: u64,
    /// Commands that failed.
    pub errors: u64,
    /// Commands that read, and bytes.
    pub reads: u64,
    /// Bytes that were read.
    pub bytes_read: u64,
    /// Commands that wrote.
    pub writes: u64,
    /// Bytes that were written.
    pub bytes_written: u64,
}

impl Snapshot {
    /// What a server has done so far.
    #[must_use]
    pub fn of(server: &Server) -> Self {
        let stats = server.stats();
        let one = |(cntlid, host, traffic): (u16, &str, &Traffic)| ControllerTraffic {
            cntlid,
            host: host.to_owned(),
            commands: traffic.commands,
            errors: traffic.errors,
            reads: traffic.reads,
            bytes_read: traffic.bytes_read,
            writes: traffic.writes,
            bytes_written: traffic.bytes_written,
        };
        Self {
            queues: stats.queues,
            accepted: stats.accepted,
            rejected: stats.rejected,
            ended: stats.ended,
            failed: stats.failed,
            waits: stats.waits,
            controllers: server.target().traffic().map(one).collect(),
        }
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { queues, accepted, rejected, ended, failed, waits, controllers } = self;
        let mut text = format!(
            "{queues} queues ({accepted} accepted, {rejected} refused, {ended} ended, {failed} by \
             failures), {waits} waits\n"
        );
        for it in controllers {
            let (read, written) = (it.bytes_read >> 10, it.bytes_written >> 10);
            let _ = writeln!(
                text,
                "  controller {} of {}: {} commands, {} failed, {} reads ({read} KiB), {} writes \
                 ({written} KiB)",
                it.cntlid, it.host, it.commands, it.errors, it.reads, it.writes
            );
        }
        text
    }

    /// One line of JSON.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_have_every_number() {
        let controllers = vec![ControllerTraffic {
            cntlid: 7,
            host: "nqn.2014-08.a:h".into(),
            commands: 11,
            errors: 12,
            reads: 13,
            bytes_read: 14 << 10,
            writes: 15,
            bytes_written: 16 << 10,
        }];
        let snapshot = Snapshot {
            queues: 1,
            accepted: 2,
            rejected: 3,
            ended: 4,
            failed: 5,
            waits: 6,
            controllers,
        };
        let text = snapshot.text();
        for number in ["1 queues (2 accepted, 3 refused, 4 ended, 5 by", "13 reads (14 KiB)"] {
            assert!(text.contains(number), "{text}");
        }
        let json: serde_json::Value = serde_json::from_str(&snapshot.json()).unwrap();
        assert_eq!(json["controllers"][0]["bytes_written"], 16 << 10);
    }
}
