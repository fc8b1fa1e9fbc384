//! Reads the listening sockets from the kernel's tables.

use atoll_protocol::PROXY_PORT;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};

/// The port, and the inodes of the sockets that listen on it.
pub(super) type ListeningPorts = BTreeMap<u16, Vec<u64>>;

const TABLES: [&str; 2] = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
/// The kernel lists listening sockets first, so a longer table has too many of them.
const MAX_TABLE_BYTES: u64 = 64 << 10;
const CHUNK_BYTES: usize = 4 << 10;
/// `TCP_LISTEN` of the kernel.
const LISTEN_STATE: &str = "0A";
/// Addresses that a connection to a loopback address reaches, in the form of the tables.
const REACHABLE: [&str; 5] = [
    "00000000",
    "0100007F",
    "00000000000000000000000000000000",
    "00000000000000000000000001000000",
    "0000000000000000FFFF00000100007F",
];

pub(super) fn read_ports() -> io::Result<ListeningPorts> {
    let mut ports = ListeningPorts::new();
    for table in TABLES {
        match File::open(table) {
            Ok(file) => add_ports(&mut ports, file.take(MAX_TABLE_BYTES))?,
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(ports)
}

/// Reads a table up to the first socket that does not listen.
fn add_ports(ports: &mut ListeningPorts, mut table: impl Read) -> io::Result<()> {
    let mut text = Vec::new();
    let mut chunk = [0; CHUNK_BYTES];
    let (mut parsed, mut is_header) = (0, true);
    loop {
        let length = table.read(&mut chunk)?;
        if length == 0 {
            return Ok(());
        }
        text.extend_from_slice(&chunk[..length]);
        while let Some(end) = text[parsed..].iter().position(|byte| *byte == b'\n') {
            let line = String::from_utf8_lossy(&text[parsed..parsed + end]);
            parsed += end + 1;
            if std::mem::take(&mut is_header) {
                continue;
            }
            let Some(entry) = TableEntry::parse(&line) else { return Ok(()) };
            if entry.is_reachable && entry.port != PROXY_PORT {
                ports.entry(entry.port).or_default().push(entry.inode);
            }
        }
    }
}

/// A listening socket.
struct TableEntry {
    port: u16,
    is_reachable: bool,
    inode: u64,
}

impl TableEntry {
    /// Parses `sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode …`. `None` if it does not listen.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (address, port) = fields.next()?.split_once(':')?;
        let _remote = fields.next()?;
        if fields.next()? != LISTEN_STATE {
            return None;
        }
        let inode = fields.nth(5)?.parse().ok()?;
        Some(Self { port: u16::from_str_radix(port, 16).ok()?, is_reachable: REACHABLE.contains(&address), inode })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

    fn line(address: &str, port: u16, state: &str, inode: u64) -> String {
        format!(
            "   0: {address}:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  1000        0 {inode} 1 0 100 0 0 10 0\n"
        )
    }

    fn parse(text: &str) -> ListeningPorts {
        let mut ports = ListeningPorts::new();
        // Two bytes at a time, so that lines are split anywhere.
        struct Slow<'a>(&'a [u8]);
        impl Read for Slow<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let length = self.0.len().min(2);
                buffer[..length].copy_from_slice(&self.0[..length]);
                self.0 = &self.0[length..];
                Ok(length)
            }
        }
        add_ports(&mut ports, Slow(text.as_bytes())).unwrap();
        ports
    }

    #[test]
    fn finds_listening_ports_that_loopback_reaches() {
        let table = [
            HEADER.to_owned(),
            line("00000000", 3000, "0A", 11),
            line("0100007F", 8080, "0A", 12),
            line("3500007F", 53, "0A", 13),
            line("0100007F", PROXY_PORT, "0A", 14),
            line("00000000000000000000000001000000", 3000, "0A", 15),
        ];
        assert_eq!(parse(&table.concat()), ListeningPorts::from([(3000, vec![11, 15]), (8080, vec![12])]));
    }

    #[test]
    fn stops_at_the_first_connection() {
        let table = [
            HEADER.to_owned(),
            line("0100007F", 80, "0A", 1),
            line("0100007F", 9, "01", 2),
            line("0100007F", 81, "0A", 3),
        ];
        assert_eq!(parse(&table.concat()).into_keys().collect::<Vec<_>>(), [80]);
        assert!(parse("").is_empty() && parse(HEADER).is_empty());
    }

    #[test]
    fn finds_a_port_of_this_process() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(read_ports().unwrap().contains_key(&port));
    }
}
