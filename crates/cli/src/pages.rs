//! Reads lists page by page.

use crate::failure::Result;
use atoll_api::{Page, PageQuery};

/// Number of items per request.
pub const PAGE_SIZE: i64 = 200;

pub const fn page_query(cursor: Option<String>) -> PageQuery {
    PageQuery { limit: Some(PAGE_SIZE), cursor }
}

/// Collects all items of a list.
pub async fn collect_all<T>(load: impl AsyncFnMut(Option<String>) -> atoll_client::Result<Page<T>>) -> Result<Vec<T>> {
    Ok(atoll_client::Client::collect_pages(load).await?)
}

/// Collects at most `most` items, or all; returns whether there are more. `load` gets a limit and a cursor.
pub async fn collect_up_to<T>(
    most: Option<usize>,
    mut load: impl AsyncFnMut(i64, Option<String>) -> atoll_client::Result<Page<T>>,
) -> Result<(Vec<T>, bool)> {
    let mut items = Vec::new();
    let mut cursor = None;
    loop {
        let left = most.map(|most| most.saturating_sub(items.len()));
        let limit = left.map_or(PAGE_SIZE, |left| i64::try_from(left).unwrap_or(PAGE_SIZE).min(PAGE_SIZE));
        if limit == 0 {
            return Ok((items, cursor.is_some()));
        }
        let page = load(limit, cursor).await?;
        items.extend(page.items);
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok((items, false));
        }
    }
}
