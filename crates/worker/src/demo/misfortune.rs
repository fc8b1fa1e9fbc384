//! How the demo agent goes wrong when it is told to.

use std::io::Write;
use std::time::Duration;

/// What is taken at once.
const PIECE: usize = 16 << 20;
/// On a machine that bounds nothing, this much of its memory is left alone.
const LEFT_ALONE: u64 = 512 << 20;
/// No page is smaller.
const PAGE: usize = 4096;

fn complain(text: &str) {
    // Nobody may be there to hear it.
    drop(writeln!(std::io::stderr().lock(), "{text}"));
}

/// SIGABRT, after a line.
pub(super) fn crash() -> ! {
    complain("demo agent: told to crash");
    std::process::abort();
}

/// Nothing, for ever.
pub(super) fn hang() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// Takes memory until it is killed for it.
pub(super) fn run_out_of_memory() -> ! {
    complain("demo agent: told to use all memory");
    let mut held: Vec<Vec<u8>> = Vec::new();
    while available().is_none_or(|bytes| bytes > LEFT_ALONE) {
        let mut piece: Vec<u8> = Vec::new();
        if piece.try_reserve_exact(PIECE).is_err() {
            break;
        }
        piece.resize(PIECE, 0);
        for at in (0..PIECE).step_by(PAGE) {
            piece[at] = 1;
        }
        held.push(piece);
    }
    complain(&format!("demo agent: {} MB and no memory limit that would have killed it", held.len() * (PIECE >> 20)));
    std::process::abort();
}

/// What the machine has left.
fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}
