//! [`Sge`]: an entry of a scatter or gather list.

use ferrocx_mempool::Piece;

/// A scatter or gather entry, as a work request holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sge {
    /// Address of the first byte in the space of the key.
    pub addr: u64,
    /// Virtual address of the first byte, by which a device finds memory whose key is another
    /// device's; 0 where it is not to look.
    pub address: usize,
    /// Bytes. An entry of none is left out.
    pub len: u32,
    /// Local key as it stands in a work request: its four bytes in memory are big-endian.
    pub lkey_be: u32,
    /// Who may use the key: a protection domain ([`Pd::domain`](crate::Pd::domain)), or a whole
    /// device by its reserved L_Key
    /// ([`PoolKeys::domain`](ferrocx_mempool::PoolKeys::domain)). Only queue pairs of these take
    /// the entry as it is: to another device the key might by chance name other memory.
    pub domain: u32,
}

impl From<Piece> for Sge {
    #[inline(always)]
    fn from(piece: Piece) -> Self {
        let Piece { address, len_bytes, iova, lkey_be, domain, .. } = piece;
        // Pieces of registered memory are below 2 GiB.
        Self { addr: iova, address, len: len_bytes as u32, lkey_be, domain }
    }
}
