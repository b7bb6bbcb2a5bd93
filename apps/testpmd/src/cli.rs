//! The command line, as text; [`crate::config`] gives it meaning and limits.

use std::path::PathBuf;

use clap::Parser;

/// Forwards, answers, counts or generates packets with a ConnectX or its software model.
///
/// Without options it drives the model: one port whose link partner is a generator, each frame sent
/// back, until Ctrl-C. It ends with totals that add up and, with --json, a report for programs.
#[derive(Debug, Clone, Parser)]
#[command(name = "testpmd", version, max_term_width = 100)]
pub struct Args {
    /// Device, once for each port: `model`, `model:seed=N` or a PCI address such as 0000:3b:00.0
    #[arg(long, value_name = "DEVICE")]
    pub device: Vec<String>,
    /// Number of ports; more than devices given repeats `model`
    #[arg(long, value_name = "N")]
    pub ports: Option<usize>,
    /// Link partner of a model port, once for each port: generator, tap:NAME, packet:INTERFACE (an
    /// existing interface, such as one end of a veth pair), replay:FILE (a capture, played once),
    /// link (to the neighbour port) or none
    #[arg(long, value_name = "WIRE")]
    pub wire: Vec<String>,
    /// What to do with frames: io, mac, macswap, icmpecho, rxonly or txonly
    #[arg(long, value_name = "MODE", default_value = "io")]
    pub forward_mode: String,
    /// Bursts that each queue of io, mac and macswap sends of its own before it forwards, 0 to
    /// 1024: on a cable between two ports they go round for ever
    #[arg(long, value_name = "BURSTS", default_value_t = 0)]
    pub tx_first: u64,

    /// Receive and send queues of each port, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub queues: usize,
    /// Cores that poll, such as 1 or 2,4-5; queues are dealt out in turn [default: the last core]
    #[arg(long, value_name = "LIST")]
    pub cores: Option<String>,
    /// Core that the software model runs on [default: the first that does not poll]
    #[arg(long, value_name = "CORE")]
    pub model_core: Option<usize>,
    /// How polling cores and the model wait when idle: busy, spin, yield, sleep (50 microseconds),
    /// sleep:N (N microseconds, 1000 at most), interrupt or interrupt:N (at least N microseconds
    /// after the last one) [default: busy, or yield where they share a core]
    #[arg(long, value_name = "STRATEGY")]
    pub wait: Option<String>,
    /// Most packets in one burst: 1, 2, 4, 8, 16, 32, 64 or 128
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub burst: usize,
    /// Descriptors of each receive queue, a power of two
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub rxd: u32,
    /// Descriptors of each send queue, a power of two
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub txd: u32,
    /// Packet buffers of each port [default: what its queues need]
    #[arg(long, value_name = "N")]
    pub mbufs: Option<usize>,
    /// Bytes of each packet buffer, headroom included, 256 to 65535
    #[arg(long, value_name = "BYTES", default_value_t = 2176)]
    pub mbuf_size: usize,
    /// Buffers in the cache of each queue, 0 to 4096
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub mbuf_cache: usize,

    /// Put what follows the headers of received packets into memory of another device, and send it
    /// from there: host (a pool of its own), pci:ADDRESS/BAR, vfio:ADDRESS/BAR of a device bound
    /// to vfio-pci, dmabuf:FD (an inherited open file), cuda:N, or cuda-mapped:N
    #[arg(long, value_name = "PEER")]
    pub payload: Option<String>,
    /// Bytes of each packet in front of its payload, 64 to what a buffer holds
    #[arg(long, value_name = "BYTES", default_value_t = 128, requires = "payload")]
    pub split: u16,

    /// Largest layer-3 packet
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    pub mtu: u16,
    /// Receive every frame, whatever its destination
    #[arg(long)]
    pub promiscuous: bool,
    /// Spread flows over queues by ip or l4 (addresses and ports)
    #[arg(long, value_name = "FIELDS", default_value = "l4")]
    pub rss: String,
    /// Let the device check checksums of received packets and write those of sent ones
    #[arg(long)]
    pub checksum: bool,
    /// Let the device take VLAN tags out and put them back
    #[arg(long)]
    pub vlan: bool,
    /// One work request per sent packet, where several could share one
    #[arg(long)]
    pub single_packet: bool,
    /// Copy packets of up to this many bytes into the work request, 0 to 256
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub inline: u16,
    /// Let the device compress completions
    #[arg(long)]
    pub cqe_compression: bool,
    /// Let received packets share large buffers (striding receive queues, DPDK's MPRQ), and copy
    /// those of up to this many bytes into a buffer of their own: 128 is a good choice
    #[arg(long, value_name = "BYTES", conflicts_with = "payload")]
    pub striding: Option<u16>,
    /// How the device addresses buffers: reserved, physical or translated [default: the first
    /// that it has]
    #[arg(long, value_name = "MODE")]
    pub key_mode: Option<String>,

    /// Address that icmpecho answers for, IPv4 or IPv6; may repeat [default: every one]
    #[arg(long, visible_alias = "address", value_name = "ADDRESS")]
    pub ip: Vec<String>,
    /// Destination that mac and txonly write [default: 02:00:00:00:00:PORT]
    #[arg(long, value_name = "MAC")]
    pub peer: Option<String>,
    /// Sizes of generated frames, without FCS, such as 64 or 64,594,1514
    #[arg(long, value_name = "LIST", default_value = "64")]
    pub size: String,
    /// Flows that the generator and txonly send, 1 to 1024
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub flows: u16,
    /// Frames per second of the generator, 0 for as many as come back
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub rate: u64,

    /// Become this user, UID or UID:GID, without any rights, once the devices are set up
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// Inherited open files of a PCI device, once for each: /dev/vfio/vfio and /dev/vfio/GROUP, or
    /// /dev/iommu and /dev/vfio/devices/vfioN, as two numbers such as 10,11
    #[arg(long, value_name = "FILES", conflicts_with = "vfio_launcher")]
    pub vfio_files: Vec<String>,
    /// Socket of a launcher that sends these two files, once for each PCI device
    #[arg(long, value_name = "SOCKET")]
    pub vfio_launcher: Vec<PathBuf>,
    /// Interface of the kernel to PCI devices: auto, group or device (iommufd)
    #[arg(long, value_name = "INTERFACE", default_value = "auto")]
    pub vfio_interface: String,
    /// Let all PCI devices share one I/O address space: buffers are mapped once for all of them
    #[arg(long)]
    pub one_address_space: bool,

    /// End after this many seconds
    #[arg(long, visible_alias = "seconds", value_name = "SECONDS")]
    pub duration: Option<f64>,
    /// End when generator or txonly has sent, or the ports received, this many frames
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Write every frame on the wires of the model to a pcapng file
    #[arg(long, visible_alias = "capture", value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Print statistics every so many seconds, 0 for never
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    pub stats: f64,
    /// Write the final report as JSON to a file, or to standard output with `-`
    #[arg(long, value_name = "FILE")]
    pub json: Option<String>,
    /// Say more; twice for still more
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
}
