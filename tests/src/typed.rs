//! Checks that the server's JSON has exactly the shape of the API's types.

use atoll_api::events::EventData;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::to_raw_value;

/// Panics unless the value survives parsing and serialising as the type, without a lost or changed field.
#[track_caller]
pub fn assert_round_trip<T: DeserializeOwned + Serialize>(value: &Value) {
    let parsed: T = serde_json::from_value(value.clone())
        .unwrap_or_else(|error| panic!("not a {}: {error}: {value}", std::any::type_name::<T>()));
    assert_eq!(&serde_json::to_value(&parsed).unwrap(), value, "{}", std::any::type_name::<T>());
}

/// Panics unless the catalogue knows the event's type and describes all of its data.
#[track_caller]
pub fn assert_catalogued(event: &Value) {
    let (event_type, raw) = (event["type"].as_str().unwrap(), to_raw_value(&event["data"]).unwrap());
    let data = EventData::parse(event_type, &raw);
    assert!(!matches!(data, EventData::Unknown { .. }), "not in the catalogue, or of another shape: {event}");
    let parsed: Value = serde_json::from_str(data.to_json().get()).unwrap();
    assert_eq!(parsed, event["data"], "the catalogue does not describe all data of {event_type}");
}
