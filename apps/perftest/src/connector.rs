//! The way to the other end: each says who it is and what it measures, and queue pairs are led to
//! those of the other, by what was said or through the connection manager.

use std::io::{Read, Write};

use anyhow::{Context, Result, anyhow, bail};
use ferrocx_verbs_lite::cm::Connection;
use ferrocx_verbs_lite::{Buf, Mtu, Path, Psn, Qp, RtrAttr, RtsAttr};

use crate::cm::CmPeer;
use crate::end::End;
use crate::exchange::{Endpoint, Hello, Lines, Role};
use crate::measure::Measure;
use crate::placement::Placement;

/// How queue pairs are led to those of the other end.
#[derive(Debug)]
pub enum Connector {
    /// By this way: both ends have said who they are.
    Told(Path, Mtu),
    /// Through the connection manager.
    Cm(CmPeer),
}

impl Connector {
    /// Leads a queue pair from INIT to RTS, towards `peer`; with its connection, if it has one.
    ///
    /// # Errors
    ///
    /// The device's reason, or what the connection manager says.
    pub fn join(
        &mut self,
        mut qp: Qp<Buf>,
        psn: Psn,
        peer: &Endpoint,
        timeout: u8,
    ) -> Result<(Qp<Buf>, Option<Connection>)> {
        match self {
            Self::Told(path, mtu) => {
                qp.connect(&RtrAttr::new(*path, peer.qpn(), peer.psn(), *mtu))?;
                qp.activate(&RtsAttr { timeout, ..RtsAttr::new(psn) })?;
                Ok((qp, None))
            }
            Self::Cm(peer) => {
                let (qp, connection) = peer.join(qp, timeout)?;
                Ok((qp, Some(connection)))
            }
        }
    }
}

/// Greets the other end; how queue pairs are led there, and what it said.
pub(crate) fn greet<S: Read + Write>(
    end: &End,
    placement: &Placement,
    measure: &Measure,
    lines: &mut Lines<S>,
    cm: Option<CmPeer>,
    role: Role,
) -> Result<(Connector, Measure)> {
    let version = env!("CARGO_PKG_VERSION").to_string();
    let (gid, mac) = (end.gid.0, end.device.device().mac().0);
    let own = Hello { version, gid, mac, measure: measure.clone() };
    if role == Role::Client {
        lines.say(&own)?;
    }
    let peer: Hello = lines.hear().context("exchange")?;
    if role == Role::Server {
        lines.say(&own)?;
    }
    if peer.version != own.version {
        bail!("the other end is version {}, this one {}; use the same", peer.version, own.version);
    }
    let (here, there) = (&own.measure, &peer.measure);
    if (here.test, here.kind) != (there.test, there.kind) {
        bail!(
            "the other end measures `{} {}`, this one `{} {}`; ask for the same",
            there.test.name(),
            there.kind.name(),
            here.test.name(),
            here.kind.name()
        );
    }
    // The client's word counts.
    let mtu = mtu_of(if role == Role::Client { here.mtu } else { there.mtu })?;
    let connector = match cm {
        Some(cm) => Connector::Cm(cm),
        None => {
            Connector::Told(end.path(peer.gid(), placement.peer_mac.or(Some(peer.mac())))?, mtu)
        }
    };
    Ok((connector, peer.measure))
}

/// The path MTU of so many bytes, or the refusal that there is none.
fn mtu_of(bytes: u32) -> Result<Mtu> {
    let all = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];
    let found = all.into_iter().find(|mtu| mtu.bytes() == bytes);
    found.ok_or_else(|| anyhow!("{bytes} is no path MTU"))
}
