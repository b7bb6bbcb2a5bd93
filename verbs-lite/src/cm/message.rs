//! The connection manager's messages: read from a datagram, and written into one.

use ferrocx_prm::Layout;
use ferrocx_prm::mad::{
    BASE_VERSION, CLASS_CM, CM_CLASS_VERSION, CmDrep, CmDreq, CmMra, CmRej, CmRep, CmReq, CmRtu,
    CmSidrRep, CmSidrReq, MAD_BYTES, METHOD_SEND, MadHeader, cm_attr,
};
use thiserror::Error;

/// Why a datagram is no message of the connection manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BadMad {
    /// Not 256 bytes.
    #[error("{0} bytes are no management datagram; it has 256")]
    Length(usize),
    /// For another manager, or of another version.
    #[error(
        "class {class}, versions {base} and {version} are not the connection manager's 7, 1, 2"
    )]
    Class {
        /// Class of the datagram.
        class: u32,
        /// Version of its header.
        base: u32,
        /// Version of its class.
        version: u32,
    },
    /// It is not one that is sent, or says that something failed.
    #[error("method {0} is not send (3)")]
    Method(u32),
    /// A message that is not known: path migration, for example.
    #[error("attribute {0:#06x} is no message that this library knows")]
    Attribute(u32),
}

/// A message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "named as the layouts that they hold")]
pub enum Message {
    Req(CmReq),
    Mra(CmMra),
    Rej(CmRej),
    Rep(CmRep),
    Rtu(CmRtu),
    Dreq(CmDreq),
    Drep(CmDrep),
    SidrReq(CmSidrReq),
    SidrRep(CmSidrRep),
}

impl Message {
    /// Its name in the specification.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Req(_) => "REQ",
            Self::Mra(_) => "MRA",
            Self::Rej(_) => "REJ",
            Self::Rep(_) => "REP",
            Self::Rtu(_) => "RTU",
            Self::Dreq(_) => "DREQ",
            Self::Drep(_) => "DREP",
            Self::SidrReq(_) => "SIDR_REQ",
            Self::SidrRep(_) => "SIDR_REP",
        }
    }

    fn parts(&self) -> (u32, &[u8]) {
        match self {
            Self::Req(message) => (cm_attr::REQ, message.as_bytes()),
            Self::Mra(message) => (cm_attr::MRA, message.as_bytes()),
            Self::Rej(message) => (cm_attr::REJ, message.as_bytes()),
            Self::Rep(message) => (cm_attr::REP, message.as_bytes()),
            Self::Rtu(message) => (cm_attr::RTU, message.as_bytes()),
            Self::Dreq(message) => (cm_attr::DREQ, message.as_bytes()),
            Self::Drep(message) => (cm_attr::DREP, message.as_bytes()),
            Self::SidrReq(message) => (cm_attr::SIDR_REQ, message.as_bytes()),
            Self::SidrRep(message) => (cm_attr::SIDR_REP, message.as_bytes()),
        }
    }
}

/// A message and the transaction that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mad {
    /// Number of the transaction: of the request, in every message about it.
    pub transaction_id: u64,
    /// The message.
    pub message: Message,
}

impl Mad {
    /// Reads a datagram.
    ///
    /// # Errors
    ///
    /// [`BadMad`].
    pub fn parse(bytes: &[u8]) -> Result<Self, BadMad> {
        let bad = BadMad::Length(bytes.len());
        if bytes.len() != MAD_BYTES {
            return Err(bad);
        }
        let header = MadHeader::read_from(bytes).ok_or(bad)?;
        let (base, class) = (header.base_version(), header.mgmt_class());
        let version = header.class_version();
        if (base, class, version) != (BASE_VERSION, CLASS_CM, CM_CLASS_VERSION) {
            return Err(BadMad::Class { class, base, version });
        }
        if header.method() != METHOD_SEND {
            return Err(BadMad::Method(header.method()));
        }
        let body = &bytes[MadHeader::SIZE_BYTES..];
        let message = match header.attr_id() {
            cm_attr::REQ => CmReq::read_from(body).map(Message::Req),
            cm_attr::MRA => CmMra::read_from(body).map(Message::Mra),
            cm_attr::REJ => CmRej::read_from(body).map(Message::Rej),
            cm_attr::REP => CmRep::read_from(body).map(Message::Rep),
            cm_attr::RTU => CmRtu::read_from(body).map(Message::Rtu),
            cm_attr::DREQ => CmDreq::read_from(body).map(Message::Dreq),
            cm_attr::DREP => CmDrep::read_from(body).map(Message::Drep),
            cm_attr::SIDR_REQ => CmSidrReq::read_from(body).map(Message::SidrReq),
            cm_attr::SIDR_REP => CmSidrRep::read_from(body).map(Message::SidrRep),
            other => return Err(BadMad::Attribute(other)),
        };
        let transaction_id = header.transaction_id();
        Ok(Self { transaction_id, message: message.ok_or(bad)? })
    }

    /// Writes the datagram.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; MAD_BYTES] {
        let (attr_id, body) = self.message.parts();
        let header = MadHeader::zeroed()
            .with_base_version(BASE_VERSION)
            .with_mgmt_class(CLASS_CM)
            .with_class_version(CM_CLASS_VERSION)
            .with_method(METHOD_SEND)
            .with_transaction_id(self.transaction_id)
            .with_attr_id(attr_id);
        let mut bytes = [0; MAD_BYTES];
        header.write_to(&mut bytes);
        bytes[MadHeader::SIZE_BYTES..].copy_from_slice(body);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_literal_and_comes_back() {
        let rtu = CmRtu::zeroed().with_local_comm_id(0x0102_0304).with_remote_comm_id(5);
        let mad = Mad { transaction_id: 0x1122_3344_5566_7788, message: Message::Rtu(rtu) };
        let bytes = mad.to_bytes();
        assert_eq!(bytes[..8], [1, 7, 2, 3, 0, 0, 0, 0]);
        assert_eq!(bytes[8..16], [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
        assert_eq!(bytes[16..24], [0, 0x14, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[24..32], [1, 2, 3, 4, 0, 0, 0, 5]);
        assert_eq!(bytes[32..], [0; 224]);
        assert_eq!(Mad::parse(&bytes), Ok(mad));
    }

    #[test]
    fn every_attribute_is_a_message_or_refused() {
        let mut bytes =
            Mad { transaction_id: 0, message: Message::Drep(CmDrep::zeroed()) }.to_bytes();
        let names = ["REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP"];
        for (attr, name) in (0x10..).zip(names) {
            bytes[17] = attr;
            let mad = Mad::parse(&bytes).unwrap();
            assert_eq!((mad.message.name(), mad.to_bytes()), (name, bytes));
        }
        for attr in [0x0f, 0x19, 0x1a] {
            bytes[17] = attr;
            assert_eq!(Mad::parse(&bytes), Err(BadMad::Attribute(attr.into())));
        }
    }

    #[test]
    fn what_is_not_for_us_is_refused() {
        let good = Mad { transaction_id: 0, message: Message::Drep(CmDrep::zeroed()) }.to_bytes();
        let with = |at: usize, value: u8| {
            let mut bytes = good;
            bytes[at] = value;
            Mad::parse(&bytes).unwrap_err()
        };
        assert_eq!(with(0, 2), BadMad::Class { class: 7, base: 2, version: 2 });
        assert_eq!(with(1, 4), BadMad::Class { class: 4, base: 1, version: 2 });
        assert_eq!(with(2, 1), BadMad::Class { class: 7, base: 1, version: 1 });
        assert_eq!(with(3, 0x83), BadMad::Method(0x83));
        for len in [0, 23, 255, 257] {
            assert_eq!(Mad::parse(&vec![0; len]), Err(BadMad::Length(len)));
        }
    }
}
