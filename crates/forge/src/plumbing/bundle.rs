//! The header of a bundle, before the pack.
//!
//! Read and written without `git bundle`: names in the bundle need no refs in a repository, the bundle can mark the end
//! of a shallow history, and git sees only the pack of a hostile one.

use std::fmt;
use std::io::{self, Read, Write};

/// The commit that a sandbox starts from.
pub const BASE_REF: &str = "refs/atoll/base";
/// The commit that a sandbox ends with.
pub const RESULT_REF: &str = "refs/atoll/result";
/// Prefix of the refs for commits whose parents a shallow repository lacks.
pub const SHALLOW_REF_PREFIX: &str = "refs/atoll/shallow/";

const MAX_LINE_BYTES: usize = 1024;
const MAX_HEADER_LINES: usize = 100_000;

/// The hash function of object ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectFormat {
    Sha1,
    Sha256,
}

impl ObjectFormat {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
        }
    }

    pub const fn hex_digits(self) -> usize {
        match self {
            Self::Sha1 => 40,
            Self::Sha256 => 64,
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Sha1, Self::Sha256].into_iter().find(|format| format.name() == name)
    }

    /// True if `id` is a full object id.
    pub fn is_object_id(self, id: &str) -> bool {
        id.len() == self.hex_digits() && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BundleHeader {
    pub format: ObjectFormat,
    /// Commits that the receiver must have.
    pub prerequisites: Vec<String>,
    /// Name and commit.
    pub refs: Vec<(String, String)>,
}

#[derive(Debug)]
pub enum BundleError {
    /// The file ends before the pack.
    Truncated,
    NotABundle,
    InvalidLine(&'static str),
    Read(io::Error),
}

impl fmt::Display for BundleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("it ends too soon"),
            Self::NotABundle => f.write_str("it does not begin like one"),
            Self::InvalidLine(what) => f.write_str(what),
            Self::Read(error) => write!(f, "it cannot be read: {error}"),
        }
    }
}

impl BundleHeader {
    /// Reads exactly the header: the next byte of `from` starts the pack.
    pub fn read(from: &mut impl Read) -> Result<Self, BundleError> {
        let format = match read_line(from)?.as_str() {
            "# v2 git bundle" => ObjectFormat::Sha1,
            "# v3 git bundle" => {
                let capability = read_line(from)?;
                let name = capability
                    .strip_prefix("@object-format=")
                    .ok_or(BundleError::InvalidLine("its kind is unknown"))?;
                ObjectFormat::from_name(name).ok_or(BundleError::InvalidLine("its object format is unknown"))?
            }
            _ => return Err(BundleError::NotABundle),
        };
        let mut head = Self { format, prerequisites: Vec::new(), refs: Vec::new() };
        for _ in 0..MAX_HEADER_LINES {
            let line = read_line(from)?;
            if line.is_empty() {
                return Ok(head);
            }
            head.parse_line(&line)?;
        }
        Err(BundleError::InvalidLine("it names too many refs"))
    }

    fn parse_line(&mut self, line: &str) -> Result<(), BundleError> {
        let checked = |id: &str| match self.format.is_object_id(id) {
            true => Ok(id.to_owned()),
            false => Err(BundleError::InvalidLine("it has a line that is no ref")),
        };
        if let Some(prerequisite) = line.strip_prefix('-') {
            let id = prerequisite.split_once(' ').map_or(prerequisite, |(id, _)| id);
            self.prerequisites.push(checked(id)?);
        } else {
            let (id, name) = line.split_once(' ').ok_or(BundleError::InvalidLine("it has a line that is no ref"))?;
            self.refs.push((name.to_owned(), checked(id)?));
        }
        Ok(())
    }

    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut text = match self.format {
            ObjectFormat::Sha1 => "# v2 git bundle\n".to_owned(),
            ObjectFormat::Sha256 => "# v3 git bundle\n@object-format=sha256\n".to_owned(),
        };
        self.prerequisites.iter().for_each(|id| text.extend(["-", id, "\n"]));
        self.refs.iter().for_each(|(name, id)| text.extend([id, " ", name, "\n"]));
        text.push('\n');
        to.write_all(text.as_bytes())
    }
}

/// Reads one line byte by byte, to consume nothing of the pack.
fn read_line(from: &mut impl Read) -> Result<String, BundleError> {
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        from.read_exact(&mut byte).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => BundleError::Truncated,
            _ => BundleError::Read(error),
        })?;
        match byte {
            [b'\n'] => return String::from_utf8(line).map_err(|_| BundleError::NotABundle),
            _ if line.len() == MAX_LINE_BYTES => return Err(BundleError::NotABundle),
            [byte] => line.push(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object_id(digit: char, format: ObjectFormat) -> String {
        String::from(digit).repeat(format.hex_digits())
    }

    #[test]
    fn a_written_header_can_be_read() {
        for format in [ObjectFormat::Sha1, ObjectFormat::Sha256] {
            let head = BundleHeader {
                format,
                prerequisites: vec![object_id('a', format)],
                refs: vec![
                    (RESULT_REF.to_owned(), object_id('b', format)),
                    ("refs/x y".to_owned(), object_id('c', format)),
                ],
            };
            let mut bytes = Vec::new();
            head.write(&mut bytes).unwrap();
            bytes.extend_from_slice(b"PACK");
            let mut from = bytes.as_slice();
            assert_eq!(BundleHeader::read(&mut from).unwrap(), head);
            assert_eq!(from, b"PACK");
        }
    }

    #[test]
    fn rejects_malformed_bundles() {
        let zeros = vec![0; 5000];
        let long = format!("# v2 git bundle\n{} {}\n\n", object_id('a', ObjectFormat::Sha1), "x".repeat(2000));
        let cases: [&[u8]; 9] = [
            b"",
            b"# v2 git bundle",
            b"# v2 git bundle\n",
            b"# v3 git bundle\n@filter=blob:none\n\n",
            b"# v3 git bundle\n@object-format=md5\n\n",
            b"# v2 git bundle\nabc refs/atoll/result\n\n",
            b"# v2 git bundle\n\xff\xfe\n\n",
            &zeros,
            long.as_bytes(),
        ];
        for case in cases {
            assert!(BundleHeader::read(&mut &*case).is_err(), "{}", String::from_utf8_lossy(case));
        }
    }
}
