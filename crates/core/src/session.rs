//! A session: one lasting conversation with an agent, which can be resumed and forked.

use crate::string_enum;

string_enum! {
    "session state"
    SessionState { Open = "open", Closed = "closed" }
}
