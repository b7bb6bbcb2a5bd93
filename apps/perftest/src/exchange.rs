//! What two ends of ours tell each other: lines of JSON over a stream.
//!
//! | client says | server says | then |
//! |---|---|---|
//! | [`Hello`] | [`Hello`] | each knows address and MAC of the other |
//! | [`Offer`] for a round | [`Offer`] | queue pairs are connected |
//! | [`Ready`] | [`Ready`] | messages flow |
//! | [`Done`] | [`Verdict`] | the next round, or none: the client hangs up |

use std::io::{self, BufRead, BufReader, Read, Write};

use ferrocx_core::MacAddr;
use ferrocx_verbs_lite::{Gid, Psn, Qpn, RemoteAddr, Rkey};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::measure::Measure;

/// Longest line: offers of many queue pairs.
const MAX_LINE_BYTES: u64 = 4 << 20;

/// Which end this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It sends first.
    Client,
    /// It answers.
    Server,
}

/// The first line of each end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Version of this program: both ends must be the same.
    pub version: String,
    /// Own address.
    pub gid: [u8; 16],
    /// Own MAC address.
    pub mac: [u8; 6],
    /// What to measure; the client's counts.
    pub measure: Measure,
}

impl Hello {
    /// The address.
    #[must_use]
    pub fn gid(&self) -> Gid {
        Gid(self.gid)
    }

    /// The MAC address.
    #[must_use]
    pub fn mac(&self) -> MacAddr {
        MacAddr(self.mac)
    }
}

/// A queue pair of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    qpn: u32,
    psn: u32,
    addr: u64,
    rkey: u32,
}

impl Endpoint {
    /// A queue pair, its first PSN, and the memory that its peer may use.
    #[must_use]
    pub fn new(qpn: Qpn, psn: Psn, memory: RemoteAddr) -> Self {
        Self { qpn: qpn.0, psn: psn.0, addr: memory.addr, rkey: memory.rkey.0 }
    }

    /// Its number.
    #[must_use]
    pub fn qpn(&self) -> Qpn {
        Qpn(self.qpn & 0xff_ffff)
    }

    /// The first number that it sends.
    #[must_use]
    pub fn psn(&self) -> Psn {
        Psn(self.psn & 0xff_ffff)
    }

    /// Its memory.
    #[must_use]
    pub fn memory(&self) -> RemoteAddr {
        RemoteAddr { addr: self.addr, rkey: Rkey(self.rkey) }
    }
}

/// The queue pairs of a round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Bytes of a message.
    pub size: usize,
    /// One for each queue pair, in order.
    pub endpoints: Vec<Endpoint>,
}

/// This end is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {}

/// The client has sent everything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Messages of each queue pair.
    pub messages: Vec<u64>,
}

/// What the server found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Messages whose bytes it checked.
    pub checked: u64,
    /// The first thing that was wrong.
    pub error: Option<String>,
}

/// A stream of lines.
#[derive(Debug)]
pub struct Lines<S> {
    stream: BufReader<S>,
}

impl<S: Read + Write> Lines<S> {
    /// Over a stream.
    pub fn new(stream: S) -> Self {
        Self { stream: BufReader::new(stream) }
    }

    /// Says something.
    ///
    /// # Errors
    ///
    /// The stream's.
    pub fn say(&mut self, what: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(what)?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line)
    }

    /// Hears something; `None` when the other end has hung up.
    ///
    /// # Errors
    ///
    /// The stream's, or [`io::ErrorKind::InvalidData`] for what is not expected here.
    pub fn hear_or_end<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let mut line = Vec::new();
        let read = self.stream.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(None);
        }
        serde_json::from_slice(&line).map(Some).map_err(|error| {
            let quoted: String = line.escape_ascii().map(char::from).take(60).collect();
            let why = format!("the other end said `{quoted}`: {error}");
            io::Error::new(io::ErrorKind::InvalidData, why)
        })
    }

    /// Hears something.
    ///
    /// # Errors
    ///
    /// As [`Lines::hear_or_end`], or [`io::ErrorKind::UnexpectedEof`].
    pub fn hear<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        self.hear_or_end()?.ok_or_else(|| {
            io::Error::new(io::ErrorKind::UnexpectedEof, "the other end has hung up")
        })
    }

    /// The stream below.
    pub fn get_ref(&self) -> &S {
        self.stream.get_ref()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn what_is_said_is_heard_until_the_other_hangs_up() {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut here, mut there) = (Lines::new(here), Lines::new(there));
        let memory = RemoteAddr { addr: u64::MAX, rkey: Rkey(0xdead_beef) };
        let endpoint = Endpoint::new(Qpn(7), Psn(0xff_ffff), memory);
        assert_eq!((endpoint.qpn(), endpoint.psn()), (Qpn(7), Psn(0xff_ffff)));
        assert_eq!(endpoint.memory(), memory);
        let offer = Offer { size: 9, endpoints: vec![endpoint; 2] };
        here.say(&offer).unwrap();
        here.say(&Done { messages: vec![1] }).unwrap();
        assert_eq!(there.hear::<Offer>().unwrap(), offer);
        let wrong = there.hear::<Offer>().unwrap_err().to_string();
        assert!(wrong.starts_with(r#"the other end said `{\"messages\":[1]}\n`"#), "{wrong}");
        drop(here);
        assert_eq!(there.hear_or_end::<Ready>().unwrap(), None);
        let end = there.hear::<Ready>().unwrap_err();
        assert_eq!(end.to_string(), "the other end has hung up");
    }
}
