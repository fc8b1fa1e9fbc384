//! The forges that Atoll knows.

use crate::string_enum;

string_enum! {
    /// A service that hosts repositories with pull requests.
    "forge"
    ForgeKind { GitHub = "github" }
}
