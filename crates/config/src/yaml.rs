//! Parses a YAML file into a tree that keeps lines, quotes and repeated keys.
//!
//! The tree comes from the parser's events rather than from serde: a value is parsed once the format of its key is known,
//! and every repeated key can be reported. Aliases and tags are rejected, so a small file cannot expand into a large one.

use granit_parser::{Event, Parser, ScalarStyle, ScanError};
use serde_json::Value as Json;

const MAX_DEPTH: usize = 32;

pub(crate) struct Node {
    pub(crate) line: usize,
    pub(crate) content: NodeContent,
}

pub(crate) enum NodeContent {
    /// `plain` is without quotes: only a plain scalar can be a number, a boolean or null.
    Scalar {
        text: String,
        is_plain: bool,
    },
    List(Vec<Node>),
    Map(Vec<MapEntry>),
}

pub(crate) struct MapEntry {
    pub(crate) key: String,
    pub(crate) line: usize,
    pub(crate) value: Node,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct YamlError {
    pub(crate) line: Option<usize>,
    pub(crate) detail: String,
}

fn fail_at_line<T>(line: usize, detail: &str) -> Result<T, YamlError> {
    Err(YamlError { line: Some(line), detail: detail.to_owned() })
}

impl From<ScanError> for YamlError {
    fn from(error: ScanError) -> Self {
        Self { line: Some(error.marker().line()), detail: error.info() }
    }
}

/// The document of a file; `None` if the file is empty.
pub(crate) fn parse_document(text: &str) -> Result<Option<Node>, YamlError> {
    let mut reader = YamlReader { parser: Parser::new_from_str(text) };
    let mut document = None;
    loop {
        match reader.next_event()? {
            (Event::StreamEnd, _) => return Ok(document),
            (Event::DocumentStart(..), line) if document.is_some() => {
                return fail_at_line(line, "expected one document, found a second");
            }
            (Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd, _) => {}
            (event, line) => document = Some(reader.read_node(event, line, 0)?),
        }
    }
}

/// Converts any YAML to JSON, for files other than the configuration.
pub fn parse_yaml(text: &str) -> Result<Json, String> {
    match parse_document(text) {
        Ok(Some(node)) => node.to_json(),
        Ok(None) => Ok(Json::Null),
        Err(YamlError { line: Some(line), detail }) => Err(format!("line {line}: {detail}")),
        Err(YamlError { line: None, detail }) => Err(detail),
    }
}

struct YamlReader<'a> {
    parser: Parser<'a, granit_parser::StrInput<'a>>,
}

impl<'a> YamlReader<'a> {
    fn next_event(&mut self) -> Result<(Event<'a>, usize), YamlError> {
        match self.parser.next() {
            Some(next) => {
                let (event, span) = next?;
                Ok((event, span.start.line()))
            }
            None => Ok((Event::StreamEnd, 0)),
        }
    }

    fn read_node(&mut self, event: Event<'a>, line: usize, depth: usize) -> Result<Node, YamlError> {
        if depth > MAX_DEPTH {
            return fail_at_line(line, "nested too deeply");
        }
        let content = match event {
            Event::Scalar(_, _, _, Some(_))
            | Event::SequenceStart(_, _, Some(_))
            | Event::MappingStart(_, _, Some(_)) => {
                return fail_at_line(line, "tags (`!name`) are not supported");
            }
            Event::Scalar(text, style, ..) => {
                NodeContent::Scalar { text: text.into_owned(), is_plain: style == ScalarStyle::Plain }
            }
            Event::SequenceStart(..) => self.read_list(depth)?,
            Event::MappingStart(..) => self.read_map(depth)?,
            Event::Alias(_) => return fail_at_line(line, "aliases (`*name`) are not supported"),
            _ => return fail_at_line(line, "expected a value"),
        };
        Ok(Node { line, content })
    }

    fn read_list(&mut self, depth: usize) -> Result<NodeContent, YamlError> {
        let mut items = Vec::new();
        loop {
            match self.next_event()? {
                (Event::SequenceEnd, _) => return Ok(NodeContent::List(items)),
                (event, line) => items.push(self.read_node(event, line, depth + 1)?),
            }
        }
    }

    fn read_map(&mut self, depth: usize) -> Result<NodeContent, YamlError> {
        let mut entries = Vec::new();
        loop {
            let (event, line) = self.next_event()?;
            if matches!(event, Event::MappingEnd) {
                return Ok(NodeContent::Map(entries));
            }
            let NodeContent::Scalar { text: key, .. } = self.read_node(event, line, depth + 1)?.content else {
                return fail_at_line(line, "expected a single word as key");
            };
            let (event, value_line) = self.next_event()?;
            let value = self.read_node(event, value_line, depth + 1)?;
            entries.push(MapEntry { key, line, value });
        }
    }
}

impl Node {
    /// True for `key:`, `key: ~` and `key: null`.
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.content, NodeContent::Scalar { text, is_plain: true } if is_null_text(text))
    }

    /// Converts the value to JSON. A repeated key is an error.
    pub(crate) fn to_json(&self) -> Result<Json, String> {
        match &self.content {
            NodeContent::Scalar { text, is_plain: false } => Ok(Json::String(text.clone())),
            NodeContent::Scalar { text, is_plain: true } => Ok(plain_to_json(text)),
            NodeContent::List(items) => items.iter().map(Self::to_json).collect::<Result<_, _>>().map(Json::Array),
            NodeContent::Map(entries) => {
                let mut map = serde_json::Map::new();
                for entry in entries {
                    if map.insert(entry.key.clone(), entry.value.to_json()?).is_some() {
                        return Err(format!(
                            "`{}` is set twice (line {})",
                            crate::error::quote_input(&entry.key),
                            entry.line
                        ));
                    }
                }
                Ok(Json::Object(map))
            }
        }
    }
}

fn is_null_text(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

pub(crate) fn parse_plain_bool(text: &str) -> Option<bool> {
    match text {
        "true" | "True" | "TRUE" => Some(true),
        "false" | "False" | "FALSE" => Some(false),
        _ => None,
    }
}

fn plain_to_json(text: &str) -> Json {
    if is_null_text(text) {
        return Json::Null;
    }
    if let Some(value) = parse_plain_bool(text) {
        return Json::Bool(value);
    }
    // JSON's numbers are YAML's too. No key needs the other notations (`0x1F`, `.5`, `.inf`).
    match serde_json::from_str::<serde_json::Number>(text) {
        Ok(number) => Json::Number(number),
        Err(_) => Json::String(text.to_owned()),
    }
}
