//! A session: one conversation of an agent, lasting, resumable, forkable.

use crate::words;

words! {
    "session state"
    SessionState { Open = "open", Closed = "closed" }
}
