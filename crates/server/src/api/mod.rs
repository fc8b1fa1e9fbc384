//! Handlers, one file per resource, and the JSON shapes they speak.

pub mod agents;
pub mod approvals;
pub mod blobs;
pub mod budget;
pub mod chosen;
pub mod commands;
pub mod continuous;
pub mod diff;
pub mod events;
pub mod exec;
pub mod files;
pub mod fork;
pub mod gc;
pub mod health;
pub mod images;
pub mod limits;
pub mod messages;
pub mod network;
pub mod pause;
pub mod projects;
pub mod resources;
pub mod results;
pub mod sandboxes;
pub mod secrets;
pub mod sessions;
pub mod snapshots;
pub mod tokens;
pub mod trajectory;
pub mod transcript;
pub mod usage;
pub mod users;
pub mod worker;

/// What a provider does not know by this name is not there.
fn unknown(error: atoll_core::provider::Error, what: &str) -> crate::problem::Problem {
    match error {
        atoll_core::provider::Error::Gone => crate::problem::Problem::not_found(what),
        error => error.into(),
    }
}

/// One page of a list.
#[derive(Debug, serde::Serialize, utoipa::ToSchema)]
pub struct Page<T> {
    pub items: Vec<T>,
    pub next_cursor: Option<String>,
}

impl<T> Page<T> {
    /// `items` may hold one more than a page has: then there is a next page, after `place` of its last.
    pub fn cut(list: &str, mut items: Vec<T>, limit: i64, place: impl Fn(&T) -> String) -> Self {
        let most = usize::try_from(limit).unwrap_or(0);
        let more = items.len() > most;
        items.truncate(most);
        let next_cursor = items.last().filter(|_| more).map(|last| crate::cursor::write(list, &place(last)));
        Self { items, next_cursor }
    }

    pub fn map<U>(self, change: impl FnMut(T) -> U) -> Page<U> {
        Page { items: self.items.into_iter().map(change).collect(), next_cursor: self.next_cursor }
    }
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PageQuery {
    /// How many items, 1 to 200.
    #[param(minimum = 1, maximum = 200)]
    pub limit: Option<i64>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}
