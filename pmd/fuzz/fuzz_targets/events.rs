//! Any events in the event queue, and calls that read it: each call ends, firmware gets no more
//! pages than it may, and events that nobody takes hold no memory.
//!
//! Bring-up takes a hundred times as long as an input, so a device serves several. After each input
//! its event queue is emptied; a device that has other pages or more memory than when it came up is
//! closed. What an input finds changed is the place in the queue, and its lap.
#![no_main]

#[path = "../../core/tests/support/mod.rs"]
#[expect(dead_code, reason = "each target tells some of its lies")]
mod support;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arbitrary::{Result, Unstructured};
use ferrocx_core::{Device, DeviceConfig};
use ferrocx_fuzz::word;
use ferrocx_mempool::PageSize;
use ferrocx_model::NicConfig;
use ferrocx_prm::eqe::{Eqe, EventPageRequest};
use libfuzzer_sys::fuzz_target;
use support::{Liar, LyingTransport};

/// Event types that the driver knows, but for page requests, and some that it does not.
const TYPES: [u32; 11] = [0x00, 0x01, 0x03, 0x04, 0x05, 0x07, 0x08, 0x09, 0x0a, 0x10, 0xff];
/// Pages that the firmware may have: some more than it asks for at first.
const PAGES: u32 = 256;
/// Inputs that a device serves at most.
const INPUTS: u32 = 256;
/// Memory for commands and their pages, beyond what the device holds when it is up.
const ROOM_BYTES: usize = 1 << 20;

fuzz_target!(|data: &[u8]| {
    run(&mut Unstructured::new(data));
});

/// An event with a type that leads somewhere, around any bytes.
fn event(u: &mut Unstructured<'_>) -> Result<Eqe> {
    let mut event = Eqe(u.arbitrary()?);
    if u.ratio(7, 8)? {
        event = event.with_event_type(*u.choose(&TYPES)?);
    }
    // A queue full of these makes each call carry out 64 commands.
    if u.ratio(1, 16)? {
        let pages = EventPageRequest::zeroed().with_num_pages(word(u)?);
        event = event.with_event_type(0x0b).with_event_data(pages.0);
    }
    Ok(event)
}

/// A device that is up, and what it held then.
struct Up {
    liar: Arc<Liar>,
    device: Device,
    pages: usize,
    bytes: usize,
    inputs: u32,
}

impl Up {
    fn open() -> Self {
        // Firmware that wants little memory is up sooner.
        let liar = Liar::with(NicConfig { init_pages: 16, ..NicConfig::default() });
        let config = DeviceConfig {
            page: PageSize::Base4K,
            command_timeout: Duration::from_millis(50),
            reset_timeout: Duration::from_millis(50),
            max_firmware_pages: PAGES,
            ..DeviceConfig::default()
        };
        let transport = Arc::new(LyingTransport(Arc::clone(&liar)));
        let device = Device::open(transport, &config).expect("no lies yet");
        let (pages, bytes) = (device.firmware_pages(), device.dma_bytes_used());
        Self { liar, device, pages, bytes, inputs: 0 }
    }

    /// Calls and events, as the input says.
    fn serve(&self, u: &mut Unstructured<'_>) -> Result<()> {
        let Self { liar, device, .. } = self;
        while !u.is_empty() {
            match u.int_in_range(0..=5)? {
                0 | 1 => liar.flood(Some(event(u)?)),
                2 => liar.flood(None),
                3 => _ = device.poll_event(),
                4 => device.serve_events(),
                _ => _ = (device.link(), device.health()),
            }
            assert!(device.firmware_pages() <= PAGES as usize, "{} pages", device.firmware_pages());
            let more = device.dma_bytes_used().saturating_sub(self.bytes);
            assert!(more <= ROOM_BYTES, "{more} bytes");
        }
        Ok(())
    }

    /// Empties the event queue. Whether the device is as it was when it came up.
    fn is_as_new(&mut self) -> bool {
        let device = &self.device;
        self.liar.flood(None);
        while device.poll_event().is_some() || device.has_page_requests() {}
        self.inputs += 1;
        self.inputs < INPUTS
            && device.firmware_pages() == self.pages
            && device.dma_bytes_used() == self.bytes
            && !device.objects_are_gone()
            && device.link().is_ok()
    }
}

/// The device of the next input, unless that is to open one.
static UP: Mutex<Option<Up>> = Mutex::new(None);

fn run(u: &mut Unstructured<'_>) {
    let mut kept = UP.lock().unwrap_or_else(PoisonError::into_inner);
    let mut up = kept.take().unwrap_or_else(Up::open);
    // Running out of input ends the sequence.
    let _ = up.serve(u);
    if up.is_as_new() {
        *kept = Some(up);
    } else {
        let _ = up.device.close();
    }
}
