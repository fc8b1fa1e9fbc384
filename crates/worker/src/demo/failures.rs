//! The demo agent's deliberate failures.

use std::io::Write;
use std::time::Duration;

/// Size of one allocation.
const CHUNK_BYTES: usize = 16 << 20;
/// Stops at this much free memory on a machine without limits.
const RESERVED_MEMORY_BYTES: u64 = 512 << 20;
/// The smallest page size.
const PAGE_BYTES: usize = 4096;

fn print_error(text: &str) {
    drop(writeln!(std::io::stderr().lock(), "{text}"));
}

/// Ends with SIGABRT, after one line on standard error.
pub(super) fn abort_process() -> ! {
    print_error("demo agent: told to crash");
    std::process::abort();
}

/// Sleeps forever.
pub(super) fn hang_forever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// Allocates memory until the kernel kills the process.
pub(super) fn exhaust_memory() -> ! {
    print_error("demo agent: told to use all memory");
    let mut chunks: Vec<Vec<u8>> = Vec::new();
    while available_memory().is_none_or(|bytes| bytes > RESERVED_MEMORY_BYTES) {
        let mut piece: Vec<u8> = Vec::new();
        if piece.try_reserve_exact(CHUNK_BYTES).is_err() {
            break;
        }
        piece.resize(CHUNK_BYTES, 0);
        for at in (0..CHUNK_BYTES).step_by(PAGE_BYTES) {
            piece[at] = 1;
        }
        chunks.push(piece);
    }
    print_error(&format!(
        "demo agent: {} MB and no memory limit that would have killed it",
        chunks.len() * (CHUNK_BYTES >> 20)
    ));
    std::process::abort();
}

/// The machine's available memory in bytes.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}
