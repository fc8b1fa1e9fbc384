//! Parses the server name (SNI) from a TLS ClientHello. Nothing is decrypted.

/// The result of parsing the first bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientHello {
    /// A valid beginning; more bytes are needed.
    Incomplete,
    NotTls,
    /// Begins as TLS and continues invalid.
    Malformed,
    /// A whole ClientHello; the name is optional.
    Complete {
        server_name: Option<String>,
    },
}

const HANDSHAKE_RECORD: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
/// Maximum payload of a TLS record, with expansion.
const MAX_RECORD_BYTES: usize = (1 << 14) + 256;
/// Larger than any real ClientHello; post-quantum keys need a few kilobytes.
pub const MAX_HELLO_BYTES: usize = 64 << 10;

/// Parses a ClientHello while its bytes arrive. It may span several records and reads; each byte is parsed once.
#[derive(Debug, Default)]
pub struct HelloParser {
    /// Number of bytes that are parsed.
    position: usize,
    /// Missing bytes of the current record.
    record_left: usize,
    /// The handshake message so far.
    hello: Vec<u8>,
}

impl HelloParser {
    /// Continues with all bytes received so far.
    pub fn parse(&mut self, bytes: &[u8]) -> ClientHello {
        loop {
            if let Some(read) = parse_handshake(&self.hello) {
                return read;
            }
            let rest = bytes.get(self.position..).unwrap_or_default();
            if self.record_left > 0 && !rest.is_empty() {
                let now = &rest[..self.record_left.min(rest.len())];
                self.hello.extend_from_slice(now);
                self.position += now.len();
                self.record_left -= now.len();
                continue;
            }
            match rest {
                [] => return ClientHello::Incomplete,
                [kind, ..] if *kind != HANDSHAKE_RECORD => return self.failure(),
                [_, major, ..] if *major != 3 => return self.failure(),
                [_, _, _, high, low, ..] => {
                    self.record_left = usize::from(u16::from_be_bytes([*high, *low]));
                    if self.record_left == 0 || self.record_left > MAX_RECORD_BYTES {
                        return self.failure();
                    }
                    self.position += 5;
                }
                _ => return ClientHello::Incomplete,
            }
        }
    }

    /// An invalid first record is not TLS; a later one is malformed.
    const fn failure(&self) -> ClientHello {
        if self.position == 0 { ClientHello::NotTls } else { ClientHello::Malformed }
    }
}

/// Parses a handshake message; `None` while it is incomplete.
fn parse_handshake(bytes: &[u8]) -> Option<ClientHello> {
    let (kind, rest) = bytes.split_first()?;
    if *kind != CLIENT_HELLO {
        return Some(ClientHello::Malformed);
    }
    let (length, rest) = rest.split_first_chunk::<3>()?;
    let length = usize::from(length[0]) << 16 | usize::from(length[1]) << 8 | usize::from(length[2]);
    if length > MAX_HELLO_BYTES {
        return Some(ClientHello::Malformed);
    }
    let body = rest.get(..length)?;
    Some(match find_server_name(body) {
        Some(server_name) => ClientHello::Complete { server_name },
        None => ClientHello::Malformed,
    })
}

/// The name in a ClientHello, if any; the outer `None` is malformed.
fn find_server_name(body: &[u8]) -> Option<Option<String>> {
    let mut body = ByteReader(body);
    body.take(2 + 32)?; // version, random
    body.read_short_vector()?; // session
    body.read_vector()?; // ciphers
    body.read_short_vector()?; // compression
    if body.0.is_empty() {
        return Some(None);
    }
    let mut extensions = ByteReader(body.read_vector()?);
    if !body.0.is_empty() {
        return None;
    }
    let mut found = None;
    while !extensions.0.is_empty() {
        let kind = extensions.read_u16()?;
        let data = extensions.read_vector()?;
        if kind == SERVER_NAME {
            // Two names are ambiguous.
            if found.is_some() {
                return None;
            }
            found = Some(parse_server_name(data)?);
        }
    }
    Some(found)
}

fn parse_server_name(data: &[u8]) -> Option<String> {
    let mut data = ByteReader(data);
    let mut list = ByteReader(data.read_vector()?);
    let kind = list.take(1)?;
    let name = list.read_vector()?;
    let alone = kind == [HOST_NAME] && list.0.is_empty() && data.0.is_empty();
    let text = std::str::from_utf8(name).ok().filter(|name| name.is_ascii() && !name.is_empty())?;
    alone.then(|| text.to_owned())
}

struct ByteReader<'a>(&'a [u8]);

impl<'a> ByteReader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    fn read_u16(&mut self) -> Option<u16> {
        let bytes = self.take(2)?;
        Some(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn read_vector(&mut self) -> Option<&'a [u8]> {
        let length = self.read_u16()?;
        self.take(usize::from(length))
    }

    fn read_short_vector(&mut self) -> Option<&'a [u8]> {
        let length = self.take(1)?[0];
        self.take(usize::from(length))
    }
}

/// The fatal TLS alert `unrecognized_name`.
pub const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse_client_hello(bytes: &[u8]) -> ClientHello {
        HelloParser::default().parse(bytes)
    }

    fn vector(data: &[u8]) -> Vec<u8> {
        [&u16::try_from(data.len()).unwrap().to_be_bytes()[..], data].concat()
    }

    fn name_extension(names: &[(u8, &[u8])]) -> Vec<u8> {
        let list: Vec<u8> = names.iter().flat_map(|(kind, name)| [&[*kind][..], &vector(name)].concat()).collect();
        [&SERVER_NAME.to_be_bytes()[..], &vector(&vector(&list))].concat()
    }

    fn hello(extensions: &[u8]) -> Vec<u8> {
        let mut body = [&[3, 3][..], &[7; 32], &[4, 1, 2, 3, 4], &vector(&[0x13, 1, 0x13, 2]), &[1, 0]].concat();
        body.extend(vector(extensions));
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        [&[CLIENT_HELLO][..], &length[1..], &body].concat()
    }

    /// Splits into records of at most `size` bytes.
    fn records(hello: &[u8], size: usize) -> Vec<u8> {
        hello.chunks(size).flat_map(|piece| [&[HANDSHAKE_RECORD, 3, 1][..], &vector(piece)].concat()).collect()
    }

    fn with_name(name: &str) -> Vec<u8> {
        let other = [&[0, 43][..], &vector(&[2, 3, 4])].concat();
        hello(&[&other[..], &name_extension(&[(0, name.as_bytes())]), &[0xfe, 0x0d], &vector(&[9; 40])].concat())
    }

    #[test]
    fn finds_the_server_name() {
        let whole = records(&with_name("example.org"), 1000);
        assert_eq!(parse_client_hello(&whole), ClientHello::Complete { server_name: Some("example.org".into()) });
        assert_eq!(parse_client_hello(&records(&hello(&[]), 1000)), ClientHello::Complete { server_name: None });
    }

    #[test]
    fn parses_the_client_hello_of_rustls() {
        let config = rustls::ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        for (host, expected) in [("example.org", Some("example.org".to_owned())), ("192.0.2.1", None)] {
            let name = rustls_pki_types::ServerName::try_from(host).unwrap();
            let mut client = rustls::ClientConnection::new(config.clone().into(), name).unwrap();
            let mut hello = Vec::new();
            client.write_tls(&mut hello).unwrap();
            assert_eq!(parse_client_hello(&hello), ClientHello::Complete { server_name: expected }, "{host}");
        }
    }

    #[test]
    fn detects_other_protocols_at_once() {
        for other in [&b"GET / HTTP/1.1"[..], b"SSH-2.0-x", b"\0", b"\x16\x02", b"\x16\x03\x01\0\0", b"\x80\x2e\x01"] {
            assert_eq!(parse_client_hello(other), ClientHello::NotTls, "{other:?}");
        }
        assert_eq!(parse_client_hello(&[]), ClientHello::Incomplete);
    }

    #[test]
    fn rejects_ambiguous_and_malformed_names() {
        let one = name_extension(&[(0, b"a.example")]);
        for extensions in [
            [&one[..], &one].concat(),
            name_extension(&[(0, b"a.example"), (0, b"b.example")]),
            name_extension(&[(1, b"a.example")]),
            name_extension(&[(0, b"")]),
            name_extension(&[(0, b"a\xff")]),
            name_extension(&[]),
            vec![0, 0, 0, 9, 1],
        ] {
            assert_eq!(
                parse_client_hello(&records(&hello(&extensions), 1000)),
                ClientHello::Malformed,
                "{extensions:?}"
            );
        }
        let mut interrupted = records(&with_name("a.example")[..20], 20);
        interrupted.extend([23, 3, 3, 0, 1, 0]);
        assert_eq!(parse_client_hello(&interrupted), ClientHello::Malformed);
        let huge = records(&[CLIENT_HELLO, 0xff, 0xff, 0xff], 4);
        assert_eq!(parse_client_hello(&huge), ClientHello::Malformed);
    }

    proptest! {
        #[test]
        fn record_and_read_boundaries_do_not_matter(name in "[a-z]{1,40}(\\.[a-z]{1,20}){1,3}", size in 1_usize..300, cut: prop::sample::Index) {
            let whole = records(&with_name(&name), size);
            let cut = cut.index(whole.len());
            prop_assert_eq!(parse_client_hello(&whole), ClientHello::Complete { server_name: Some(name) });
            // Every prefix is incomplete: the name is never guessed.
            prop_assert_eq!(parse_client_hello(&whole[..cut]), ClientHello::Incomplete);
        }

        /// A client that sends byte by byte costs no more than one that sends all at once.
        #[test]
        fn each_byte_is_parsed_once(name in "[a-z]{1,40}\\.[a-z]{1,20}", size in 1_usize..300, step in 1_usize..50) {
            let whole = records(&with_name(&name), size);
            let (mut parser, mut parsed) = (HelloParser::default(), 0);
            for end in (0..whole.len()).step_by(step) {
                prop_assert_eq!(parser.parse(&whole[..end]), ClientHello::Incomplete);
                prop_assert!(parser.position >= parsed && parser.position + 5 > end, "no byte is left behind");
                parsed = parser.position;
            }
            prop_assert_eq!(parser.parse(&whole), ClientHello::Complete { server_name: Some(name) });
            prop_assert_eq!(parser.position, whole.len());
        }

        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            parse_client_hello(&bytes);
            parse_client_hello(&records(&hello(&bytes), 64));
            parse_client_hello(&records(&[&[CLIENT_HELLO, 0, 2][..], &bytes].concat(), 100));
        }

        /// A changed byte never yields an invalid name.
        #[test]
        fn a_changed_byte_yields_a_valid_name_or_none(at: prop::sample::Index, to: u8) {
            let mut bytes = records(&with_name("example.org"), 50);
            let at = at.index(bytes.len());
            bytes[at] = to;
            if let ClientHello::Complete { server_name: Some(name) } = parse_client_hello(&bytes) {
                prop_assert!(!name.is_empty() && name.is_ascii());
            }
        }
    }
}
