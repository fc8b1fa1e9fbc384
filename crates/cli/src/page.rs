//! The embedded web page.

use atoll_server::PageFile;

/// Its files; none if the program was built without it.
pub const PAGE: &[PageFile] = include!(concat!(env!("OUT_DIR"), "/page.rs"));
