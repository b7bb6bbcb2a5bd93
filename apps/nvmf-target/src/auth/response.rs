//! [`Exchange`]: what shows that a host, or a controller, has a key.

use zeroize::Zeroizing;

use super::{Hash, Secret};

/// What the two sides of an authentication agree on.
#[derive(Debug, Clone, Copy)]
pub struct Exchange<'a> {
    /// The hash.
    pub hash: Hash,
    /// The transaction's number.
    pub transaction: u16,
    /// Name of the host.
    pub hostnqn: &'a str,
    /// Name of the subsystem.
    pub subnqn: &'a str,
    /// What both have come to in a group; none in the null group.
    pub shared: Option<&'a [u8]>,
}

/// A challenge and its sequence number.
pub type Challenge<'a> = (&'a [u8], u32);

/// Who shows something, and to whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Host,
    Controller,
}

impl Exchange<'_> {
    /// What the host answers to a challenge of the controller.
    #[must_use]
    pub fn host(&self, secret: &Secret, challenge: Challenge<'_>) -> Zeroizing<Vec<u8>> {
        self.with(Who::Host, secret, challenge, |key, pieces| self.hash.hmac(key, pieces))
    }

    /// Whether that is the host's answer.
    #[must_use]
    pub fn is_host(&self, secret: &Secret, challenge: Challenge<'_>, answer: &[u8]) -> bool {
        self.with(Who::Host, secret, challenge, |key, pieces| {
            self.hash.is_hmac(key, pieces, answer)
        })
    }

    /// What the controller answers to a challenge of the host.
    #[must_use]
    pub fn controller(&self, secret: &Secret, challenge: Challenge<'_>) -> Zeroizing<Vec<u8>> {
        self.with(Who::Controller, secret, challenge, |key, pieces| self.hash.hmac(key, pieces))
    }

    /// Whether that is the controller's answer.
    #[must_use]
    pub fn is_controller(&self, secret: &Secret, challenge: Challenge<'_>, answer: &[u8]) -> bool {
        self.with(Who::Controller, secret, challenge, |key, pieces| {
            self.hash.is_hmac(key, pieces, answer)
        })
    }

    /// Hands over the key and what is hashed under it. Source: reference 10.8.4.
    fn with<T>(
        &self,
        who: Who,
        secret: &Secret,
        (challenge, sequence): Challenge<'_>,
        done: impl FnOnce(&[u8], &[&[u8]]) -> T,
    ) -> T {
        let Self { hash, hostnqn, subnqn, .. } = *self;
        // A shared value makes another challenge of it.
        let challenge = match self.shared {
            Some(shared) => hash.hmac(&hash.of_bytes(shared), &[challenge]),
            None => Zeroizing::new(challenge.to_vec()),
        };
        let (label, mine, other): (&[u8], _, _) = match who {
            Who::Host => (b"HostHost", hostnqn, subnqn),
            Who::Controller => (b"Controller", subnqn, hostnqn),
        };
        // The zero behind the transaction stands for no secure channel, the other one parts names.
        done(
            &secret.of(mine),
            &[
                &challenge,
                &sequence.to_le_bytes(),
                &self.transaction.to_le_bytes(),
                &[0],
                label,
                mine.as_bytes(),
                &[0],
                other.as_bytes(),
            ],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::tests::{KEY_32, KEY_48, KEY_64};
    use super::super::{Exponent, Group, Power};
    use super::*;

    fn shared(group: Group) -> Option<std::sync::Arc<Power>> {
        let exponent = |first: u8| Exponent::new(std::array::from_fn(|at| first + at as u8));
        let public = Power::public(group, &exponent(64));
        public.compute();
        let shared = Power::shared(group, &exponent(0), public.value()?)?;
        shared.compute();
        Some(shared)
    }

    fn first(answer: &[u8]) -> u64 {
        u64::from_be_bytes(answer[..8].try_into().unwrap())
    }

    /// By Python's hmac and hashlib, from the formulas of reference 10.8.4: the first 8 bytes of
    /// both answers. Challenges count up from 1 and from 101; the shared value is that of the
    /// test of powers.
    #[test]
    fn answers_are_those_of_another_program() {
        let of_2048 = shared(Group::Ffdhe2048);
        for (key, hash, group, host, controller) in [
            (KEY_32, Hash::Sha256, Group::Null, 0xed1549de7a541337, 0xd042c872c21a7369),
            (KEY_32, Hash::Sha256, Group::Ffdhe2048, 0xf1f0b0a7d498d1e3, 0x9daa4e5802b64ec9),
            (KEY_32, Hash::Sha384, Group::Null, 0x314af5e71a4a6305, 0xb36b72ba73094a07),
            (KEY_32, Hash::Sha384, Group::Ffdhe2048, 0x37a28f6701a6cfd0, 0xad01de089d5dc0e8),
            (KEY_32, Hash::Sha512, Group::Null, 0xcf43f6d6ba6374b7, 0x94fa28df40a658ad),
            (KEY_32, Hash::Sha512, Group::Ffdhe2048, 0x2aae3894548f02af, 0x7061493bf1a691a3),
            (KEY_48, Hash::Sha256, Group::Null, 0x5c6b565f3e52c2a5, 0x737be9941d5cb964),
            (KEY_48, Hash::Sha256, Group::Ffdhe2048, 0x4c421a7de59ecc8f, 0x47264f8bf1282d24),
            (KEY_48, Hash::Sha384, Group::Null, 0x96a8ab86f4891b11, 0x5f73f2aed2df1796),
            (KEY_48, Hash::Sha384, Group::Ffdhe2048, 0xcf18441e90e4c4a9, 0x9e7335d8bb4547cc),
            (KEY_48, Hash::Sha512, Group::Null, 0x7eb8e847e944a986, 0xd9360e5278ee1598),
            (KEY_48, Hash::Sha512, Group::Ffdhe2048, 0x600330f2890cf873, 0x01ba8507cbfdda10),
            (KEY_64, Hash::Sha256, Group::Null, 0x3686afca49bd247e, 0xe35fd64ce6bc5a75),
            (KEY_64, Hash::Sha256, Group::Ffdhe2048, 0xd27ffcb98c3a95de, 0x44aa6102d5610e83),
            (KEY_64, Hash::Sha384, Group::Null, 0x23223d1bfb8005b4, 0x1516bbb837080e6b),
            (KEY_64, Hash::Sha384, Group::Ffdhe2048, 0x1fc9c822d276e882, 0x8f16ef46ab3cd691),
            (KEY_64, Hash::Sha512, Group::Null, 0x714e9deab737d923, 0xb503e11e3e801a6c),
            (KEY_64, Hash::Sha512, Group::Ffdhe2048, 0x3ea81c43255f8ace, 0xf70ca11cc32bbe4c),
        ] {
            let secret = Secret::parse(key).unwrap();
            let of_2048 = of_2048.as_deref().filter(|_| group != Group::Null);
            let exchange = Exchange {
                hash,
                transaction: 0xabcd,
                hostnqn: "nqn.2014-08.a:h",
                subnqn: "nqn.2014-08.a:s",
                shared: of_2048.and_then(Power::value),
            };
            let len = hash.bytes() as u8;
            let (c1, c2): (Vec<u8>, Vec<u8>) = ((1..=len).collect(), (101..101 + len).collect());
            let (c1, c2) = ((&*c1, 0x1122_3344), (&*c2, 0x5566_7788));
            let answers = (exchange.host(&secret, c1), exchange.controller(&secret, c2));
            assert_eq!(first(&answers.0), host, "{key} {hash:?} {group:?}");
            assert_eq!(first(&answers.1), controller, "{key} {hash:?} {group:?}");
            assert!(exchange.is_host(&secret, c1, &answers.0));
            assert!(exchange.is_controller(&secret, c2, &answers.1));
            assert!(!exchange.is_host(&secret, c2, &answers.0));
            // Nobody's answer can be shown back to him.
            assert!(!exchange.is_controller(&secret, c1, &answers.0));
        }
    }
}
