//! Data of Connect: [`ConnectData`], and the names in it.

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the data.
pub const CONNECT_BYTES: usize = 1024;
/// Entries of the admin queue at most.
pub const ADMIN_ENTRIES: u16 = 32;
/// Controller number of a host that takes any.
pub const ANY_CONTROLLER: u16 = 0xffff;
/// Name of the discovery service.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Bytes of a name at most.
pub const MAX_NQN_BYTES: usize = 223;
/// `cattr` of a Connect whose queue has no flow control.
pub const NO_FLOW_CONTROL: u8 = 1 << 2;
/// Result of a Connect, beside the controller's number: the host has to authenticate itself.
pub const AUTH_REQUIRED: u32 = 1 << 17;

/// What a host says of itself and of the subsystem that it wants.
///
/// # Source
///
/// NVM Express base, "Connect Command, Data"; reference 10.1.5.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ConnectData {
    /// Identifier of the host.
    pub hostid: [u8; 16],
    /// The controller, or [`ANY_CONTROLLER`].
    pub cntlid: U16,
    reserved: [u8; 238],
    subnqn: [u8; 256],
    hostnqn: [u8; 256],
    reserved_end: [u8; 256],
}

impl ConnectData {
    /// Where the controller number stands, for completions that call it wrong.
    pub const CNTLID_AT: u16 = 16;
    /// Where the subsystem's name stands.
    pub const SUBNQN_AT: u16 = 256;
    /// Where the host's name stands.
    pub const HOSTNQN_AT: u16 = 512;

    /// The data of a host. Names beyond [`MAX_NQN_BYTES`] are cut.
    #[must_use]
    pub fn new(hostid: [u8; 16], cntlid: u16, subnqn: &str, hostnqn: &str) -> Self {
        let mut data = Self {
            hostid,
            cntlid: cntlid.into(),
            reserved: [0; 238],
            subnqn: [0; 256],
            hostnqn: [0; 256],
            reserved_end: [0; 256],
        };
        super::put_text(&mut data.subnqn, 0, MAX_NQN_BYTES, subnqn, 0);
        super::put_text(&mut data.hostnqn, 0, MAX_NQN_BYTES, hostnqn, 0);
        data
    }

    /// The subsystem's name, if it is one.
    #[must_use]
    pub fn subnqn(&self) -> Option<&str> {
        name(&self.subnqn)
    }

    /// The host's name, if it is one.
    #[must_use]
    pub fn hostnqn(&self) -> Option<&str> {
        name(&self.hostnqn)
    }
}

/// The text before the NUL of a field, if it has one and is a name.
fn name(field: &[u8; 256]) -> Option<&str> {
    let len = field.iter().position(|byte| *byte == 0)?;
    let text = std::str::from_utf8(&field[..len]).ok()?;
    is_nqn(text).then_some(text)
}

/// Whether a text can be the name of a host or of a subsystem.
#[must_use]
pub fn is_nqn(text: &str) -> bool {
    text.starts_with("nqn.")
        && text.len() <= MAX_NQN_BYTES
        && text.len() > 4
        && !text.contains(|c: char| c.is_control() || c.is_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_where_the_table_says() {
        assert_eq!(size_of::<ConnectData>(), CONNECT_BYTES);
        let data = ConnectData::new([7; 16], 0x1234, "nqn.2014-08.a:s", "nqn.2014-08.a:h");
        let bytes = data.as_bytes();
        assert_eq!(bytes[..18], [[7; 16].as_slice(), &[0x34, 0x12]].concat());
        assert_eq!(&bytes[256..272], b"nqn.2014-08.a:s\0");
        assert_eq!(&bytes[512..528], b"nqn.2014-08.a:h\0");
        assert_eq!(data.subnqn(), Some("nqn.2014-08.a:s"));
        assert_eq!(data.hostnqn(), Some("nqn.2014-08.a:h"));
    }

    #[test]
    fn what_is_no_name_is_refused() {
        let mut field = [b'a'; 256];
        field[..4].copy_from_slice(b"nqn.");
        assert_eq!(name(&field), None, "no end");
        field[224] = 0;
        assert_eq!(name(&field), None, "224 bytes");
        field[223] = 0;
        assert!(name(&field).is_some(), "223 bytes");
        field[9] = 0xff;
        assert_eq!(name(&field), None, "no UTF-8");
        assert_eq!(name(&[0; 256]), None);
        for text in ["nqn.", "iqn.2014-08.a", "nqn.2014-08.a b", "nqn.2014-08.a\n"] {
            assert!(!is_nqn(text), "{text}");
        }
    }
}
