//! Counters of providers, like those that kernels show below `/sys/kernel/mm/memory_peers`.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

macro_rules! counters {
    ($($name:ident, $help:literal;)*) => {
        /// Counters of one provider, as they change.
        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(pub(super) $name: AtomicU64,)*
        }

        /// Counters of one provider since it was registered. Serializes to JSON;
        /// [`std::fmt::Display`] is for people, [`prometheus`] for scraping.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize)]
        #[non_exhaustive]
        pub struct PeerStats {
            /// Name of the provider.
            pub name: String,
            /// Its version.
            pub version: String,
            $(#[doc = $help] pub $name: u64,)*
        }

        impl Counters {
            pub(super) fn snapshot(&self, name: &str, version: &str) -> PeerStats {
                PeerStats {
                    name: name.to_owned(),
                    version: version.to_owned(),
                    $($name: self.$name.load(Ordering::Relaxed),)*
                }
            }
        }

        impl PeerStats {
            /// Names, explanations and values.
            fn rows(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$((stringify!($name), $help, self.$name)),*].into_iter()
            }
        }
    };
}

counters! {
    num_alloc_mrs, "Regions registered.";
    num_dealloc_mrs, "Regions ended, for whatever reason.";
    num_reg_pages, "Pages registered, of the provider's size.";
    num_dereg_pages, "Pages given back.";
    num_reg_bytes, "Bytes registered, in whole pages.";
    num_dereg_bytes, "Bytes given back.";
    num_invalidations, "Times that the provider took memory back.";
    num_late_invalidations, "Invalidations that took longer than the deadline.";
    num_failures, "Registrations that failed, and ends that did.";
}

pub(super) fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Ordering::Relaxed);
}

impl fmt::Display for PeerStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} ({})", self.name, self.version)?;
        self.rows().try_for_each(|(name, _, value)| writeln!(f, "  {name:24}{value:>16}"))
    }
}

/// The counters of all providers in the text format of Prometheus.
#[must_use]
pub fn prometheus(stats: &[PeerStats]) -> String {
    let Some(first) = stats.first() else { return String::new() };
    let mut text = String::new();
    for (at, (name, help, _)) in first.rows().enumerate() {
        text += &format!("# HELP ferrocx_peer_{name} {help}\n# TYPE ferrocx_peer_{name} counter\n");
        for provider in stats {
            let value = provider.rows().nth(at).map_or(0, |(_, _, value)| value);
            let label =
                provider.name.replace('\\', r"\\").replace('"', "\\\"").replace('\n', "\\n");
            text += &format!("ferrocx_peer_{name}{{provider=\"{label}\"}} {value}\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_numbers_in_three_formats() {
        let counters = Counters::default();
        add(&counters.num_reg_pages, 3);
        let stats = [counters.snapshot("gpu\"0", "1.2")];
        assert!(stats[0].to_string().contains("  num_reg_pages                          3\n"));
        let text = prometheus(&stats);
        assert!(text.contains("ferrocx_peer_num_reg_pages{provider=\"gpu\\\"0\"} 3\n"), "{text}");
        assert_eq!(text.lines().count(), 3 * 9);
        assert_eq!(prometheus(&[]), "");
        let json = serde_json::to_value(&stats[0]).unwrap();
        assert_eq!((&json["num_reg_pages"], &json["name"]), (&3.into(), &"gpu\"0".into()));
    }
}
