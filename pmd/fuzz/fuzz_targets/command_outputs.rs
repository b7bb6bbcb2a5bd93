//! Commands whose outputs the device makes up, from bring-up to teardown: errors, no panics, and no
//! memory given back that the device can still write.
#![no_main]

#[path = "../../core/tests/support/mod.rs"]
#[expect(dead_code, reason = "each target tells some of its lies")]
mod support;

use std::sync::Arc;
use std::time::Duration;

use arbitrary::{Result, Unstructured};
use ferrocx_core::{CqAttr, CqRing, Device, DeviceConfig, MacAddr, Uar};
use ferrocx_mempool::{Mbuf, PageSize, Pool, PoolConfig, RegionConfig};
use ferrocx_model::NicConfig;
use ferrocx_prm::init_seg::offset;
use libfuzzer_sys::fuzz_target;
use support::{Liar, LyingTransport};

/// Commands of one sequence that are lied about at most.
const MAX_LIES: usize = 64;
/// Pages that firmware may have: some more than it asks for at first. A lie can ask for more, or
/// for too many, and never has the driver hand over tens of thousands.
const PAGES: u32 = 256;
/// What stands in the buffers that are borrowed all the time.
const MARK: [u8; 64] = [0x11; 64];

fuzz_target!(|data: &[u8]| {
    // Running out of input ends the sequence.
    let _ = run(&mut Unstructured::new(data));
});

/// Lies about the commands that come: how many are told the truth before, from which byte of the
/// output on, and the bytes.
type Lies = Vec<(u8, usize, [u8; 16])>;

fn lies(u: &mut Unstructured<'_>) -> Result<Lies> {
    let mut lies = Vec::new();
    while lies.len() < MAX_LIES && u.ratio(7, 8)? {
        // A status ends a command; mostly numbers and lengths are wrong.
        let first = if u.ratio(1, 4)? { 0 } else { u.int_in_range(8..=15)? };
        lies.push((u.int_in_range(0..=40)?, first, u.arbitrary()?));
    }
    Ok(lies)
}

fn tell(liar: &Liar, lies: Lies) {
    let (mut lies, mut truths) = (lies.into_iter(), 0);
    let mut next = lies.next();
    liar.lie_in_outputs(move |_, output| {
        let Some((after, first, bytes)) = next else { return };
        if truths < after {
            truths += 1;
            return;
        }
        output[first..].copy_from_slice(&bytes[first..]);
        (next, truths) = (lies.next(), 0);
    });
}

fn run(u: &mut Unstructured<'_>) -> Result<()> {
    // Firmware that wants little memory is up sooner.
    let liar = Liar::with(NicConfig { init_pages: 16, ..NicConfig::default() });
    let config = DeviceConfig {
        page: PageSize::Base4K,
        command_timeout: Duration::from_millis(50),
        reset_timeout: Duration::from_millis(50),
        max_firmware_pages: PAGES,
        ..DeviceConfig::default()
    };
    if u.ratio(1, 4)? {
        tell(&liar, lies(u)?);
    }
    let Ok(device) = Device::open(Arc::new(LyingTransport(Arc::clone(&liar))), &config) else {
        return Ok(());
    };
    let pool = Pool::new(&PoolConfig {
        count: 16,
        cache_size: 0,
        region: RegionConfig { page: PageSize::Base4K, ..RegionConfig::default() },
        ..PoolConfig::default()
    })
    .expect("a pool");
    let mut lent: Vec<Mbuf> = std::iter::from_fn(|| pool.get()).collect();
    lent.truncate(8);
    for mbuf in &mut lent {
        assert!(mbuf.extend_from_slice(&MARK));
    }
    tell(&liar, lies(u)?);
    let group = MacAddr([1, 0, 0x5e, 1, 2, 3]);
    let (mut cqs, mut uars) = (Vec::new(), Vec::new());
    while !u.is_empty() {
        match u.int_in_range(0..=11)? {
            0 => _ = device.register_pool(&pool),
            1 => _ = device.unregister_pool(&pool),
            2 => {
                let attr = CqAttr { log_size: 6, compression: None, events: None };
                cqs.extend(CqRing::new(&device, &attr));
            }
            3 => uars.extend(Uar::new(&device)),
            4 => _ = (cqs.pop(), uars.pop()),
            5 => _ = (device.join_multicast(group), device.leave_multicast(group)),
            6 => _ = (device.set_mtu(1400), device.link()),
            7 => _ = (device.set_promiscuous(u.arbitrary()?), device.vport_counters()),
            8 => _ = (device.poll_event(), device.health()),
            9 => {
                if let Ok(list) = u.arbitrary::<[u32; 4]>() {
                    let _ = device.create_rqt(&list);
                }
            }
            10 => tell(&liar, lies(u)?),
            _ if u.ratio(1, 8)? => {
                let at = [offset::INITIALIZING, offset::CMDQ_ADDR_LO, offset::HEALTH_BUFFER + 0x30];
                liar.lie_in_register(*u.choose(&at)?, u.arbitrary()?);
                let _ = device.health();
                if device.objects_are_gone() {
                    let reached = lent.iter().any(|mbuf| liar.scribbles(mbuf.data_iova(), 64));
                    assert!(!reached, "buffers that the device can still write");
                }
                liar.registers_are_true();
            }
            _ => liar.outputs_are_true(),
        }
        assert!(lent.iter().all(|mbuf| mbuf.data() == MARK), "a borrowed buffer changed");
    }
    drop((cqs, uars));
    let _ = device.close();
    Ok(())
}
