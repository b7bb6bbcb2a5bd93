use super::*;

const BASE: &str = "address = \"192.0.2.1/24\"\n";

fn with(text: &str) -> Result<Config> {
    Config::parse(&format!("{BASE}{text}"))
}

#[test]
fn the_example_is_right() {
    let text = include_str!("../../examples/ram.toml");
    let config = Config::parse(text).unwrap();
    assert_eq!(config.device, "model");
    assert_eq!(config.subsystems.len(), 1);
    // The same over a restart.
    assert_eq!(Config::parse(text).unwrap(), config);
}

#[test]
fn numbers_follow_each_other() {
    let text = "[[subsystem]]\nnqn = \"nqn.2014-08.a:b\"\nallow_any_host = true\n";
    let ns = "[[subsystem.namespace]]\nsize = \"1MiB\"\n";
    let config = with(&format!("{text}{ns}nsid = 4\n{ns}{ns}")).unwrap();
    let of = |at: usize| &config.subsystems[0].namespaces[at];
    assert_eq!((of(0).nsid, of(1).nsid, of(2).nsid), (4, 5, 6));
    assert_ne!(of(0).uuid, of(1).uuid);
    assert_eq!(config.subsystems[0].hosts, None);
}

#[test]
fn an_address_of_a_drive_has_its_domain() {
    let text = "[[subsystem]]\nnqn = \"nqn.2014-08.a:b\"\n[[subsystem.namespace]]\n\
                backend = \"nvme\"\npath = ";
    for path in ["\"0000:0A:00.0\"", "\"0a:00.0\""] {
        let config = with(&format!("{text}{path}")).unwrap();
        let namespace = &config.subsystems[0].namespaces[0];
        let expected = Store::Nvme { address: "0000:0a:00.0".into(), nsid: 1 };
        assert_eq!((&namespace.store, namespace.len_bytes), (&expected, None));
    }
}

#[test]
fn ports_that_differ_have_the_order_of_services() {
    let config = with(
        "services = [4430, 4420, 8009]\n\
         ana = { 4420 = \"non-optimized\", 4430 = \"persistent-loss\" }",
    );
    let expected = [(4430, AnaState::PersistentLoss), (4420, AnaState::NonOptimized)];
    assert_eq!(config.unwrap().ana, expected);
}

#[test]
fn each_wrong_value_is_named_with_its_limit() {
    let sub = |rest: &str| format!("[[subsystem]]\nnqn = \"nqn.2014-08.a:b\"\n{rest}");
    let ns = |rest: &str| sub(&format!("[[subsystem.namespace]]\n{rest}"));
    let key = format!(
        "[[subsystem.key]]\nhost = \"nqn.2014-08.a:h\"\nsecret = \"{}\"\n",
        crate::auth::key::tests::KEY_32
    );
    let uuid = "uuid = \"f0e0d0c0-0000-4000-8000-000000000001\"\n";
    let namespace = format!("size = \"1MiB\"\n{uuid}");
    let other = "[[subsystem]]\nnqn = \"nqn.2014-08.a:c\"\n[[subsystem.namespace]]\n";
    let many = vec!["nqn.2014-08.a:h"; 1025];
    let twice = format!("{namespace}{other}{namespace}");
    for (text, says) in [
        ("services = []", "at least one port"),
        ("services = [4420, 0]", "a port of services is 0; give 1 to 65535"),
        ("services = [4420, 8009, 4420]", "port 4420 is listed twice; leave one out"),
        ("mtu = 1000", "mtu is 1000; give 1280 to 9978"),
        ("limits = { entries = 2000 }", "entries is 2000; give 16 to 1024"),
        ("limits = { in_capsule_bytes = 5000 }", "give 4096, 8192 or 16384"),
        ("limits = { max_transfer = \"2MiB\" }", "to 1MiB"),
        ("limits = { max_transfer = \"4KiB\" }", "is 4KiB; give 8KiB, 16KiB and so on to 1MiB"),
        ("limits = { queues = 8, queues_per_address = 9 }", "is 9; give 1 to 8"),
        ("limits = { controllers_per_address = 0 }", "is 0; give 1 to 64"),
        ("limits = { drive_timeout_s = 0 }", "drive_timeout_s is 0; give 1 to 600"),
        (&ns("backend = \"file\"\npath = \"/x\"\natomic = true"), "atomic is for backend"),
        ("limits = { buffers = 1 }", "buffers is 1; give 2 to 1024"),
        ("limits = { small_buffers = 1 }", "small_buffers is 1; give 2 to 4096"),
        ("limits = { small_buffers = 5000 }", "small_buffers is 5000; give 2 to 4096"),
        ("limits = { silence_s = 9 }", "silence_s is 9; give 10 to 86400"),
        ("colour = 1", "colour"),
        ("ana = { 4421 = \"optimized\" }", "port `4421` is none of services"),
        ("ana = { x = \"optimized\" }", "port `x` is none of services"),
        ("ana = { 4420 = \"fast\" }", "fast"),
        ("cores = [1, 1]", "core 1 is listed twice"),
        ("cores = [5000]", "core is 5000; give 0 to 1023"),
        ("[[subsystem]]\nnqn = \"disk\"", "no name"),
        (&format!("[[subsystem]]\nnqn = \"{DISCOVERY_NQN}\""), "of every discovery service"),
        (&sub(&format!("hosts = {many:?}")), "1025 hosts are listed; give 1024 at most"),
        (&sub("serial = \"012345678901234567890\""), "1 to 20 visible"),
        (&sub("hosts = [\"me\"]"), "host `me`"),
        (&sub("hosts = [\"nqn.2014-08.a:h\"]\nallow_any_host = true"), "leave one"),
        (&sub("hosts = []\n[[subsystem.key]]\nhost = \"me\""), "host `me`"),
        (&sub(&format!("{key}{key}")), "list it there"),
        (&sub(&format!("allow_any_host = true\n{key}{key}")), "has two keys"),
        ("x = DHHC-1:00:topsecret", "line 2: "),
        ("cores = \"four\"", "line 2: cores is \"four\"; give a list"),
        (&ns("size = 5"), "line 5: subsystem[0].namespace[0].size is 5; give text in quotes"),
        (&sub("hosts = \"DHHC-1:00:topsecret\""), "a key is where none belongs"),
        (&ns("size = \"12 parsecs\""), "no size"),
        (&ns("size = \"1000\""), "no multiple"),
        (&ns(""), "there is no size"),
        (&ns("backend = \"file\""), "there is no path"),
        (&ns("size = \"1MiB\"\npath = \"x\""), "path is for backend = \"file\", \"nvme\" or"),
        (&ns("backend = \"peer\""), "there is no path; give pci:"),
        (&ns("backend = \"peer\"\npath = \"cuda:0\""), "`cuda:0` names no peer memory"),
        (&ns("backend = \"peer\"\npath = \"host\""), "there is no size"),
        (&ns("size = \"1MiB\"\ndirect = true"), "direct is for"),
        (&ns("size = \"1MiB\"\ndrive_nsid = 1"), "drive_nsid is for"),
        (&ns("backend = \"nvme\""), "give the PCI address of a drive"),
        (&ns("backend = \"nvme\"\npath = \"5:0.0\"\nblock_bytes = 512"), "leave it out"),
        (&ns("backend = \"nvme\"\npath = \"5:0.0\"\ndrive_nsid = 0"), "drive_nsid is 0"),
        (&ns("size = \"1MiB\"\nblock_bytes = 520"), "give 512 or 4096"),
        (&ns("size = \"1MiB\"\nnsid = 0"), "nsid is 0; give 1 to 1024"),
        (&ns("size = \"1MiB\"\nuuid = \"x\""), "uuid `x`"),
        (&ns(&twice), "is namespace 1's of nqn.2014-08.a:b, too; give another, or leave it out"),
        (&ns("size = \"1MiB\"\nana_group = 9"), "ana_group is 9; give 1 to 8"),
        (&ns("size = \"99999999999GiB\""), "no size"),
        (&ns("size = \"2TiB\""), "size is 2199023255552; give 512 to 1099511627776"),
    ] {
        let error = format!("{:#}", with(text).unwrap_err());
        assert!(error.contains(says), "{text}: {error}");
        assert!(!error.contains("topsecret") && !error.contains("AwQFBgc"), "{error}");
    }
    assert!(Config::parse("address = \"here\"").is_err());
}
