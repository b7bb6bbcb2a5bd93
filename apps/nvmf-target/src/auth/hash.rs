//! [`Hash`](enum@Hash): a hash that an authentication uses, and its HMAC.

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256, Sha384, Sha512};
use zeroize::Zeroizing;

/// Bytes of the longest hash.
pub const MAX_HASH_BYTES: usize = 64;

/// A hash. Source of its numbers and lengths: reference 10.8.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hash {
    /// SHA-256, of 32 bytes.
    Sha256,
    /// SHA-384, of 48 bytes.
    Sha384,
    /// SHA-512, of 64 bytes.
    Sha512,
}

impl Hash {
    /// All, the longest first.
    pub const ALL: [Self; 3] = [Self::Sha512, Self::Sha384, Self::Sha256];

    /// Its number in messages and in written keys.
    #[must_use]
    pub fn id(self) -> u8 {
        match self {
            Self::Sha256 => 1,
            Self::Sha384 => 2,
            Self::Sha512 => 3,
        }
    }

    /// The hash of a number.
    #[must_use]
    pub fn of(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|hash| hash.id() == id)
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => MAX_HASH_BYTES,
        }
    }

    /// Its name in files and for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
        }
    }

    /// The hash of some bytes.
    pub(crate) fn of_bytes(self, data: &[u8]) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(match self {
            Self::Sha256 => Sha256::digest(data).to_vec(),
            Self::Sha384 => Sha384::digest(data).to_vec(),
            Self::Sha512 => Sha512::digest(data).to_vec(),
        })
    }

    /// The HMAC of pieces under a key.
    pub(super) fn hmac(self, key: &[u8], pieces: &[&[u8]]) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(match self {
            Self::Sha256 => fed::<Hmac<Sha256>>(key, pieces).finalize().into_bytes().to_vec(),
            Self::Sha384 => fed::<Hmac<Sha384>>(key, pieces).finalize().into_bytes().to_vec(),
            Self::Sha512 => fed::<Hmac<Sha512>>(key, pieces).finalize().into_bytes().to_vec(),
        })
    }

    /// Whether this is the HMAC, in a time that does not depend on where it differs.
    pub(super) fn is_hmac(self, key: &[u8], pieces: &[&[u8]], mac: &[u8]) -> bool {
        match self {
            Self::Sha256 => fed::<Hmac<Sha256>>(key, pieces).verify_slice(mac).is_ok(),
            Self::Sha384 => fed::<Hmac<Sha384>>(key, pieces).verify_slice(mac).is_ok(),
            Self::Sha512 => fed::<Hmac<Sha512>>(key, pieces).verify_slice(mac).is_ok(),
        }
    }
}

fn fed<M: Mac + KeyInit>(key: &[u8], pieces: &[&[u8]]) -> M {
    let mut mac = <M as KeyInit>::new_from_slice(key).expect("an HMAC takes keys of any length");
    for piece in pieces {
        mac.update(piece);
    }
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// RFC 4231, test case 2: key "Jefe", data "what do ya want for nothing?".
    #[test]
    fn hmacs_are_those_of_the_rfc() {
        let pieces: &[&[u8]] = &[b"what do ya want ", b"for nothing?"];
        let of = |hash: Hash| hex(&hash.hmac(b"Jefe", pieces));
        let sha256 = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(of(Hash::Sha256), sha256);
        assert_eq!(of(Hash::Sha384)[..32], *"af45d2e376484031617f78d2b58a6b1b");
        assert_eq!(of(Hash::Sha512)[..32], *"164b7a7bfcf819e2e395fbe73b56e0a3");
        for hash in Hash::ALL {
            let mut mac = hash.hmac(b"Jefe", pieces);
            assert_eq!((mac.len(), Hash::of(hash.id())), (hash.bytes(), Some(hash)));
            assert!(hash.is_hmac(b"Jefe", pieces, &mac));
            assert!(!hash.is_hmac(b"Jefe", pieces, &mac[1..]));
            mac[31] ^= 1;
            assert!(!hash.is_hmac(b"Jefe", pieces, &mac));
        }
        assert!(Hash::of(0).is_none() && Hash::of(4).is_none());
    }
}
