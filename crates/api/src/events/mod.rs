//! The event catalogue: typed data for every event type.
//!
//! [`atoll_core::for_each_event_type`] is the one list of event types. From it this module generates [`EventData`] with a
//! variant per type, and, with the feature `openapi`, the schemas and the page `docs/events.md`.
//!
//! ```
//! use atoll_api::events::{EventData, SandboxNotice};
//!
//! let notice = EventData::SandboxNotice(SandboxNotice { text: "the pool is almost full".into(), routine: false });
//! assert_eq!(notice.event_type(), "sandbox.notice");
//! assert_eq!(notice.to_json().get(), r#"{"text":"the pool is almost full"}"#);
//! ```

mod agent_data;
mod control_data;
#[cfg(any(test, feature = "openapi"))]
mod examples;
mod forge_data;
mod guardian_data;
mod health_data;
mod preview_data;
#[cfg(feature = "openapi")]
mod reference;
mod sandbox_data;
mod service_data;
mod setup_data;
mod task_data;

pub use agent_data::*;
pub use control_data::*;
#[cfg(any(test, feature = "openapi"))]
pub use examples::EXAMPLES;
pub use forge_data::*;
pub use guardian_data::*;
pub use health_data::*;
pub use preview_data::*;
#[cfg(feature = "openapi")]
pub use reference::{AnyEvent, add_event_schemas, reference_page};
pub use sandbox_data::*;
pub use service_data::*;
pub use setup_data::*;
pub use task_data::*;

use atoll_core::event::{Event, EventSource, NewEvent};
use atoll_core::time::Timestamp;
use serde_json::value::RawValue;

/// One row of the catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventKind {
    pub event_type: &'static str,
    pub variant: &'static str,
    pub description: &'static str,
}

macro_rules! define_event_data {
    ($($name:ident = $event_type:literal, $variant:ident($data:ident), $description:literal;)+) => {
        /// Every event type that Atoll emits, in the order of the catalogue.
        pub const EVENT_KINDS: &[EventKind] = &[$(EventKind {
            event_type: $event_type,
            variant: stringify!($variant),
            description: $description,
        },)+];

        /// The data of an event, by its type.
        #[derive(Debug, Clone)]
        pub enum EventData {
            $(#[doc = $description] $variant($data),)+
            /// An event of a type that this version does not know, or whose data has an unexpected shape.
            Unknown { event_type: String, data: Box<RawValue> },
        }

        impl EventData {
            /// Parses the data of an event. Whatever it is, the data is not lost: see [`EventData::Unknown`].
            pub fn parse(event_type: &str, data: &RawValue) -> Self {
                let parsed = match event_type {
                    $($event_type => serde_json::from_str(data.get()).map(Self::$variant).ok(),)+
                    _ => None,
                };
                parsed.unwrap_or_else(|| Self::Unknown { event_type: event_type.to_owned(), data: data.to_owned() })
            }

            pub fn event_type(&self) -> &str {
                match self {
                    $(Self::$variant(_) => $event_type,)+
                    Self::Unknown { event_type, .. } => event_type,
                }
            }

            /// Serialises the data; unknown data stays as it is, byte for byte.
            pub fn to_json(&self) -> Box<RawValue> {
                let json = match self {
                    $(Self::$variant(data) => serde_json::value::to_raw_value(data),)+
                    Self::Unknown { data, .. } => Ok(data.clone()),
                };
                json.unwrap_or_else(|_| RawValue::NULL.to_owned())
            }
        }

        /// The schema of each variant's data, in the order of the catalogue.
        #[cfg(feature = "openapi")]
        fn data_schemas() -> Vec<reference::DataSchema> {
            vec![$(reference::DataSchema::of::<$data>(),)+]
        }
    };
}

atoll_core::for_each_event_type!(define_event_data);

impl EventData {
    /// Parses the data of a stored event.
    pub fn from_event(event: &Event) -> Self {
        Self::parse(event.event_type.as_str(), &event.data)
    }

    /// Builds an event that the server itself reports.
    pub fn into_event(self, at: Timestamp) -> NewEvent {
        match self {
            Self::Unknown { event_type, data } => NewEvent::from_parts(&event_type, EventSource::System, at, data),
            data => NewEvent::from_parts(data.event_type(), EventSource::System, at, data.to_json()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::collections::BTreeSet;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn every_type_has_one_example_that_survives_a_round_trip() {
        let mut missing: BTreeSet<&str> = EVENT_KINDS.iter().map(|kind| kind.event_type).collect();
        assert_eq!(missing.len(), EVENT_KINDS.len(), "an event type is listed twice");
        let mut wrong = Vec::new();
        for (event_type, json) in EXAMPLES {
            assert!(missing.remove(event_type), "{event_type} has no row, or a second example");
            let data = EventData::parse(event_type, &raw(json));
            let before: Value = serde_json::from_str(json).unwrap();
            let after: Value = serde_json::from_str(data.to_json().get()).unwrap();
            if matches!(data, EventData::Unknown { .. }) || data.event_type() != *event_type || before != after {
                wrong.push((event_type, before, after));
            }
        }
        assert!(wrong.is_empty(), "examples of another shape: {wrong:#?}");
        assert!(missing.is_empty(), "without an example: {missing:?}");
    }

    #[test]
    fn unknown_types_and_shapes_keep_their_data_byte_for_byte() {
        let odd = r#"{ "b":1,  "a":[1.0, "\u00e4"] }"#;
        for event_type in ["acme.done", "agent.usage"] {
            let data = EventData::parse(event_type, &raw(odd));
            assert!(matches!(data, EventData::Unknown { .. }));
            assert_eq!((data.event_type(), data.to_json().get()), (event_type, odd));
        }
    }

    #[test]
    fn unknown_fields_are_tolerated() {
        let data = EventData::parse("sandbox.notice", &raw(r#"{"text":"x","more":1}"#));
        assert!(matches!(data, EventData::SandboxNotice(notice) if notice.text == "x"));
    }
}
