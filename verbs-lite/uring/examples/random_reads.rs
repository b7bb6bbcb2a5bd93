//! Processor time of random reads of 4 KiB with `O_DIRECT`, 32 under way, by what the kernel was
//! given before: `cargo run --release -p ferrocx-uring --example random_reads -- FILE [READS]`.
//!
//! Time of the whole thread, in the kernel too, per read; it says nothing of the medium.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Instant;

use ferrocx::verbs::{Access, Memory, Mr};
use ferrocx::{Port, RegionConfig};
use ferrocx_uring::{Request, Ring};

const BYTES: usize = 4096;
const UNDER_WAY: usize = 32;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn open(path: &str) -> std::io::Result<File> {
    File::options().read(true).custom_flags(libc::O_DIRECT).open(path)
}

/// Processor time of this thread in nanoseconds, in its own code and in the kernel.
fn processor_ns() -> Outcome<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(text.split_whitespace().next().ok_or("an empty schedstat")?.parse()?)
}

/// Reads so many blocks; nanoseconds of processor time and of the clock for each.
fn measure(ring: &mut Ring, mr: &Mr, path: &str, reads: u64) -> Outcome<(u64, u64)> {
    let file = open(path)?;
    let blocks = file.metadata()?.len() / BYTES as u64;
    let id = ring.add(file);
    let (mut begun, mut ended, mut place) = (0, 0, 1_u64);
    let (cpu, clock) = (processor_ns()?, Instant::now());
    while ended < reads {
        while begun < reads && begun - ended < UNDER_WAY as u64 {
            // Numerical Recipes' generator.
            place = place.wrapping_mul(1_664_525).wrapping_add(1_013_904_223) & 0xffff_ffff;
            let at = begun as usize % UNDER_WAY * BYTES;
            let (to, offset) = (mr.buf(at..at + BYTES)?, place % blocks * BYTES as u64);
            ring.push(begun, id, Request::Read { to, offset }).map_err(|_| "the ring is full")?;
            begun += 1;
        }
        ring.submit();
        while let Some(done) = ring.poll() {
            done.result?;
            ended += 1;
        }
    }
    ring.remove(id);
    Ok(((processor_ns()? - cpu) / reads, clock.elapsed().as_nanos() as u64 / reads))
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("which file? It is only read")?;
    let reads = arguments.next().map_or(Ok(100_000), |it| it.parse())?;
    let port = Port::open("model:net=reads")?;
    let context = port.rdma()?;
    let config = RegionConfig { len_bytes: UNDER_WAY * BYTES, ..RegionConfig::default() };
    let memory = Memory::alloc(&context, &config)?;
    let mr = context.alloc_pd()?.reg_mr(&memory, 0..UNDER_WAY * BYTES, Access::LOCAL_WRITE)?;
    let mut plain = Ring::new(64)?;
    let mut registered = Ring::new(64)?;
    registered.register(&[&memory])?;
    println!("memory      processor  clock (ns per read)");
    for _ in 0..3 {
        for (name, ring) in [("plain", &mut plain), ("registered", &mut registered)] {
            let (cpu, clock) = measure(ring, &mr, &path, reads)?;
            println!("{name:11} {cpu:9}  {clock:5}");
        }
    }
    Ok(())
}
