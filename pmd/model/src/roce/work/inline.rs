//! Small data that travel in completions: "CQE inline scatter".
//!
//! The data of a short message or answer stand in its completion, and the driver copies them into
//! the buffers of the WQE itself: the device neither looks at their keys nor writes to them. The
//! lengths are checked all the same.
//!
//! # Which completions
//!
//! - Responder (`cs_res`): a SEND of one packet, of one byte or more. The data of a WRITE with
//!   immediate belong elsewhere.
//! - Requester (`cs_req`): a READ that asks for a completion; without one nobody would copy.
//! - Requester, atomics: with big-endian answers only. Where the driver chose the order of the host
//!   the public readers disagree: libmlx5 copies the bytes as they are, UCX takes them for
//!   big-endian. In memory both find the same, so there the answer goes. Masked atomics never: for
//!   them libmlx5 refuses inline data.
//!
//! Source: reference 6.7 "Inline data in CQE"; 5.2, `cs_req` and `cs_res`.

use ferrocx_prm::cqe::{Cqe64, CqeFormat};

use super::env::Env;
use crate::objects::{CqeScatter, InlineData, MAX_INLINE_BYTES};
use crate::queue::cq::Urgency;

/// Bytes of an entry that 32 bytes of data may take up.
const IN_ENTRY_BYTES: usize = 32;

/// Puts data into a completion.
pub(super) fn complete(
    env: &mut Env<'_>,
    cqn: u32,
    (scatter, data): (CqeScatter, &[u8]),
    entry: Cqe64,
    urgency: Urgency,
) {
    let mut front = None;
    let entry = match scatter {
        CqeScatter::Off => entry.0,
        CqeScatter::Up32 => {
            let mut entry = entry.with_format(CqeFormat::INLINE_32.0).0;
            let len = data.len().min(IN_ENTRY_BYTES);
            entry[..len].copy_from_slice(&data[..len]);
            entry
        }
        CqeScatter::Up64 => {
            let data: InlineData = data.iter().copied().take(MAX_INLINE_BYTES).collect();
            front = Some(Box::new(data));
            entry.with_format(CqeFormat::INLINE_64.0).0
        }
    };
    env.complete_behind(cqn, front, entry, urgency);
}
