//! Any events in the event queue, and calls that read it: each call ends, firmware gets no more
//! pages than it may, and events that nobody takes hold no memory.
#![no_main]

#[path = "../../core/tests/support/mod.rs"]
#[expect(dead_code, reason = "each target tells some of its lies")]
mod support;

use std::sync::Arc;
use std::time::Duration;

use arbitrary::{Result, Unstructured};
use ferrocx_core::{Device, DeviceConfig};
use ferrocx_fuzz::word;
use ferrocx_mempool::PageSize;
use ferrocx_model::NicConfig;
use ferrocx_prm::eqe::{Eqe, EventPageRequest};
use libfuzzer_sys::fuzz_target;
use support::{Liar, LyingTransport};

/// Event types that the driver knows, and some that it does not.
const TYPES: [u32; 12] = [0x00, 0x01, 0x03, 0x04, 0x05, 0x07, 0x08, 0x09, 0x0a, 0x0b, 0x10, 0xff];
/// Pages that the firmware may have.
const PAGES: u32 = 1 << 15;
/// Memory for commands and their pages, beyond what the device holds when it is up.
const ROOM_BYTES: usize = 1 << 20;

fuzz_target!(|data: &[u8]| {
    // Running out of input ends the sequence.
    let _ = run(&mut Unstructured::new(data));
});

/// An event with a type that leads somewhere, around any bytes.
fn event(u: &mut Unstructured<'_>) -> Result<Eqe> {
    let mut event = Eqe(u.arbitrary()?);
    if u.ratio(7, 8)? {
        event = event.with_event_type(*u.choose(&TYPES)?);
    }
    if u.ratio(1, 4)? {
        let pages = EventPageRequest::zeroed().with_num_pages(word(u)?);
        event = event.with_event_type(0x0b).with_event_data(pages.0);
    }
    Ok(event)
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
    let device =
        Device::open(Arc::new(LyingTransport(Arc::clone(&liar))), &config).expect("no lies yet");
    let before = device.dma_bytes_used();
    while !u.is_empty() {
        match u.int_in_range(0..=5)? {
            0 | 1 => liar.flood(Some(event(u)?)),
            2 => liar.flood(None),
            3 => _ = device.poll_event(),
            4 => device.serve_events(),
            _ => _ = (device.link(), device.health()),
        }
        assert!(device.firmware_pages() <= PAGES as usize, "{} pages", device.firmware_pages());
        let more = device.dma_bytes_used().saturating_sub(before);
        assert!(more <= ROOM_BYTES, "{more} bytes");
    }
    liar.flood(None);
    while device.poll_event().is_some() {}
    let _ = device.close();
    Ok(())
}
