//! Filters of the event log.

use atoll_core::event::EventSource;
use atoll_core::time::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum EventOrder {
    #[default]
    Asc,
    Desc,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct EventsQuery {
    #[cfg_attr(feature = "openapi", param(minimum = 1, maximum = 500))]
    pub limit: Option<i64>,
    pub cursor: Option<String>,
    #[serde(default)]
    pub order: EventOrder,
    /// `agent.started`, `agent.*`, or several types separated by commas.
    #[serde(rename = "type")]
    pub types: Option<String>,
    pub source: Option<EventSource>,
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
}

/// Filters of a live event stream.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct FollowQuery {
    /// Start after this seq; 0 starts at the first event, absent starts at the newest.
    #[cfg_attr(feature = "openapi", param(minimum = 0))]
    pub since: Option<i64>,
    /// `agent.started`, `agent.*`, or several types separated by commas.
    #[serde(
        default,
        rename = "type",
        deserialize_with = "split_commas",
        serialize_with = "join_commas",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[cfg_attr(feature = "openapi", param(value_type = Option<String>))]
    pub types: Vec<String>,
}

fn split_commas<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let text = String::deserialize(deserializer)?;
    Ok(text.split(',').filter(|part| !part.is_empty()).map(str::to_owned).collect())
}

fn join_commas<S: Serializer>(types: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&types.join(","))
}
