//! What goes wrong on a wire, from the command line.

use clap::Args;
use ferrocx_model::wire::ImpairConfig;

/// Parts in a million: the largest value of a chance.
const MILLION: i64 = 1_000_000;
/// Frames that overtake one that is held back.
const OVERTAKERS: u32 = 3;

/// Chances of loss, repetition, reordering and damage, and a delay.
#[derive(Debug, Clone, Default, Args)]
pub struct Impairment {
    /// Frames lost, in a million.
    #[arg(long, value_name = "PPM", default_value_t = 0, value_parser = chance())]
    pub loss: u32,
    /// Frames that arrive twice, in a million.
    #[arg(long, value_name = "PPM", default_value_t = 0, value_parser = chance())]
    pub duplicate: u32,
    /// Frames overtaken by three others, in a million.
    #[arg(long, value_name = "PPM", default_value_t = 0, value_parser = chance())]
    pub reorder: u32,
    /// Frames with a changed bit and a frame check sequence that shows it, in a million.
    #[arg(long, value_name = "PPM", default_value_t = 0, value_parser = chance())]
    pub corrupt: u32,
    /// Frames with a changed bit and a frame check sequence that is right, in a million.
    #[arg(long, value_name = "PPM", default_value_t = 0, value_parser = chance())]
    pub silent_corrupt: u32,
    /// IP packets that meet congestion and are marked, if they can be, in a million.
    #[arg(long, value_name = "PPM", default_value_t = 0, value_parser = chance())]
    pub congestion: u32,
    /// Microseconds that every frame takes, up to 10 seconds.
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0,
          value_parser = clap::value_parser!(u32).range(0..=10_000_000))]
    pub delay: u32,
    /// Seed of what goes wrong: same seed, same frames.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
}

fn chance() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(0..=MILLION)
}

impl Impairment {
    /// The same in the words of the wire.
    pub fn config(&self) -> ImpairConfig {
        ImpairConfig {
            loss_ppm: self.loss,
            duplicate_ppm: self.duplicate,
            corrupt_ppm: self.corrupt,
            silent_corrupt_ppm: self.silent_corrupt,
            reorder_ppm: self.reorder,
            reorder_frames: if self.reorder == 0 { 0 } else { OVERTAKERS },
            congestion_ppm: self.congestion,
            delay_ns: u64::from(self.delay) * 1000,
            ..ImpairConfig::default()
        }
    }
}
