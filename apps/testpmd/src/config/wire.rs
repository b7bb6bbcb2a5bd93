//! What the ports of the model are plugged into.

use std::{fmt, path::PathBuf, str::FromStr};

use ferrocx_app_common::option::ConfigError;

const NAMES_OF_WIRES: &str = "generator, tap:NAME, packet:NAME, replay:FILE, link or none";

/// What a port of the model is plugged into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WireSpec {
    /// A load generator that checks what comes back.
    Generator,
    /// A TAP interface of this name, made if it is not there.
    Tap(String),
    /// An existing interface, through a packet socket.
    Packet(String),
    /// A capture that is played once.
    Replay(PathBuf),
    /// A cable to the other port of its pair: 0 and 1, 2 and 3, and so on.
    Link,
    /// Nothing: no carrier.
    Unplugged,
}

impl fmt::Display for WireSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Generator => f.write_str("generator"),
            Self::Tap(name) => write!(f, "tap:{name}"),
            Self::Packet(name) => write!(f, "packet:{name}"),
            Self::Replay(path) => write!(f, "replay:{}", path.display()),
            Self::Link => f.write_str("link"),
            Self::Unplugged => f.write_str("none"),
        }
    }
}

impl FromStr for WireSpec {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (kind, name) = text.split_once(':').unwrap_or((text, ""));
        match (kind, name) {
            ("generator", "") => Ok(Self::Generator),
            ("link", "") => Ok(Self::Link),
            ("none", "") => Ok(Self::Unplugged),
            ("replay", path) if !path.is_empty() => Ok(Self::Replay(path.into())),
            ("tap", name) => Ok(Self::Tap(interface(name)?)),
            // The name says how most people get such an interface.
            ("packet" | "veth", name) => Ok(Self::Packet(interface(name)?)),
            _ => Err(ConfigError::unknown("wire", text, NAMES_OF_WIRES)),
        }
    }
}

/// Checks an interface name as the kernel does. Source: Linux `dev_valid_name`.
fn interface(name: &str) -> Result<String, ConfigError> {
    let fits = (1..16).contains(&name.len()) && name != "." && name != "..";
    if !fits || name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace()) {
        let limit = "1 to 15 bytes without blank, slash or colon";
        return Err(ConfigError::unknown("interface name", name, limit));
    }
    Ok(name.into())
}
