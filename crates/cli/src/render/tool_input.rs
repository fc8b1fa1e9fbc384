//! Describes the input of tools, which every agent shapes in its own way.

use super::plain_value::describe_value;
use serde_json::Value;

/// Arguments that describe a tool call best, in this order.
const TELLING_ARGUMENTS: [&str; 8] =
    ["command", "file_path", "path", "pattern", "query", "url", "description", "prompt"];

/// The most telling argument of a tool call, or the whole input. Not escaped.
pub fn describe_input(input: &Value) -> String {
    match TELLING_ARGUMENTS.iter().find_map(|name| input.get(*name)?.as_str()) {
        Some(text) => text.to_owned(),
        None => describe_value(input),
    }
}
