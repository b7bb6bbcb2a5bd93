//! When to send again: round trips measured, timeouts from them. Source: RFC 6298.

/// The estimator of the retransmission timeout.
#[derive(Debug, Clone)]
pub(super) struct Rtt {
    min_ns: u64,
    max_ns: u64,
    smoothed_ns: Option<u64>,
    variation_ns: u64,
    timeout_ns: u64,
}

impl Rtt {
    pub(super) fn new(initial_ns: u64, min_ns: u64, max_ns: u64) -> Self {
        let timeout_ns = initial_ns.clamp(min_ns, max_ns);
        Self { min_ns, max_ns, smoothed_ns: None, variation_ns: 0, timeout_ns }
    }

    /// A round trip of a segment that was sent once. Source: RFC 6298, 2.
    pub(super) fn measured(&mut self, ns: u64) {
        let smoothed = match self.smoothed_ns {
            None => {
                self.variation_ns = ns / 2;
                ns
            }
            Some(smoothed) => {
                self.variation_ns = (3 * self.variation_ns + smoothed.abs_diff(ns)) / 4;
                (7 * smoothed + ns) / 8
            }
        };
        self.smoothed_ns = Some(smoothed);
        self.timeout_ns = (smoothed + 4 * self.variation_ns).clamp(self.min_ns, self.max_ns);
    }

    /// A timeout passed: the next one is twice as long. Source: RFC 6298, 5.5.
    pub(super) fn back_off(&mut self) {
        self.timeout_ns = (2 * self.timeout_ns).min(self.max_ns);
    }

    pub(super) const fn timeout_ns(&self) -> u64 {
        self.timeout_ns
    }

    pub(super) const fn smoothed_ns(&self) -> Option<u64> {
        self.smoothed_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_follows_rfc_6298() {
        let mut rtt = Rtt::new(1_000, 10, 5_000);
        assert_eq!(rtt.timeout_ns(), 1_000);
        rtt.measured(100);
        assert_eq!((rtt.smoothed_ns(), rtt.timeout_ns()), (Some(100), 300));
        rtt.measured(180);
        // Variation (3*50 + 80) / 4 = 57, smoothed (7*100 + 180) / 8 = 110.
        assert_eq!((rtt.smoothed_ns(), rtt.timeout_ns()), (Some(110), 338));
        for _ in 0..5 {
            rtt.back_off();
        }
        assert_eq!(rtt.timeout_ns(), 5_000);
        for _ in 0..200 {
            rtt.measured(1);
        }
        assert_eq!(rtt.timeout_ns(), 10);
    }
}
