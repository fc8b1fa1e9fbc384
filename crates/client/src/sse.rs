//! SseParser of server-sent events.

/// One server-sent event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SseFrame {
    pub event: String,
    pub data: String,
    pub id: Option<String>,
}

/// Splits a byte stream into events.
#[derive(Debug, Default)]
pub struct SseParser {
    line: Vec<u8>,
    /// The last byte was a carriage return; a line feed right after it ends the same line.
    after_return: bool,
    frame: SseFrame,
    has_data: bool,
}

impl SseParser {
    /// Appends the events that `bytes` complete to `out`.
    pub fn push(&mut self, bytes: &[u8], out: &mut impl Extend<SseFrame>) {
        for byte in bytes {
            match (byte, self.after_return) {
                (b'\n', true) => self.after_return = false,
                (b'\n' | b'\r', _) => {
                    self.after_return = *byte == b'\r';
                    let line = std::mem::take(&mut self.line);
                    out.extend(self.parse_line(&line));
                }
                _ => {
                    self.after_return = false;
                    self.line.push(*byte);
                }
            }
        }
    }

    fn parse_line(&mut self, line: &[u8]) -> Option<SseFrame> {
        if line.is_empty() {
            let frame = std::mem::take(&mut self.frame);
            return std::mem::take(&mut self.has_data).then_some(frame);
        }
        let text = String::from_utf8_lossy(line);
        let (field, value) = text.split_once(':').unwrap_or((&text, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.frame.event),
            "id" if !value.contains('\0') => self.frame.id = Some(value.to_owned()),
            "data" => {
                if self.has_data {
                    self.frame.data.push('\n');
                }
                self.frame.data.push_str(value);
                self.has_data = true;
            }
            // A comment, which keeps the connection alive, `retry`, or an unknown field.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn whole(text: &[u8]) -> Vec<SseFrame> {
        let mut frames = Vec::new();
        SseParser::default().push(text, &mut frames);
        frames
    }

    fn frame(event: &str, data: &str, id: Option<&str>) -> SseFrame {
        SseFrame { event: event.into(), data: data.into(), id: id.map(str::to_owned) }
    }

    #[test]
    fn parses_fields_comments_and_line_ends() {
        let text = b"\xEF:\r\n: hello\nid: 7\r\nevent:agent.message\ndata: {\"a\":1}\n\nretry: 3\ndata: x\rdata\rdata:  y\r\rid: 9\n\n";
        assert_eq!(whole(text), [frame("agent.message", "{\"a\":1}", Some("7")), frame("", "x\n\n y", None)]);
    }

    #[test]
    fn buffers_incomplete_events() {
        assert_eq!(whole(b"data: half\n"), []);
        assert_eq!(whole(b"data: half"), []);
    }

    proptest! {
        #[test]
        fn chunk_boundaries_do_not_matter(
            lines in prop::collection::vec("(data|id|event|:|retry)(: ?[a-zäö€{}\":0-9 ]{0,12})?", 0..12),
            ends in prop::collection::vec(prop::sample::select(vec!["\n", "\r", "\r\n", "\n\n", "\r\r", "\r\n\r\n"]), 12),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let text: String = lines.iter().zip(&ends).flat_map(|(line, end)| [line.as_str(), end]).collect();
            let bytes = text.as_bytes();
            let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            places.extend([0, bytes.len()]);
            places.sort_unstable();
            let (mut parser, mut pieces) = (SseParser::default(), Vec::new());
            for pair in places.windows(2) {
                parser.push(&bytes[pair[0]..pair[1]], &mut pieces);
            }
            prop_assert_eq!(pieces, whole(bytes));
            let (mut parser, mut singly) = (SseParser::default(), Vec::new());
            bytes.iter().for_each(|byte| parser.push(&[*byte], &mut singly));
            prop_assert_eq!(singly, whole(bytes));
        }
    }
}
