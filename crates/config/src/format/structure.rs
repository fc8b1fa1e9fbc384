//! The format of values with named fields: JSON in the environment, a mapping or a list in a file.

use super::{BaseDirs, Format, Mismatch, RawInput};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) struct Structure<T> {
    /// The form, as messages show it.
    pub(crate) form: &'static str,
    /// Checks and normalizes a value that has this form.
    pub(crate) check: fn(T) -> Result<T, String>,
}

impl<T: Serialize + DeserializeOwned> Format for Structure<T> {
    type Value = T;

    fn describe_expected(&self) -> String {
        self.form.to_owned()
    }

    fn parse_value(&self, input: &RawInput<'_>, _: &BaseDirs<'_>) -> Result<T, Mismatch> {
        let json = match input {
            RawInput::Text(text) => serde_json::from_str(text).map_err(|error| format!("not JSON: {error}")),
            RawInput::Node(node) => node.to_json(),
        };
        let value_text = match (input, &json) {
            (RawInput::Text(text), _) => (*text).to_owned(),
            (RawInput::Node(_), Ok(json)) => json.to_string(),
            (RawInput::Node(_), Err(_)) => "…".to_owned(),
        };
        json.and_then(|json: serde_json::Value| serde_json::from_value(json).map_err(|error| error.to_string()))
            .and_then(self.check)
            .map_err(|detail| Mismatch::with_detail(&value_text, detail))
    }

    fn show_value(&self, value: &T) -> String {
        serde_json::to_string(value).unwrap_or_default()
    }
}
