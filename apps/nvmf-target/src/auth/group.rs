//! [`Group`]: a group of Diffie and Hellman's exchange, and [`Power`]: what is computed in it.

use std::sync::{Arc, OnceLock};

use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

/// Bytes of a private exponent: 512 bits, which is more than any of the groups asks for. Source:
/// RFC 7919, appendix A, "the size of the exponent".
const EXPONENT_BYTES: usize = 64;
/// Bits of a prime at most.
const MAX_BITS: u32 = 8192;

/// The whole part of e times 2^8062, which all primes are made of: see [`Group::prime`].
const E: &str = "\
    adf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce249b3ef97d2fe363\
    630c75d8f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e7f57c935\
    984f0c70e0e68b77e2a689daf3efe8721df158a136ade73530acca4f483a797abc0ab182b324fb61d108a94b\
    b2c8e3fbb96adab760d7f4681d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d709e02fce1cdf7e2ec\
    c03404cd28342f619172fe9ce98583ff8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005c58ef183\
    7d1683b2c6f34a26c1b2effa886b4238611fcfdcde355b3b6519035bbc34f4def99c023861b46fc9d6e6c907\
    7ad91d2691f7f7ee598cb0fac186d91caefe130985139270b4130c93bc437944f4fd4452e2d74dd364f2e21e\
    71f54bff5cae82ab9c9df69ee86d2bc522363a0dabc521979b0deada1dbf9a42d5c4484e0abcd06bfa53ddef\
    3c1b20ee3fd59d7c25e41d2b669e1ef16e6f52c3164df4fb7930e9e4e58857b6ac7d5f42d69f6d187763cf1d\
    5503400487f55ba57e31cc7a7135c886efb4318aed6a1e012d9e6832a907600a918130c46dc778f971ad0038\
    092999a333cb8b7a1a1db93d7140003c2a4ecea9f98d0acc0a8291cdcec97dcf8ec9b55a7f88a46b4db5a851\
    f44182e1c68a007e5e0dd9020bfd64b645036c7a4e677d2c38532a3a23ba4442caf53ea63bb454329b7624c8\
    917bdd64b1c0fd4cb38e8c334c701c3acdad0657fccfec719b1f5c3e4e46041f388147fb4cfdb477a52471f7\
    a9a96910b855322edb6340d8a00ef092350511e30abec1fff9e3a26e7fb29f8c183023c3587e38da0077d9b4\
    763e4e4b94b2bbc194c6651e77caf992eeaac0232a281bf6b3a739c1226116820ae8db5847a67cbef9c9091b\
    462d538cd72b03746ae77f5e62292c311562a846505dc82db854338ae49f5235c95b91178ccf2dd5cacef403\
    ec9d1810c6272b045b3b71f9dc6b80d63fdd4a8e9adb1e6962a69526d43161c1a41d570d7938dad4a40e329c\
    cff46aaa36ad004cf600c8381e425a31d951ae64fdb23fcec9509d43687feb69edd1cc5e0b8cc3bdf64b10ef\
    86b63142a3ab8829555b2f747c932665cb2c0f1cc01bd70229388839d2af05e454504ac78b7582822846c0ba\
    35c35f5c59160cc046fd8251541fc68c9c86b022bb7099876a460e7451a8a93109703fee1c217e6c3826e52c\
    51aa691e0e423cfc99e9e31650c1217b624816cdad9a95f9d5b8019488d9c0a0a1fe3075a577e23183f81d4a\
    3f2fa4571efc8ce0ba8a4fe8b6855dfe72b0a66eded2fbabfbe58a30fafabe1c5d71a87e2f741ef8c1fe86fe\
    a6bbfde530677f0d97d11d49f7a8443d0822e506a9f4614e011e2a94838ff88cd68c8bb7c51eef6d";

/// A group. Source of its numbers: reference 10.8.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// None: whoever hears the messages can try keys against them.
    Null,
    /// 2048 bits.
    Ffdhe2048,
    /// 3072 bits.
    Ffdhe3072,
    /// 4096 bits.
    Ffdhe4096,
    /// 6144 bits.
    Ffdhe6144,
    /// 8192 bits.
    Ffdhe8192,
}

impl Group {
    /// Those with a prime, the smallest first.
    pub const FFDHE: [Self; 5] =
        [Self::Ffdhe2048, Self::Ffdhe3072, Self::Ffdhe4096, Self::Ffdhe6144, Self::Ffdhe8192];

    /// Its number in messages.
    #[must_use]
    pub fn id(self) -> u8 {
        self as u8
    }

    /// The group of a number.
    #[must_use]
    pub fn of(id: u8) -> Option<Self> {
        match id {
            0 => Some(Self::Null),
            id => Self::FFDHE.into_iter().find(|group| group.id() == id),
        }
    }

    /// Its name in files and for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Ffdhe2048 => "ffdhe2048",
            Self::Ffdhe3072 => "ffdhe3072",
            Self::Ffdhe4096 => "ffdhe4096",
            Self::Ffdhe6144 => "ffdhe6144",
            Self::Ffdhe8192 => "ffdhe8192",
        }
    }

    /// Bits of its prime, and what is added to e's to make it one. Source: RFC 7919, appendix A.
    fn shape(self) -> (u32, u32) {
        match self {
            Self::Null => (0, 0),
            Self::Ffdhe2048 => (2048, 560_316),
            Self::Ffdhe3072 => (3072, 2_625_351),
            Self::Ffdhe4096 => (4096, 5_736_041),
            Self::Ffdhe6144 => (6144, 15_705_020),
            Self::Ffdhe8192 => (MAX_BITS, 10_965_728),
        }
    }

    /// Bytes of a public value; none without a prime.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.shape().0 as usize / 8
    }

    /// Its prime of b bits, high byte first: 2^b - 2^(b-64) + (e's 2^(b-130) + X) 2^64 - 1.
    ///
    /// # Source
    ///
    /// RFC 7919, appendix A.
    fn prime(self) -> Vec<u8> {
        let (bits, more) = self.shape();
        if bits == 0 {
            return Vec::new();
        }
        let digits = bits as usize / 4 - 32;
        let e: Vec<u8> = (0..digits / 2)
            .map(|at| u8::from_str_radix(&E[2 * at..2 * at + 2], 16).expect("digits of e"))
            .collect();
        // 64 ones at either end, and between them e's part and X, less one for the ones below.
        let mut prime = vec![0xff; 8];
        prime.extend(e);
        let mut carry = more - 1;
        for byte in prime.iter_mut().rev() {
            let sum = u32::from(*byte) + (carry & 0xff);
            *byte = sum as u8;
            carry = (carry >> 8) + (sum >> 8);
            if carry == 0 {
                break;
            }
        }
        prime.extend([0xff; 8]);
        prime
    }

    /// Whether a public value of the other side can be one: neither 0, nor 1, nor the prime less
    /// one, nor beyond.
    #[must_use]
    pub fn is_public(self, value: &[u8]) -> bool {
        let mut most = self.prime();
        let Some(last) = most.last_mut() else { return false };
        *last -= 1;
        let is_small = value.iter().rev().skip(1).all(|byte| *byte == 0)
            && value.last().is_none_or(|byte| *byte < 2);
        value.len() == most.len() && !is_small && *value < *most
    }
}

/// A private exponent.
#[derive(Clone)]
pub struct Exponent(Zeroizing<[u8; EXPONENT_BYTES]>);

impl Exponent {
    /// An exponent of these bytes.
    #[must_use]
    pub fn new(bytes: [u8; EXPONENT_BYTES]) -> Self {
        Self(Zeroizing::new(bytes))
    }
}

impl std::fmt::Debug for Exponent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Exponent(not shown)")
    }
}

/// A power that is to be computed. It takes milliseconds, so whoever needs it leaves it to another
/// thread, and looks now and then whether it is there.
pub struct Power {
    group: Group,
    /// The other side's public value; none for the generator.
    base: Option<Vec<u8>>,
    exponent: Exponent,
    value: OnceLock<Zeroizing<Vec<u8>>>,
}

impl std::fmt::Debug for Power {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Power").field("group", &self.group).finish_non_exhaustive()
    }
}

impl Power {
    /// The public value of an exponent.
    #[must_use]
    pub fn public(group: Group, exponent: &Exponent) -> Arc<Self> {
        Arc::new(Self { group, base: None, exponent: exponent.clone(), value: OnceLock::new() })
    }

    /// What both sides come to; none of a value that cannot be a public one.
    #[must_use]
    pub fn shared(group: Group, exponent: &Exponent, public: &[u8]) -> Option<Arc<Self>> {
        group.is_public(public).then(|| {
            let base = Some(public.to_vec());
            Arc::new(Self { group, base, exponent: exponent.clone(), value: OnceLock::new() })
        })
    }

    /// What was computed, high byte first, as long as the prime.
    #[must_use]
    pub fn value(&self) -> Option<&[u8]> {
        self.value.get().map(|value| value.as_slice())
    }

    /// Computes it.
    pub fn compute(&self) {
        self.value.get_or_init(|| self.computed());
    }

    fn computed(&self) -> Zeroizing<Vec<u8>> {
        let (bits, _) = self.group.shape();
        if bits == 0 {
            return Zeroizing::default();
        }
        let prime = BoxedUint::from_be_slice_truncated(&self.group.prime(), bits);
        let prime = Odd::new(prime).expect("the primes of the groups are odd");
        let params = BoxedMontyParams::new(prime);
        let base = self.base.as_deref().unwrap_or(&[2]);
        let base = BoxedUint::from_be_slice_truncated(base, bits);
        let exponent_bits = EXPONENT_BYTES as u32 * 8;
        let mut exponent = BoxedUint::from_be_slice_truncated(&*self.exponent.0, exponent_bits);
        let mut power = BoxedMontyForm::new(base, &params).pow(&exponent);
        let mut value = power.retrieve();
        let bytes = Zeroizing::new(value.to_be_bytes().into_vec());
        exponent.zeroize();
        power.zeroize();
        value.zeroize();
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::Hash;
    use super::*;

    fn sha256(bytes: &[u8]) -> String {
        Hash::Sha256.of_bytes(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn exponent(first: u8) -> Exponent {
        Exponent::new(std::array::from_fn(|at| first + at as u8))
    }

    fn done(power: &Power) -> &[u8] {
        assert!(power.value().is_none());
        power.compute();
        power.value().unwrap()
    }

    /// By Python, whose primes were tested to be so, and half of them less one: SHA-256 of the
    /// prime, of `pow(2, a, p)` and of `pow(2, a * b, p)`, where a is `bytes(range(64))` and b
    /// `bytes(range(64, 128))`, high byte first.
    #[test]
    fn powers_are_those_of_another_program() {
        for (group, prime, public, shared) in [
            (
                Group::Ffdhe2048,
                "9cd3b7f336872f46c09428d1bbc19877a4d440512cda8d1c1cf0cd6e33698966",
                "2a0199e924494317f21660a90b0d1d18238389a2d85f800bd08cfba82e1b60ef",
                "ac5566a58c75e8a515d0164942ae8c8ea8daf3619fe3d20c48d41f220f748086",
            ),
            (
                Group::Ffdhe3072,
                "0eaf67db3a839156d5013494a5318a772b5697d270d721f37f092efc69ea5a17",
                "e83464b6d4a36955a05dcc356ac64559af81268fe7cc34f5948aaaf9bba93383",
                "1293cf7e68b99058862e8b02e9bbf4b885d5d6102a1b51a7c3d4b481fd237cf2",
            ),
            (
                Group::Ffdhe4096,
                "4648414224ac881b3d0dc59b466f96d06a558278776807797ecf1f66ff397b3e",
                "ce9e3e4cdee8b7603a15f69739d55cf2cbafe1d32d5bf700888976c91554496a",
                "5305ffe420213f3d97e3c5229b670781564ccfba205af65de7ce8331e4e01758",
            ),
            (
                Group::Ffdhe6144,
                "227ac9066b3ddd9e193670cda2388fa884f65ba0cf98b742d1fe77a6687c79c7",
                "ccc0c127315888eb301fedbbc8df874b59c9c635e7f61511682aaea88bd1434d",
                "38bdc77418392b864b8b4754cdbf547e97100d864bfd3df40267d8ed85e0a4c6",
            ),
            (
                Group::Ffdhe8192,
                "770b14efaf6f049929c523113b3fa99a8d11dab1b18af3609590122075d19833",
                "af82394e0273911c27ff62adaebfa44b27f5ff717a007b59e4d014966aaf5329",
                "aee07e6cb68e5df7d2bfc1ed2e62a5d7524686d72d9fc5affcb070cc40100f29",
            ),
        ] {
            assert_eq!(sha256(&group.prime()), prime, "{group:?}");
            let (a, b) = (exponent(0), exponent(64));
            let (of_a, of_b) = (Power::public(group, &a), Power::public(group, &b));
            assert_eq!(sha256(done(&of_a)), public, "{group:?}");
            let here = Power::shared(group, &a, done(&of_b)).unwrap();
            let there = Power::shared(group, &b, of_a.value().unwrap()).unwrap();
            assert_eq!(sha256(done(&here)), shared, "{group:?}");
            assert_eq!(done(&there), here.value().unwrap());
        }
    }

    #[test]
    fn what_is_no_public_value_is_refused() {
        for group in Group::FFDHE {
            let len = group.bytes();
            let small = |value: u8| [vec![0; len - 1], vec![value]].concat();
            let prime = group.prime();
            let near = |less: u8| {
                let mut near = prime.clone();
                near[len - 1] -= less;
                near
            };
            for wrong in [small(0), small(1), near(1), near(0), vec![0xff; len]] {
                assert!(!group.is_public(&wrong), "{group:?}: {:x?}", &wrong[len - 4..]);
            }
            assert!(group.is_public(&small(2)) && group.is_public(&near(2)));
            assert!(!group.is_public(&small(2)[1..]) && !group.is_public(&[]));
            assert!(Power::shared(group, &exponent(1), &small(1)).is_none());
            assert_eq!(Group::of(group.id()), Some(group));
        }
        assert!(!Group::Null.is_public(&[]) && !Group::Null.is_public(&[2]));
        assert_eq!((Group::of(0), Group::of(6)), (Some(Group::Null), None));
    }
}
