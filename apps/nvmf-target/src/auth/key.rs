//! [`Secret`]: a key as it is written, and [`HostKey`]: what a target knows of a host's.

use std::fmt;

use base64ct::{Base64, Encoding};
use ferrocx_app_common::input::Wrong;
use thiserror::Error;
use zeroize::Zeroizing;

use super::{Group, Hash};

/// What is hashed behind a name when a key is bound to it. Source: reference 10.8.1.
const LABEL: &[u8] = b"NVMe-over-Fabrics";
/// Bytes of a written key's check sum.
const CRC_BYTES: usize = 4;

/// Why a text is no key. It never says what the text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SecretError {
    /// It has no mark.
    #[error("a key begins with DHHC-1: and this does not; `nvme gen-dhchap-key` makes one")]
    Mark,
    /// Its hash is unknown.
    #[error("a key's hash is 00, 01, 02 or 03, and this one's is another")]
    Hash,
    /// It is not base 64.
    #[error("what follows the hash of this key is no base 64; copy all of the key")]
    Base64,
    /// It has another length.
    #[error("a key has 32, 48 or 64 bytes and this has {0}; `nvme gen-dhchap-key` makes one")]
    Length(usize),
    /// Its check sum is another's.
    #[error("the check sum of this key is wrong; copy it once more")]
    Crc,
}

/// A key. Its text is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    bytes: Zeroizing<Vec<u8>>,
    /// What it is bound to a name by; none for a key that is used as it is.
    hash: Option<Hash>,
}

/// What each key begins with.
pub(crate) const PREFIX: &str = "DHHC-1:";

/// What is wrong with a text, without a key that it quotes.
pub(crate) fn without_key(wrong: Wrong) -> Wrong {
    let quotes_key = [&wrong.path, &wrong.message].iter().any(|text| text.contains(PREFIX));
    match quotes_key {
        true => Wrong {
            line: wrong.line,
            path: String::new(),
            message: "a key is where none belongs".into(),
        },
        false => wrong,
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(not shown)")
    }
}

impl Secret {
    /// Reads a key: `DHHC-1:`, a hash, and in base 64 the key with its CRC-32.
    ///
    /// # Errors
    ///
    /// [`SecretError`].
    ///
    /// # Source
    ///
    /// Reference 10.8.1.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        let (hash, rest) = text
            .trim()
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split_once(':'))
            .ok_or(SecretError::Mark)?;
        let hash = match hash {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return Err(SecretError::Hash),
        };
        let rest = rest.strip_suffix(':').unwrap_or(rest);
        let decoded = Base64::decode_vec(rest).map_err(|_| SecretError::Base64)?;
        let mut bytes = Zeroizing::new(decoded);
        let len = bytes.len().saturating_sub(CRC_BYTES);
        if !matches!(len, 32 | 48 | 64) {
            return Err(SecretError::Length(len));
        }
        if bytes[len..] != crc32fast::hash(&bytes[..len]).to_le_bytes() {
            return Err(SecretError::Crc);
        }
        bytes.truncate(len);
        Ok(Self { bytes, hash })
    }

    /// The key as the one of that name uses it.
    pub(super) fn of(&self, nqn: &str) -> Zeroizing<Vec<u8>> {
        match self.hash {
            Some(hash) => hash.hmac(&self.bytes, &[nqn.as_bytes(), LABEL]),
            None => self.bytes.clone(),
        }
    }
}

/// What a target knows of a host that has to authenticate itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostKey {
    /// The host's key.
    pub secret: Secret,
    /// The target's own, for hosts that ask for it.
    pub controller: Option<Secret>,
    /// Hashes that will do, the best first.
    pub hashes: Vec<Hash>,
    /// Groups that will do, the best first.
    pub groups: Vec<Group>,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// By Python: `base64.b64encode(key + struct.pack('<I', zlib.crc32(key)))` of `bytes(range(n))`
    /// for 32, 48 and 64 bytes.
    pub(crate) const KEY_32: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
    pub(crate) const KEY_48: &str =
        "DHHC-1:02:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:";
    pub(crate) const KEY_64: &str = "DHHC-1:03:\
        AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKiss\
        LS4vMDEyMzQ1Njc4OTo7PD0+P4zODhA=:";

    #[test]
    fn keys_are_read() {
        for (text, len) in [(KEY_32, 32), (KEY_48, 48), (KEY_64, 64)] {
            let secret = Secret::parse(text).unwrap();
            assert_eq!(*secret.bytes, (0..len).collect::<Vec<u8>>());
            // With a line end, and without the last colon.
            assert_eq!(Secret::parse(&format!("{text}\n")).unwrap(), secret);
            assert_eq!(Secret::parse(text.trim_end_matches(':')).unwrap(), secret);
            assert_eq!(format!("{secret:?}"), "Secret(not shown)");
        }
        assert_eq!(Secret::parse(KEY_32).unwrap().hash, None);
        assert_eq!(Secret::parse(KEY_64).unwrap().hash, Some(Hash::Sha512));
    }

    #[test]
    fn what_is_no_key_is_refused_and_not_shown() {
        let with = |from: &str, to: &str| Secret::parse(&KEY_32.replacen(from, to, 1)).unwrap_err();
        assert_eq!(with("DHHC-1", "DHHC-2"), SecretError::Mark);
        assert_eq!(Secret::parse("").unwrap_err(), SecretError::Mark);
        assert_eq!(with(":00:", ":04:"), SecretError::Hash);
        assert_eq!(with(":00:", ":0:"), SecretError::Hash);
        assert_eq!(with("AAEC", "AA*C"), SecretError::Base64);
        assert_eq!(with("AAEC", ""), SecretError::Length(29));
        assert_eq!(Secret::parse("DHHC-1:00::").unwrap_err(), SecretError::Length(0));
        assert_eq!(with("AAEC", "AAED"), SecretError::Crc);
        assert!(!with("AAEC", "AAED").to_string().contains("AAED"));
    }

    /// By Python: `hmac.digest(bytes(range(64)), b'nqn.2014-08.a:hNVMe-over-Fabrics', 'sha512')`.
    #[test]
    fn a_key_is_bound_to_a_name() {
        let bound = Secret::parse(KEY_64).unwrap().of("nqn.2014-08.a:h");
        assert_eq!(bound[..8], [0xcd, 0xb3, 0x9b, 0x34, 0xdd, 0x22, 0x7b, 0x4f]);
        assert_eq!(*Secret::parse(KEY_32).unwrap().of("x"), (0..32).collect::<Vec<u8>>());
    }
}
