//! What a checkout needs besides the bundle of its repository: the commits of submodules, and large files.
//!
//! A stream of parts, each a line of JSON and the number of bytes that the line says.

use super::large_files::LargeFile;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, Read, Write};

const MAX_LINE_BYTES: u64 = 64 << 10;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "part", rename_all = "snake_case")]
pub enum CheckoutPart {
    /// A bundle with a submodule's commit follows.
    Submodule(SubmodulePart),
    /// The content follows.
    LargeFile { oid: String },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubmodulePart {
    /// Relative to the workspace.
    pub path: String,
    /// Relative to the workspace: below `.git/modules`.
    pub git_dir: String,
    /// The worktree of the repository that has the submodule; empty for the workspace itself.
    pub parent: String,
    /// The submodule's name in that repository.
    pub name: String,
    pub url: String,
    pub commit: String,
}

#[derive(Serialize, Deserialize)]
struct PartHeader {
    #[serde(flatten)]
    part: CheckoutPart,
    bytes: u64,
}

impl CheckoutPart {
    pub fn of_file(file: &LargeFile) -> Self {
        Self::LargeFile { oid: file.oid.clone() }
    }

    /// Writes the line before the part's content.
    pub fn write_header(self, bytes: u64, to: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut *to, &PartHeader { part: self, bytes })?;
        to.write_all(b"\n")
    }

    /// Reads the line before the next part, with the size of its content; `None` at the end.
    pub fn read_header(from: &mut impl BufRead) -> io::Result<Option<(Self, u64)>> {
        let mut line = String::new();
        from.take(MAX_LINE_BYTES).read_line(&mut line)?;
        if line.is_empty() {
            return Ok(None);
        }
        let PartHeader { part, bytes } = serde_json::from_str(&line)?;
        Ok(Some((part, bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other() {
        let submodule = CheckoutPart::Submodule(SubmodulePart {
            path: "lib/ö\n".to_owned(),
            git_dir: ".git/modules/lib".to_owned(),
            parent: String::new(),
            name: "lib".to_owned(),
            url: "https://example.org/lib".to_owned(),
            commit: "1".repeat(40),
        });
        let file = CheckoutPart::LargeFile { oid: "2".repeat(64) };
        let mut stream = Vec::new();
        for (part, content) in [(&submodule, "bundle\n"), (&file, "")] {
            part.clone().write_header(content.len() as u64, &mut stream).unwrap();
            stream.extend_from_slice(content.as_bytes());
        }
        let mut from = stream.as_slice();
        assert_eq!(CheckoutPart::read_header(&mut from).unwrap(), Some((submodule, 7)));
        from = &from[7..];
        assert_eq!(CheckoutPart::read_header(&mut from).unwrap(), Some((file, 0)));
        assert_eq!(CheckoutPart::read_header(&mut from).unwrap(), None);
        assert!(CheckoutPart::read_header(&mut &b"{}\n"[..]).is_err());
    }
}
