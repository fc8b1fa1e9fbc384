//! Keys of the web page and of previews.

use crate::format::{TEXT, TIME};
use crate::key::section;
use crate::sections::Config;
use std::time::Duration;

section! {
    /// Sign-in to the web page.
    SignIn at [sign_in] {
        /// Time after which a sign-in to the page ends
        lifetime: Duration = Duration::from_secs(30 * 24 * 3600) => TIME;
        /// Time without use after which a sign-in to the page ends
        idle: Duration = Duration::from_secs(7 * 24 * 3600) => TIME;
    }
}

section! {
    /// Links to ports of sandboxes.
    Preview at [preview] {
        /// Domain whose subdomains lead to this server, for previews on other machines; no page may be below it
        domain: Option<String> = None => TEXT, sample("atoll-previews.example.net");
        /// Time after which a preview ends, if its creator names none
        lifetime: Duration = Duration::from_secs(3600) => TIME;
    }
}
