//! What the first words of a TLS connection say: the server's name that the client wants. Nothing is decrypted.

/// What is known after some bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hello {
    /// So far it is one; the rest must come.
    Incomplete,
    NotTls,
    /// It begins like one and goes on like none.
    Malformed,
    /// It is whole; a client may leave the name out.
    Complete {
        server_name: Option<String>,
    },
}

const HANDSHAKE_RECORD: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
/// A record's payload, with what some versions add.
const LONGEST_RECORD: usize = (1 << 14) + 256;
/// No client says as much; keys of the newest kinds need a few kilobytes.
pub const LONGEST_HELLO: usize = 64 << 10;

/// Looks at all that has come so far, from the first byte on. A hello may lie in any number of records, and come in
/// any number of pieces.
pub fn look(bytes: &[u8]) -> Hello {
    let mut hello = Vec::new();
    let mut rest = bytes;
    loop {
        if let Some(read) = read_hello(&hello) {
            return read;
        }
        match rest {
            [] => return Hello::Incomplete,
            [kind, ..] if *kind != HANDSHAKE_RECORD => return broken(bytes, rest),
            [_, major, ..] if *major != 3 => return broken(bytes, rest),
            [_, _, _, high, low, payload @ ..] => {
                let length = usize::from(u16::from_be_bytes([*high, *low]));
                if length == 0 || length > LONGEST_RECORD {
                    return broken(bytes, rest);
                }
                let (now, later) = payload.split_at(length.min(payload.len()));
                hello.extend_from_slice(now);
                rest = later;
            }
            _ => return Hello::Incomplete,
        }
    }
}

/// The first record decides whether it is TLS at all.
const fn broken(bytes: &[u8], rest: &[u8]) -> Hello {
    if bytes.len() == rest.len() { Hello::NotTls } else { Hello::Malformed }
}

/// Nothing while there is not enough of it.
fn read_hello(bytes: &[u8]) -> Option<Hello> {
    let (kind, rest) = bytes.split_first()?;
    if *kind != CLIENT_HELLO {
        return Some(Hello::Malformed);
    }
    let (length, rest) = rest.split_first_chunk::<3>()?;
    let length = usize::from(length[0]) << 16 | usize::from(length[1]) << 8 | usize::from(length[2]);
    if length > LONGEST_HELLO {
        return Some(Hello::Malformed);
    }
    let body = rest.get(..length)?;
    Some(match server_name(body) {
        Some(server_name) => Hello::Complete { server_name },
        None => Hello::Malformed,
    })
}

/// The name in a whole hello, or that there is none; nothing if it is malformed.
fn server_name(body: &[u8]) -> Option<Option<String>> {
    let mut body = Reader(body);
    body.take(2 + 32)?; // version, random
    body.short_vector()?; // session
    body.vector()?; // ciphers
    body.short_vector()?; // compression
    if body.0.is_empty() {
        return Some(None);
    }
    let mut extensions = Reader(body.vector()?);
    if !body.0.is_empty() {
        return None;
    }
    let mut found = None;
    while !extensions.0.is_empty() {
        let kind = extensions.number()?;
        let data = extensions.vector()?;
        if kind == SERVER_NAME {
            // Of two names nobody knows which one counts.
            if found.is_some() {
                return None;
            }
            found = Some(one_name(data)?);
        }
    }
    Some(found)
}

fn one_name(data: &[u8]) -> Option<String> {
    let mut data = Reader(data);
    let mut list = Reader(data.vector()?);
    let kind = list.take(1)?;
    let name = list.vector()?;
    let alone = kind == [HOST_NAME] && list.0.is_empty() && data.0.is_empty();
    let text = std::str::from_utf8(name).ok().filter(|name| name.is_ascii() && !name.is_empty())?;
    alone.then(|| text.to_owned())
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u16> {
        let taken = self.take(2)?;
        Some(u16::from_be_bytes([taken[0], taken[1]]))
    }

    fn vector(&mut self) -> Option<&'a [u8]> {
        let length = self.number()?;
        self.take(usize::from(length))
    }

    fn short_vector(&mut self) -> Option<&'a [u8]> {
        let length = self.take(1)?[0];
        self.take(usize::from(length))
    }
}

/// What a client hears that named another server: the fatal alert for exactly that.
pub const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    /// In records of at most `size` bytes.
    fn records(hello: &[u8], size: usize) -> Vec<u8> {
        hello.chunks(size).flat_map(|piece| [&[HANDSHAKE_RECORD, 3, 1][..], &vector(piece)].concat()).collect()
    }

    fn with_name(name: &str) -> Vec<u8> {
        let other = [&[0, 43][..], &vector(&[2, 3, 4])].concat();
        hello(&[&other[..], &name_extension(&[(0, name.as_bytes())]), &[0xfe, 0x0d], &vector(&[9; 40])].concat())
    }

    #[test]
    fn the_name_is_found() {
        let whole = records(&with_name("example.org"), 1000);
        assert_eq!(look(&whole), Hello::Complete { server_name: Some("example.org".into()) });
        assert_eq!(look(&records(&hello(&[]), 1000)), Hello::Complete { server_name: None });
    }

    #[test]
    fn what_rustls_says_is_understood() {
        let config = rustls::ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        for (host, expected) in [("example.org", Some("example.org".to_owned())), ("192.0.2.1", None)] {
            let name = rustls_pki_types::ServerName::try_from(host).unwrap();
            let mut client = rustls::ClientConnection::new(config.clone().into(), name).unwrap();
            let mut said = Vec::new();
            client.write_tls(&mut said).unwrap();
            assert_eq!(look(&said), Hello::Complete { server_name: expected }, "{host}");
        }
    }

    #[test]
    fn what_is_not_tls_is_seen_at_once() {
        for other in [&b"GET / HTTP/1.1"[..], b"SSH-2.0-x", b"\0", b"\x16\x02", b"\x16\x03\x01\0\0", b"\x80\x2e\x01"] {
            assert_eq!(look(other), Hello::NotTls, "{other:?}");
        }
        assert_eq!(look(&[]), Hello::Incomplete);
    }

    #[test]
    fn two_names_and_other_tricks_are_malformed() {
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
            assert_eq!(look(&records(&hello(&extensions), 1000)), Hello::Malformed, "{extensions:?}");
        }
        let mut interrupted = records(&with_name("a.example")[..20], 20);
        interrupted.extend([23, 3, 3, 0, 1, 0]);
        assert_eq!(look(&interrupted), Hello::Malformed);
        let huge = records(&[CLIENT_HELLO, 0xff, 0xff, 0xff], 4);
        assert_eq!(look(&huge), Hello::Malformed);
    }

    proptest! {
        #[test]
        fn it_does_not_matter_how_it_is_cut(name in "[a-z]{1,40}(\\.[a-z]{1,20}){1,3}", size in 1_usize..300, cut: prop::sample::Index) {
            let whole = records(&with_name(&name), size);
            let cut = cut.index(whole.len());
            prop_assert_eq!(look(&whole), Hello::Complete { server_name: Some(name) });
            // Until the last byte of the hello it is known to be one, and its name is not guessed.
            prop_assert_eq!(look(&whole[..cut]), Hello::Incomplete);
        }

        #[test]
        fn nothing_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            look(&bytes);
            look(&records(&hello(&bytes), 64));
            look(&records(&[&[CLIENT_HELLO, 0, 2][..], &bytes].concat(), 100));
        }

        /// A byte changed anywhere never yields a name out of thin air.
        #[test]
        fn a_changed_byte_is_another_name_or_no_hello(at: prop::sample::Index, to: u8) {
            let mut bytes = records(&with_name("example.org"), 50);
            let at = at.index(bytes.len());
            bytes[at] = to;
            if let Hello::Complete { server_name: Some(name) } = look(&bytes) {
                prop_assert!(!name.is_empty() && name.is_ascii());
            }
        }
    }
}
