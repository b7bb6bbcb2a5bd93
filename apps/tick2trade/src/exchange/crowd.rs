//! Everybody else: orders around a price that wanders, from a seed.

use ferrocx::model::wire::SplitMix64;

use super::matching::{Exchange, Output};
use crate::proto::Side;

/// How the crowd trades.
#[derive(Debug, Clone)]
pub struct CrowdConfig {
    /// The seed: the same one does the same.
    pub seed: u64,
    /// Price at which the day starts, four decimals. Default 150.0000.
    pub price: u32,
    /// The step of prices. Default 0.0100.
    pub tick: u32,
    /// Orders in the book that it keeps about, per security. Default 200.
    pub depth: usize,
}

impl Default for CrowdConfig {
    fn default() -> Self {
        Self { seed: 1, price: 1_500_000, tick: 100, depth: 200 }
    }
}

/// The crowd. Each step is one order, cancel or replacement.
#[derive(Debug)]
pub struct Crowd {
    config: CrowdConfig,
    rng: SplitMix64,
    /// Per security: what it is worth to the crowd, and the crowd's orders.
    securities: Vec<(u32, Vec<u64>)>,
}

impl Crowd {
    /// A crowd for `securities` securities.
    pub fn new(config: CrowdConfig, securities: usize) -> Self {
        let rng = SplitMix64::new(config.seed);
        let securities = vec![(config.price, Vec::new()); securities];
        Self { config, rng, securities }
    }

    fn below(&mut self, end: u32) -> u32 {
        self.rng.below(end.into()) as u32
    }

    /// Does one thing.
    pub fn step(&mut self, exchange: &mut Exchange, now_ns: u64, out: &mut Output) {
        let index = self.below(self.securities.len() as u32) as usize;
        let locate = index as u16 + 1;
        let tick = self.config.tick;
        match self.below(20) {
            0 => self.securities[index].0 += tick,
            1 => self.securities[index].0 = (self.securities[index].0 - tick).max(100 * tick),
            _ => {}
        }
        let worth = self.securities[index].0;
        let standing = self.securities[index].1.len();
        let what = self.below(100);
        if standing != 0 && (standing > self.config.depth || what >= 60) {
            let place = self.below(standing as u32) as usize;
            let reference = self.securities[index].1[place];
            let Some(shares) = exchange.shares_of(reference) else {
                self.securities[index].1.swap_remove(place);
                return;
            };
            match what % 4 {
                0 if shares > 1 => {
                    let off = 1 + self.below(shares - 1);
                    exchange.crowd_cancel(reference, off, now_ns, out);
                }
                1 => {
                    let (shares, price) = (100 + self.below(900), worth + tick * self.below(9));
                    let price = price - 4 * tick;
                    let new = exchange.crowd_replace(reference, shares, price, now_ns, out);
                    if let Some(new) = new {
                        self.securities[index].1[place] = new;
                    }
                }
                _ => {
                    exchange.crowd_cancel(reference, shares, now_ns, out);
                    self.securities[index].1.swap_remove(place);
                }
            }
            return;
        }
        let side = if what.is_multiple_of(2) { Side::Buy } else { Side::Sell };
        // Most stand off the price; some reach over it and trade.
        let away = self.below(12) * tick;
        let price = match side {
            Side::Buy => worth + tick - away,
            Side::Sell => worth + away - tick,
        };
        let shares = 1 + self.below(500);
        let stands = exchange.crowd_order(locate, side, shares, price, now_ns, out);
        self.securities[index].1.extend(stands);
    }
}
