//! Detects the protocol of a tunnel's first bytes, on any port.

use super::client_hello::{ClientHello, HelloParser};

/// The protocol of a client's first bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum Opening {
    /// More bytes are needed.
    Unclear,
    Tls(Option<String>),
    Http,
    Malformed,
    Other,
}

/// A longer first line is left to the HTTP parser, which rejects it.
const MAX_LINE_BYTES: usize = 8 << 10;

/// Detects the protocol while the bytes arrive; each byte is read once.
#[derive(Debug, Default)]
pub struct OpeningDetector {
    hello: HelloParser,
    is_not_tls: bool,
    /// Start of the first line; servers accept empty lines before a request.
    line: usize,
    /// End of the first word.
    word_end: Option<usize>,
    /// Number of bytes in which the end of the line was searched.
    searched: usize,
}

impl OpeningDetector {
    /// Continues with all bytes received so far.
    pub fn detect(&mut self, bytes: &[u8]) -> Opening {
        if !self.is_not_tls {
            match self.hello.parse(bytes) {
                ClientHello::Incomplete => return Opening::Unclear,
                ClientHello::Complete { server_name } => return Opening::Tls(server_name),
                ClientHello::Malformed => return Opening::Malformed,
                ClientHello::NotTls => self.is_not_tls = true,
            }
        }
        if self.searched == 0 {
            let blank = bytes[self.line..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            self.line += blank;
        }
        if self.line > MAX_LINE_BYTES || bytes.len() - self.line > MAX_LINE_BYTES {
            return Opening::Http;
        }
        let text = &bytes[self.line..];
        let new = &text[self.searched.min(text.len())..];
        if self.word_end.is_none() {
            match new.iter().position(|byte| !is_token_byte(*byte)) {
                None => {
                    self.searched = text.len();
                    return Opening::Unclear;
                }
                Some(at) => {
                    let end = self.searched + at;
                    if end == 0 || !matches!(text[end], b' ' | b'\t') {
                        return Opening::Other;
                    }
                    self.word_end = Some(end);
                }
            }
        }
        let target = text[self.word_end.unwrap_or_default()..].trim_ascii_start();
        match new.iter().position(|byte| *byte == b'\n') {
            // A request line: a method and a path, whatever the method is.
            _ if target.starts_with(b"/") => Opening::Http,
            None => {
                self.searched = text.len();
                Opening::Unclear
            }
            Some(at) => {
                let line = &text[..self.searched + at];
                let has_version = line.windows(5).any(|five| five.eq_ignore_ascii_case(b"HTTP/"));
                let has_url = target.get(..4).is_some_and(|four| four.eq_ignore_ascii_case(b"http"));
                if has_version || has_url { Opening::Http } else { Opening::Other }
            }
        }
    }
}

/// A character of a method in HTTP.
const fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn detect(bytes: &[u8]) -> Opening {
        OpeningDetector::default().detect(bytes)
    }

    #[test]
    fn recognizes_http_requests_with_any_method() {
        for http in [
            "GET /",
            "\r\n\r\nGET /x",
            "PROPFIND /",
            "BREW /pot",
            "get / HTTP/1.1",
            "X /",
            "M-SEARCH * HTTP/1.1\r\n",
            "post http://x HTTP/1.1\n",
            "GET http://x\r\n",
            "GET\t/",
            "a b http/1.1\n",
            "PRI * HTTP/2.0\r\n",
        ] {
            assert_eq!(detect(http.as_bytes()), Opening::Http, "{http:?}");
        }
        for unclear in ["", "G", "GET", "\r\n", "GET ", "POST http:", "SSH-2.0 x", "ABCDEFGHIJKLMNOPQRST"] {
            assert_eq!(detect(unclear.as_bytes()), Opening::Unclear, "{unclear:?}");
        }
        for other in ["SSH-2.0-OpenSSH_9 Debian\r\n", "EHLO\r\n", "EHLO example.org\r\n", "\0\0", "NICK x\n", "{\"a\""]
        {
            assert_eq!(detect(other.as_bytes()), Opening::Other, "{other:?}");
        }
        assert_eq!(detect(b"\x16\x03\x01"), Opening::Unclear);
        assert_eq!(detect(&[b'x'; MAX_LINE_BYTES + 1]), Opening::Http, "the HTTP parser rejects it");
    }

    proptest! {
        #[test]
        fn read_boundaries_do_not_matter(text in "[ \r\n]{0,3}[A-Za-z-]{0,9}[ \t:]{0,2}[/a-z*]{0,5} ?(HTTP/1.1)?\r?\n?", step in 1_usize..9) {
            let (bytes, mut detector) = (text.as_bytes(), OpeningDetector::default());
            for end in (0..=bytes.len()).step_by(step).chain([bytes.len()]) {
                let seen = detector.detect(&bytes[..end]);
                prop_assert_eq!(&seen, &detect(&bytes[..end]), "{:?}", &text[..end]);
                if seen != Opening::Unclear {
                    break;
                }
            }
        }

        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300), cut in 0_usize..300) {
            let mut detector = OpeningDetector::default();
            if detector.detect(&bytes[..cut.min(bytes.len())]) == Opening::Unclear {
                detector.detect(&bytes);
            }
        }
    }
}
