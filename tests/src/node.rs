//! Node, which runs GitHub's packages and the tests of the web page.

use std::path::{Path, PathBuf};

/// A file below `target`, if it exists.
pub fn find_in_target(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?.join("target").join(name);
    path.exists().then_some(path)
}

/// The program `node`: the one that `scripts/node` installed, or the machine's own.
pub fn find_node() -> PathBuf {
    find_in_target("node/programs/node").unwrap_or_else(|| "node".into())
}
