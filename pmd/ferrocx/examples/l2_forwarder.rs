//! Forwards packets between two ports.
//!
//! ```text
//! cargo run --release -p ferrocx --example l2_forwarder -- 0000:3b:00.0 0000:3b:00.1
//! ```

use ferrocx::{Burst, Lane, Port};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let [left, right] = &names[..] else { return Err("give the names of two ports".into()) };
    let [left, right] = Port::open_all([left, right])?;
    for port in [&left, &right] {
        port.device().set_promiscuous(true)?;
    }
    let (mut left, mut right) = (left.lane()?, right.lane()?);
    loop {
        forward(&mut left, &mut right);
        forward(&mut right, &mut left);
    }
}

/// Sends what `from` has received out of `to`; what its ring has no room for is dropped.
pub fn forward(from: &mut Lane, to: &mut Lane) {
    let mut burst = Burst::<32>::new();
    from.rx_burst(&mut burst);
    to.tx_burst(&mut burst);
}
