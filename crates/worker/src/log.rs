//! The log of a sandbox's worker. It lies on the disk of the machine, and what happens inside makes it grow.

use std::io::{self, Write};
use std::os::fd::AsFd;
use tracing_subscriber::fmt::MakeWriter;

/// What it may take; whoever starts a worker empties it before.
const LONGEST: u64 = 16 << 20;

/// Standard error, as long as what it leads to is not too long. What comes then is not written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounded;

impl<'a> MakeWriter<'a> for Bounded {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        Self
    }
}

impl Write for Bounded {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        put(&mut io::stderr().lock(), line, LONGEST)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

fn put(log: &mut (impl Write + AsFd), line: &[u8], longest: u64) -> io::Result<usize> {
    // What is no file has no length, and whoever reads it bounds it.
    let length = rustix::fs::fstat(&*log).map_or(0, |found| u64::try_from(found.st_size).unwrap_or(0));
    if length < longest { log.write(line) } else { Ok(line.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_does_not_grow_for_ever() {
        let mut file = tempfile::tempfile().unwrap();
        for _ in 0..100 {
            assert_eq!(put(&mut file, b"0123456789", 35).unwrap(), 10);
        }
        assert_eq!(file.metadata().unwrap().len(), 40);
    }
}
