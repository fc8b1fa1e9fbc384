//! Renders JSON values as text for people. Pure.

use serde_json::Value;

/// A value without braces and quotes: `key: value, key: value`. Not escaped.
pub fn describe_value(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => text.clone(),
        Value::Array(items) => join_parts(items.iter().map(describe_nested)),
        Value::Object(fields) => join_parts(fields.iter().map(|(name, value)| match describe_nested(value) {
            text if text.is_empty() => String::new(),
            text => format!("{name}: {text}"),
        })),
    }
}

fn describe_nested(value: &Value) -> String {
    match describe_value(value) {
        text if matches!(value, Value::Object(_)) && !text.is_empty() => format!("({text})"),
        text => text,
    }
}

fn join_parts(parts: impl Iterator<Item = String>) -> String {
    parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
}

/// The output of a tool: its text, or the texts of its content blocks. Not escaped.
pub fn describe_output(output: &Value) -> String {
    let block_text = |block: &Value| Some(block.get("text")?.as_str()?.to_owned());
    match output {
        Value::Array(blocks) if !blocks.is_empty() => {
            let texts: Option<Vec<String>> = blocks.iter().map(block_text).collect();
            texts.map_or_else(|| describe_value(output), |texts| texts.join("\n"))
        }
        _ => describe_value(output),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn describes_values_without_json_syntax() {
        assert_eq!(describe_value(&json!({})), "");
        assert_eq!(describe_value(&json!("a b")), "a b");
        let value = json!({"a": 1, "b": [true, "x"], "c": {"d": "e"}, "f": null, "g": []});
        assert_eq!(describe_value(&value), "a: 1, b: true, x, c: (d: e)");
        assert_eq!(
            describe_output(&json!([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}])),
            "one\ntwo"
        );
        assert_eq!(describe_output(&json!([{"type": "image"}])), "(type: image)");
    }
}
