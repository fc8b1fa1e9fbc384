//! Lists, page after page.

use super::Client;
use crate::failure::Result;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// One page, its items as the server wrote them.
#[derive(Debug, Deserialize)]
pub struct Page {
    pub items: Vec<Box<RawValue>>,
    pub next_cursor: Option<String>,
}

impl Client {
    pub async fn page(&self, path: &str, query: &[(&str, String)]) -> Result<Page> {
        let text = self.get_text(path, query).await?;
        serde_json::from_str(&text).map_err(|error| self.not_atoll(&format!("its list can't be read ({error})")))
    }

    /// The first `most` items (all without it), and whether there are more.
    pub async fn list(&self, path: &str, query: &[(&str, String)], most: Option<usize>) -> Result<(Vec<Value>, bool)> {
        const AT_ONCE: usize = 200;
        let mut items = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let room = most.map_or(AT_ONCE, |most| most.saturating_sub(items.len()).min(AT_ONCE));
            if room == 0 {
                return Ok((items, cursor.is_some()));
            }
            let mut asked = query.to_vec();
            asked.push(("limit", room.to_string()));
            asked.extend(cursor.take().map(|cursor| ("cursor", cursor)));
            let page = self.page(path, &asked).await?;
            for item in page.items {
                items.push(serde_json::from_str(item.get()).map_err(|error| self.not_atoll(&error.to_string()))?);
            }
            match page.next_cursor {
                Some(next) => cursor = Some(next),
                None => return Ok((items, false)),
            }
        }
    }
}
