//! A YAML file as a tree that still knows its lines, its quotes and its repeated keys.
//!
//! Built from the parser's events and not by way of serde: a value is read only once its key, and so its kind, is
//! known, and every repeated key can be reported, not only the first. Settings need no aliases and no tags, so
//! both are refused, and with them every way to make a small file large.

use granit_parser::{Event, Parser, ScalarStyle, ScanError};
use serde_json::Value as Json;

const DEEPEST: usize = 32;

pub(crate) struct Node {
    pub(crate) line: usize,
    pub(crate) content: Content,
}

pub(crate) enum Content {
    /// `plain` is without quotes: only then can it be a number, `true` or nothing.
    Scalar {
        text: String,
        plain: bool,
    },
    List(Vec<Node>),
    Map(Vec<Entry>),
}

pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) line: usize,
    pub(crate) value: Node,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed {
    pub(crate) line: Option<usize>,
    pub(crate) detail: String,
}

fn malformed<T>(line: usize, detail: &str) -> Result<T, Malformed> {
    Err(Malformed { line: Some(line), detail: detail.to_owned() })
}

impl From<ScanError> for Malformed {
    fn from(error: ScanError) -> Self {
        Self { line: Some(error.marker().line()), detail: error.info() }
    }
}

/// The one document of a file; `None` if there is nothing in it.
pub(crate) fn parse(text: &str) -> Result<Option<Node>, Malformed> {
    let mut reader = Reader { parser: Parser::new_from_str(text) };
    let mut document = None;
    loop {
        match reader.next()? {
            (Event::StreamEnd, _) => return Ok(document),
            (Event::DocumentStart(..), line) if document.is_some() => {
                return malformed(line, "a second document begins; write one");
            }
            (Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd, _) => {}
            (event, line) => document = Some(reader.node(event, line, 0)?),
        }
    }
}

/// Any YAML as JSON, for other files than settings; what is wrong is said in words.
pub fn yaml_value(text: &str) -> Result<Json, String> {
    match parse(text) {
        Ok(Some(node)) => node.to_json(),
        Ok(None) => Ok(Json::Null),
        Err(Malformed { line: Some(line), detail }) => Err(format!("line {line}: {detail}")),
        Err(Malformed { line: None, detail }) => Err(detail),
    }
}

struct Reader<'a> {
    parser: Parser<'a, granit_parser::StrInput<'a>>,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, usize), Malformed> {
        match self.parser.next() {
            Some(next) => {
                let (event, span) = next?;
                Ok((event, span.start.line()))
            }
            None => Ok((Event::StreamEnd, 0)),
        }
    }

    fn node(&mut self, event: Event<'a>, line: usize, depth: usize) -> Result<Node, Malformed> {
        if depth > DEEPEST {
            return malformed(line, "it is nested too deeply");
        }
        let content = match event {
            Event::Scalar(_, _, _, Some(_))
            | Event::SequenceStart(_, _, Some(_))
            | Event::MappingStart(_, _, Some(_)) => {
                return malformed(line, "tags (`!name`) are not used here");
            }
            Event::Scalar(text, style, ..) => {
                Content::Scalar { text: text.into_owned(), plain: style == ScalarStyle::Plain }
            }
            Event::SequenceStart(..) => self.list(depth)?,
            Event::MappingStart(..) => self.map(depth)?,
            Event::Alias(_) => return malformed(line, "aliases (`*name`) are not used here"),
            _ => return malformed(line, "a value was expected"),
        };
        Ok(Node { line, content })
    }

    fn list(&mut self, depth: usize) -> Result<Content, Malformed> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Content::List(items)),
                (event, line) => items.push(self.node(event, line, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Content, Malformed> {
        let mut entries = Vec::new();
        loop {
            let (event, line) = self.next()?;
            if matches!(event, Event::MappingEnd) {
                return Ok(Content::Map(entries));
            }
            let Content::Scalar { text: key, .. } = self.node(event, line, depth + 1)?.content else {
                return malformed(line, "a key must be a single word");
            };
            let (event, value_line) = self.next()?;
            let value = self.node(event, value_line, depth + 1)?;
            entries.push(Entry { key, line, value });
        }
    }
}

impl Node {
    /// Written as nothing: `key:`, `key: ~` or `key: null`.
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.content, Content::Scalar { text, plain: true } if is_null(text))
    }

    /// The value as JSON; a repeated key is an error in words.
    pub(crate) fn to_json(&self) -> Result<Json, String> {
        match &self.content {
            Content::Scalar { text, plain: false } => Ok(Json::String(text.clone())),
            Content::Scalar { text, plain: true } => Ok(plain_to_json(text)),
            Content::List(items) => items.iter().map(Self::to_json).collect::<Result<_, _>>().map(Json::Array),
            Content::Map(entries) => {
                let mut map = serde_json::Map::new();
                for entry in entries {
                    if map.insert(entry.key.clone(), entry.value.to_json()?).is_some() {
                        return Err(format!(
                            "`{}` stands twice (line {})",
                            crate::error::quotable(&entry.key),
                            entry.line
                        ));
                    }
                }
                Ok(Json::Object(map))
            }
        }
    }
}

fn is_null(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

pub(crate) fn plain_bool(text: &str) -> Option<bool> {
    match text {
        "true" | "True" | "TRUE" => Some(true),
        "false" | "False" | "FALSE" => Some(false),
        _ => None,
    }
}

fn plain_to_json(text: &str) -> Json {
    if is_null(text) {
        return Json::Null;
    }
    if let Some(value) = plain_bool(text) {
        return Json::Bool(value);
    }
    // What JSON takes for a number, YAML does too; the rest (`0x1F`, `.5`, `.inf`) no setting needs.
    match serde_json::from_str::<serde_json::Number>(text) {
        Ok(number) => Json::Number(number),
        Err(_) => Json::String(text.to_owned()),
    }
}
