//! The command line, as text; [`crate::config`] gives it meaning and limits.

use std::path::PathBuf;

use clap::Parser;

/// Measures RDMA over a ConnectX or its software model, with data verified if asked to.
///
/// On the model, which is the default, both ends run in this process, joined by a cable: what is
/// measured is the model's speed, not a NIC's. On a device, start one end without SERVER and the
/// other with its host name; they exchange addresses over TCP, or with --cm connect by the address
/// of the port alone. `pingpong` talks to rdma-core's ibv_rc_pingpong and its kin for uc, ud and
/// srq, started with -g. `fastreg` binds and ends memory keys on threads of their own; with
/// --verify the other end writes through each. `target` does what a program at the other end tells
/// it in lines of JSON, which may try anything.
#[derive(Debug, Clone, Parser)]
#[command(name = "perftest", version, max_term_width = 100)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What to do: send, write, read, atomic, fastreg, pingpong or target
    #[arg(value_name = "TEST")]
    pub test: String,
    /// lat for the time of one operation after the other, bw for how many end in a second;
    /// rc, uc, ud or srq of pingpong; rc of target
    #[arg(value_name = "KIND")]
    pub kind: String,
    /// Host of the other end, which waits there; without it, this end waits
    #[arg(value_name = "SERVER")]
    pub server: Option<String>,

    /// Device: `model`, `model:seed=N` or a PCI address such as 0000:3b:00.0
    #[arg(long, value_name = "DEVICE", default_value = "model")]
    pub device: String,
    /// Own address and its prefix length, such as 192.168.0.1/24 [default: the link-local one]
    #[arg(long, visible_alias = "address", value_name = "ADDRESS/BITS")]
    pub ip: Option<String>,
    /// MAC address of the peer, or of the gateway to it [default: the one in a link-local address]
    #[arg(long, value_name = "MAC")]
    pub peer_mac: Option<String>,
    /// Messages lie in memory of another device: host (by way of a provider), pci:ADDRESS/BAR,
    /// vfio:ADDRESS/BAR of a device bound to vfio-pci, dmabuf:FD (an inherited open file), cuda:N,
    /// or cuda-mapped:N [default: the host's, without a provider]
    #[arg(long, value_name = "PEER")]
    pub peer: Option<String>,
    /// Connect through the RDMA connection manager, as stock perftest's -R: SERVER is the address
    /// of the other port, whose MAC address is found, and nothing goes over TCP
    #[arg(short = 'R', long, visible_alias = "rdma_cm")]
    pub cm: bool,
    /// TCP port of the exchange; with --cm, port of the connection manager
    #[arg(long, value_name = "PORT", default_value_t = 18515)]
    pub port: u16,
    /// Path MTU: 256, 512, 1024, 2048 or 4096
    #[arg(long, value_name = "BYTES", default_value_t = 1024)]
    pub mtu: u32,
    /// Waiting for an acknowledgement takes 4.096 us times 2 to this power: 1 to 31
    #[arg(long, value_name = "N", default_value_t = 14)]
    pub ack_timeout: u8,

    /// Bytes of a message, or a list such as 64,4096 [default: lat 64, bw and pingpong 4096]
    #[arg(short, long, value_name = "LIST")]
    pub size: Option<String>,
    /// All powers of two from 1 to 1048576 as sizes
    #[arg(short, long)]
    pub all: bool,
    /// Messages of each queue pair and size; registrations of each thread [default: 1000, fastreg
    /// 10000]
    #[arg(short = 'n', long, value_name = "N")]
    pub iterations: Option<u64>,
    /// Seconds for each size, in place of a number of messages
    #[arg(long, visible_alias = "seconds", value_name = "SECONDS")]
    pub duration: Option<f64>,
    /// Messages on the way on each queue pair, keys of each registration pipeline [default:
    /// 128]
    #[arg(long, value_name = "N")]
    pub depth: Option<usize>,
    /// Queue pairs [default: 1, pingpong srq 16]
    #[arg(long, value_name = "N")]
    pub qps: Option<usize>,
    /// Threads that the queue pairs are dealt to, each a registration pipeline of fastreg [default:
    /// one for each core of --cores, or 1]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Cores of the threads, such as 1 or 2,4-5 [default: not pinned]
    #[arg(long, value_name = "LIST")]
    pub cores: Option<String>,
    /// On the model: cores of the other end's threads [default: not pinned]
    #[arg(long, value_name = "LIST")]
    pub peer_cores: Option<String>,
    /// Copy messages of up to this many bytes into the request, 0 to 928
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub inline: usize,
    /// Ask for a completion of every so many messages only
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub signal_every: usize,
    /// Ring the doorbell once for so many messages
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub batch: usize,
    /// pingpong takes its receives from a shared receive queue
    #[arg(long)]
    pub srq: bool,
    /// Check every byte of every message
    #[arg(short = 'c', long)]
    pub verify: bool,
    /// How a thread waits when it finds nothing to do: busy, spin, yield,
    /// sleep (50 microseconds) or sleep:N (N microseconds, 1000 at most)
    #[arg(long, value_name = "STRATEGY", default_value = "yield")]
    pub wait: String,

    /// Share of the frames that the model's cable loses, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, allow_hyphen_values = true)]
    pub loss: f64,
    /// Share of the frames that it repeats
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, allow_hyphen_values = true)]
    pub duplicate: f64,
    /// Share of the frames that three others overtake
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, allow_hyphen_values = true)]
    pub reorder: f64,
    /// Share of the frames in which one bit changes, their check sequence being made right again
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, allow_hyphen_values = true)]
    pub corrupt: f64,

    /// Write a script for gnuplot, with its data: `gnuplot -p FILE` shows it
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Write the report as JSON to a file, or to standard output with `-`
    #[arg(long, value_name = "FILE")]
    pub json: Option<String>,
    /// Write every frame on the model's cable to a pcapng file
    #[arg(long, visible_alias = "capture", value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Say more; twice for still more
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

const EXAMPLES: &str = "\
Examples:
  perftest send bw --all --verify
      both ends on the model, all sizes, every byte checked
  perftest write lat --size 8,64 --plot lat.gp && gnuplot -p lat.gp
      times there and back on the model, as curves
  perftest send bw --loss 1 --reorder 1 --duplicate 1 --ack-timeout 10 --verify
      on a bad cable
  perftest fastreg bw --depth 64 --threads 2
      registrations a second by two pipelines of 64 keys
  perftest read bw --device 0000:3b:00.0 --ip 10.1.0.2/24
      waits for the same on another machine, with the name of this one at the end
  perftest write bw --cm --device 0000:3b:00.0 --ip 10.1.0.3/24 10.1.0.2
      measures against `perftest write bw --cm` on the port that has this address
  perftest pingpong rc -c -s 100000
      both ends on the model
  perftest pingpong rc --device 0000:3b:00.0 --ip 10.1.0.2/24 --peer-mac 02:00:00:00:00:01 -c
      waits for `ibv_rc_pingpong -g 1 HOST` of another machine";
