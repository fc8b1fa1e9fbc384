//! The floor of durable writes: append a kilobyte to a file and fsync.

use crate::load;
use crate::stats::Latencies;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

pub fn measure_appends(dir: &Path, count: usize) -> io::Result<Latencies> {
    let path = dir.join("append");
    let mut file = File::create(&path)?;
    let block = load::event_data(0);
    let mut latencies = Latencies::default();
    for _ in 0..count {
        let began = Instant::now();
        file.write_all(block.as_bytes())?;
        file.sync_data()?;
        latencies.push(began.elapsed());
    }
    std::fs::remove_file(path)?;
    Ok(latencies)
}
