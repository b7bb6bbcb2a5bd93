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
    /// For another manager, or of another version: versions of header and class, and the class.
    #[error("class {2}, versions {0} and {1} are not the connection manager's 7, 1, 2")]
    Class(u32, u32, u32),
    /// It is not one that is sent, or says that something failed.
    #[error("method {0} is not send (3)")]
    Method(u32),
    /// A message that is not known: path migration, for example.
    #[error("attribute {0:#06x} is no message that this library knows")]
    Attribute(u32),
}

macro_rules! messages {
    ($($kind:ident($layout:ident) = $attr:ident, $name:literal;)*) => {
        /// A message, as its layout.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        #[expect(missing_docs, reason = "named as the layouts that they hold")]
        pub enum Message {
            $($kind($layout),)*
        }

        impl Message {
            /// Its name in the specification.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$kind(_) => $name,)*
                }
            }

            fn parts(&self) -> (u32, &[u8]) {
                match self {
                    $(Self::$kind(message) => (cm_attr::$attr, message.as_bytes()),)*
                }
            }

            fn read(attr_id: u32, body: &[u8]) -> Result<Self, BadMad> {
                let read = match attr_id {
                    $(cm_attr::$attr => $layout::read_from(body).map(Self::$kind),)*
                    other => return Err(BadMad::Attribute(other)),
                };
                read.ok_or(BadMad::Length(body.len()))
            }
        }
    };
}

messages! {
    Req(CmReq) = REQ, "REQ";
    Mra(CmMra) = MRA, "MRA";
    Rej(CmRej) = REJ, "REJ";
    Rep(CmRep) = REP, "REP";
    Rtu(CmRtu) = RTU, "RTU";
    Dreq(CmDreq) = DREQ, "DREQ";
    Drep(CmDrep) = DREP, "DREP";
    SidrReq(CmSidrReq) = SIDR_REQ, "SIDR_REQ";
    SidrRep(CmSidrRep) = SIDR_REP, "SIDR_REP";
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
        let (base, version) = (header.base_version(), header.class_version());
        let class = header.mgmt_class();
        if (base, version, class) != (BASE_VERSION, CM_CLASS_VERSION, CLASS_CM) {
            return Err(BadMad::Class(base, version, class));
        }
        if header.method() != METHOD_SEND {
            return Err(BadMad::Method(header.method()));
        }
        let message = Message::read(header.attr_id(), &bytes[MadHeader::SIZE_BYTES..])?;
        Ok(Self { transaction_id: header.transaction_id(), message })
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
        assert_eq!(with(0, 2), BadMad::Class(2, 2, 7));
        assert_eq!(with(1, 4), BadMad::Class(1, 2, 4));
        assert_eq!(with(2, 1), BadMad::Class(1, 1, 7));
        assert_eq!(with(3, 0x83), BadMad::Method(0x83));
        for len in [0, 23, 255, 257] {
            assert_eq!(Mad::parse(&vec![0; len]), Err(BadMad::Length(len)));
        }
    }
}
