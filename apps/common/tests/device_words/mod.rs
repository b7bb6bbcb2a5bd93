//! Shifts and masks by numbers in files that drive the device: places of bits in all but name.
//!
//! Left out by themselves: 32 bits, which join and part words; numbers that are shifted, which are
//! powers of two.

/// Shifts and masks that may stay: where, what, and why.
const ALLOWED: &[(&str, &str, &str)] = &[
    (
        "pmd/src/rx/compressed.rs",
        "(entry & !1)",
        "counts mini completions: the first two share an entry",
    ),
    (
        "pmd/src/rx/meta.rs",
        "(kind as u32) << 24",
        "the table is this file's own: flags below, packet type above",
    ),
    ("pmd/src/rx/meta.rs", "known & 0x00ff_ffff", "the same table"),
    ("pmd/src/rx/meta.rs", "(known >> 24) as u8", "the same table"),
    ("pmd/src/tx/frame.rs", "rotate_left(16)) >> 16", "folds a checksum of RFC 1071"),
    (
        "verbs-lite/src/cm/conn.rs",
        "code & 31",
        "a time of five bits, taken from a message by its field",
    ),
    ("verbs-lite/src/cm/conn.rs", "service_id() & 0xffff", "a port in a service id of annex A11"),
    ("verbs-lite/src/cm/engine/receive.rs", "max_mtu << 4", "the one byte of a reason of refusal"),
    ("verbs-lite/src/cm/gsi.rs", "] >> 4 ==", "the version of an IP header"),
    (
        "verbs-lite/src/cm/handles.rs",
        "random() as u32 & 0xff_ffff",
        "a random packet sequence number",
    ),
    ("verbs-lite/src/cm/id.rs", "random() as u32 & 0xff_ffff", "a random packet sequence number"),
    (
        "verbs-lite/src/cm/manager.rs",
        "random() as u32 & 0xff_ffff",
        "a random packet sequence number",
    ),
    (
        "verbs-lite/src/cm/manager.rs",
        "random() as u16 >> 2",
        "a random port of those that nobody owns",
    ),
    ("verbs-lite/src/era.rs", "era & 0xff", "tags are this file's own"),
    ("verbs-lite/src/fastreg/list.rs", "self.len << 1..", "two words to an entry of the list"),
    ("verbs-lite/src/gid.rs", "ip.octets()[1] & 0xf == 2", "the scope of an IPv6 group"),
    (
        "verbs-lite/src/gid.rs",
        "self.flow_label & 0xf_ffff",
        "20 bits of a label that is a number of the user",
    ),
    (
        "verbs-lite/src/gid.rs",
        "self.traffic_class & !3",
        "the traffic class of an IP header: DSCP above, ECN below",
    ),
    ("verbs-lite/src/gid.rs", "self.traffic_class >> 2", "DSCP of a traffic class"),
    (
        "verbs-lite/src/gid.rs",
        "(self.priority & 7) << 1",
        "a service level holds a priority in its upper bits",
    ),
    ("verbs-lite/src/gid.rs", "(label & 0x3fff)", "folds a label into a port: reference 7.9"),
    ("verbs-lite/src/gid.rs", "label ^= label >>", "the same"),
    ("verbs-lite/src/gid.rs", "label as u32 & 0xf_ffff", "the same"),
    (
        "verbs-lite/src/peer/mapped.rs",
        "flags & 0x200",
        "a flag of Linux's resources of a PCI device",
    ),
    ("verbs-lite/src/qp/sq.rs", "self.allowed >> operation & 1", "a set of this driver's own"),
    ("verbs-lite/src/qp/xrc.rs", "operations() >> wr.op.number() & 1", "the same set"),
];

/// Whether a line shifts by a number, or masks with one.
pub(crate) fn has_literal_bits(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    let digits = |text: &str| {
        let text = text.trim_start_matches('!');
        let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
        text.starts_with(|c: char| c.is_ascii_digit()).then(|| text[..end].to_owned())
    };
    let shifts = |operator: &str| {
        code.match_indices(operator).any(|(at, _)| {
            let by = digits(&code[at + operator.len()..]);
            let before = code[..at].trim_end();
            let start = before.rfind(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let of_number = digits(&before[start.map_or(0, |start| start + 1)..]).is_some();
            by.is_some_and(|by| by != "32") && !of_number
        })
    };
    let masks =
        code.match_indices(" & ").any(|(at, and)| digits(&code[at + and.len()..]).is_some());
    masks || shifts(" >> ") || shifts(" << ")
}

/// Whether a line of a file is among those that may stay.
pub(crate) fn may_stay(path: &str, line: &str) -> bool {
    ALLOWED.iter().any(|(of, what, _)| *of == path && line.contains(what))
}

/// Those of the list that stand nowhere, or without a reason.
pub(crate) fn stale<'a>(text_of: impl Fn(&str) -> Option<&'a str>) -> Vec<String> {
    let is_there = |path: &str, what: &str| {
        text_of(path).is_some_and(|text| {
            text.lines().any(|line| line.contains(what) && has_literal_bits(line))
        })
    };
    let rows = ALLOWED.iter().filter(|(path, what, why)| !is_there(path, what) || why.is_empty());
    rows.map(|(path, what, _)| format!("{path}: no `{what}` that needs a reason")).collect()
}
