//! Reading a sandbox's log page by page.

use super::Page;
use crate::auth::{Caller, access};
use crate::cursor;
use crate::extract::{Id, Params, page_size};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_core::event::{Event, Source, TypePattern};
use atoll_core::id::SandboxId;
use atoll_core::principal::Action;
use atoll_core::time::Timestamp;
use atoll_store::events::{self, Filter, Order};
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OrderWord {
    #[default]
    Asc,
    Desc,
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EventsQuery {
    #[param(minimum = 1, maximum = 500)]
    limit: Option<i64>,
    cursor: Option<String>,
    #[serde(default)]
    order: OrderWord,
    /// `agent.started`, `agent.*`, or several with commas.
    #[serde(rename = "type")]
    types: Option<String>,
    source: Option<Source>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
}

/// What following can be narrowed by.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct FollowQuery {
    /// From after this seq; 0 is from the first event, absent is from now.
    #[param(minimum = 0)]
    pub since: Option<i64>,
    /// `agent.started`, `agent.*`, or several with commas.
    #[serde(default, rename = "type", deserialize_with = "with_commas")]
    #[param(value_type = Option<String>)]
    pub types: Vec<String>,
}

fn with_commas<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let text = String::deserialize(deserializer)?;
    Ok(text.split(',').filter(|part| !part.is_empty()).map(str::to_owned).collect())
}

const MOST_TYPES: usize = 100;

fn patterns<'a>(types: impl IntoIterator<Item = &'a str>) -> Result<Vec<TypePattern>> {
    let found: Result<Vec<TypePattern>, _> = types.into_iter().map(TypePattern::parse).collect();
    let found = found.map_err(|error| Problem::new(Code::BadRequest, format!("type: {error}; or `agent.*`")))?;
    if found.len() > MOST_TYPES {
        return Err(Problem::new(Code::BadRequest, format!("type: at most {MOST_TYPES}")));
    }
    Ok(found)
}

pub fn follow_filter(types: &[String]) -> Result<Filter> {
    Ok(Filter { types: patterns(types.iter().map(String::as_str))?, ..Filter::default() })
}

/// A sandbox's events.
///
/// A page may be shorter than `limit`, even empty, and still have a `next_cursor`.
#[utoipa::path(get, path = "/sandboxes/{id}/events", tag = "events", params(("id" = SandboxId, Path), EventsQuery),
    responses((status = 200, body = Page<Event>)))]
pub async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Params(query): Params<EventsQuery>,
) -> Result<Json<Page<Event>>> {
    let limit = page_size(query.limit, 100, 500)?;
    let types = query.types.as_deref().unwrap_or_default();
    let filter = Filter {
        types: patterns(types.split(',').filter(|part| !part.is_empty()))?,
        source: query.source,
        since: query.since,
        until: query.until,
        without_noise: false,
    };
    let (list, order, start) = match query.order {
        OrderWord::Asc => ("events", Order::OldestFirst, 0),
        OrderWord::Desc => ("events-desc", Order::NewestFirst, i64::MAX),
    };
    let from = cursor::read_number(list, query.cursor.as_deref())?.unwrap_or(start);
    let page = app.read(move |tx| {
        Box::pin(async move {
            let session = access::sandbox(tx, &caller, id, Action::See).await?;
            let limit = usize::try_from(limit).unwrap_or(1);
            Ok(events::page(tx, (id, session), &filter, order, from, limit).await?)
        })
    });
    let page = page.await?;
    let next_cursor = page.looked_at.map(|seq| cursor::write(list, &seq.to_string()));
    Ok(Json(Page { items: page.events, next_cursor }))
}
