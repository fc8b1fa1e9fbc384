//! The bounded log of a sandbox's worker: it is on the host's disk, and the agent can make it grow.

use std::io::{self, Write};
use std::os::fd::AsFd;
use tracing_subscriber::fmt::MakeWriter;

/// Size limit of the log. The launcher truncates the log before it starts a worker.
const MAX_LOG_BYTES: u64 = 16 << 20;

/// Writes to stderr until its file reaches the limit, then drops lines.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BoundedLog;

impl<'a> MakeWriter<'a> for BoundedLog {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        Self
    }
}

impl Write for BoundedLog {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        write_bounded(&mut io::stderr().lock(), line, MAX_LOG_BYTES)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

fn write_bounded(log: &mut (impl Write + AsFd), line: &[u8], max_bytes: u64) -> io::Result<usize> {
    // A pipe has no length.
    let length = rustix::fs::fstat(&*log).map_or(0, |found| u64::try_from(found.st_size).unwrap_or(0));
    if length < max_bytes { log.write(line) } else { Ok(line.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_at_the_limit() {
        let mut file = tempfile::tempfile().unwrap();
        for _ in 0..100 {
            assert_eq!(write_bounded(&mut file, b"0123456789", 35).unwrap(), 10);
        }
        assert_eq!(file.metadata().unwrap().len(), 40);
    }
}
