//! Raw JSON text: validated for depth, never re-serialised.

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;
use std::marker::PhantomData;

/// Returns the nesting depth of arrays and objects. The text must be valid JSON; brackets in strings don't count.
pub fn nesting_depth(text: &str) -> usize {
    let (mut depth, mut deepest) = (0usize, 0usize);
    let mut in_string = false;
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => in_string = !in_string,
            b'\\' if in_string => drop(bytes.next()),
            b'{' | b'[' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Returns true if common parsers accept the text.
///
/// Grammatically valid JSON may contain values that many parsers reject: half a surrogate pair, or a number outside
/// of `f64`. One such event would make a whole page unreadable for them.
pub fn is_portable_json(text: &str) -> bool {
    serde_json::from_str::<PortableJson>(text).is_ok()
}

/// Parses everything and discards it.
struct PortableJson;

impl<'de> Deserialize<'de> for PortableJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for PortableJson {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self, A::Error> {
        while items.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self, A::Error> {
        while fields.next_entry::<Self, Self>()?.is_some() {}
        Ok(self)
    }
}

/// Deserializes a field that is an object or absent. A derived struct would also accept an array with its fields by
/// position.
pub fn object<'de, T: DeserializeOwned, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    deserializer.deserialize_option(ObjectVisitor(PhantomData))
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: DeserializeOwned> Visitor<'de> for ObjectVisitor<T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_none<E: Error>(self) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<T>, D::Error> {
        deserializer.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Option<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(fields)).map(Some)
    }
}

/// Converts a value to raw text. A value that cannot be serialised (there is none) becomes `null`.
pub fn to_raw_json(value: &serde_json::Value) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn depth_of(value: &Value) -> usize {
        match value {
            Value::Array(items) => 1 + items.iter().map(depth_of).max().unwrap_or(0),
            Value::Object(fields) => 1 + fields.values().map(depth_of).max().unwrap_or(0),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
        }
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i64>().prop_map(Value::from),
            "[\\[\\]{}\"\\\\a]{0,8}".prop_map(Value::from)
        ];
        leaf.prop_recursive(6, 64, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map("[\\[{\"\\\\]{0,3}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn depth_of_text_is_depth_of_value(value in any_value()) {
            prop_assert_eq!(nesting_depth(&value.to_string()), depth_of(&value));
        }

        #[test]
        fn serialised_values_are_sound(value in any_value()) {
            prop_assert!(is_portable_json(&value.to_string()));
        }
    }

    #[test]
    fn rejects_values_that_common_parsers_reject() {
        for good in [r#""\ud83d\ude00""#, r#"{"\u0000":[1e308,-0,null,true]}"#, "18446744073709551615"] {
            assert!(is_portable_json(good), "{good}");
        }
        for bad in [r#""\ud800""#, r#"{"\udc00":1}"#, "[1e999]", "{"] {
            assert!(!is_portable_json(bad), "{bad}");
        }
    }

    #[test]
    fn an_object_field_rejects_arrays() {
        #[derive(Debug, PartialEq, serde::Deserialize)]
        struct Holder {
            #[serde(default, deserialize_with = "object")]
            inner: Option<crate::sandbox::Resources>,
        }
        let read = |text: &str| serde_json::from_str::<Holder>(text).map(|holder| holder.inner.is_some());
        assert!(read(r#"{"inner":{"cpu":1}}"#).unwrap());
        assert_eq!((read("{}").unwrap(), read(r#"{"inner":null}"#).unwrap()), (false, false));
        for bad in [r#"{"inner":[]}"#, r#"{"inner":[1,2,3,4]}"#, r#"{"inner":5}"#, r#"{"inner":{"x":1}}"#] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
