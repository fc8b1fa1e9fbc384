//! The head of a bundle: what stands before the pack.
//!
//! Written and read here and not by `git bundle`: a name in a bundle then needs no ref in any
//! repository, a bundle can say where a shallow history ends, and of a hostile one git sees only the pack.

use std::fmt;
use std::io::{self, Read, Write};

/// The commit that a sandbox starts from.
pub const BASE: &str = "refs/atoll/base";
/// The commit that a sandbox ends with.
pub const RESULT: &str = "refs/atoll/result";
/// Under this, one for each, the commits whose parents a shallow repository does not have.
pub const SHALLOW: &str = "refs/atoll/shallow/";

const LONGEST_LINE: usize = 1024;
const MOST_LINES: usize = 100_000;

/// Which hash names the objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Sha1,
    Sha256,
}

impl Format {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
        }
    }

    pub const fn digits(self) -> usize {
        match self {
            Self::Sha1 => 40,
            Self::Sha256 => 64,
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        [Self::Sha1, Self::Sha256].into_iter().find(|format| format.name() == name)
    }

    /// Whether this is the whole name of an object.
    pub fn names(self, id: &str) -> bool {
        id.len() == self.digits() && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    pub format: Format,
    /// Commits that the reader must have.
    pub prerequisites: Vec<String>,
    /// Name and commit.
    pub refs: Vec<(String, String)>,
}

#[derive(Debug)]
pub enum Malformed {
    /// It ends before the pack begins.
    Short,
    NotABundle,
    Line(&'static str),
    Read(io::Error),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short => f.write_str("it ends too soon"),
            Self::NotABundle => f.write_str("it does not begin like one"),
            Self::Line(what) => f.write_str(what),
            Self::Read(error) => write!(f, "it cannot be read: {error}"),
        }
    }
}

impl Head {
    /// Takes exactly the head: the next byte of `from` is the pack's first.
    pub fn read(from: &mut impl Read) -> Result<Self, Malformed> {
        let format = match line(from)?.as_str() {
            "# v2 git bundle" => Format::Sha1,
            "# v3 git bundle" => {
                let capability = line(from)?;
                let name = capability.strip_prefix("@object-format=").ok_or(Malformed::Line("its kind is unknown"))?;
                Format::named(name).ok_or(Malformed::Line("its object format is unknown"))?
            }
            _ => return Err(Malformed::NotABundle),
        };
        let mut head = Self { format, prerequisites: Vec::new(), refs: Vec::new() };
        for _ in 0..MOST_LINES {
            let line = line(from)?;
            if line.is_empty() {
                return Ok(head);
            }
            head.take(&line)?;
        }
        Err(Malformed::Line("it names too many refs"))
    }

    fn take(&mut self, line: &str) -> Result<(), Malformed> {
        let checked = |id: &str| match self.format.names(id) {
            true => Ok(id.to_owned()),
            false => Err(Malformed::Line("it has a line that is no ref")),
        };
        if let Some(prerequisite) = line.strip_prefix('-') {
            let id = prerequisite.split_once(' ').map_or(prerequisite, |(id, _)| id);
            self.prerequisites.push(checked(id)?);
        } else {
            let (id, name) = line.split_once(' ').ok_or(Malformed::Line("it has a line that is no ref"))?;
            self.refs.push((name.to_owned(), checked(id)?));
        }
        Ok(())
    }

    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut text = match self.format {
            Format::Sha1 => "# v2 git bundle\n".to_owned(),
            Format::Sha256 => "# v3 git bundle\n@object-format=sha256\n".to_owned(),
        };
        self.prerequisites.iter().for_each(|id| text.extend(["-", id, "\n"]));
        self.refs.iter().for_each(|(name, id)| text.extend([id, " ", name, "\n"]));
        text.push('\n');
        to.write_all(text.as_bytes())
    }
}

/// One line, read byte by byte so that nothing of the pack is swallowed.
fn line(from: &mut impl Read) -> Result<String, Malformed> {
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        from.read_exact(&mut byte).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => Malformed::Short,
            _ => Malformed::Read(error),
        })?;
        match byte {
            [b'\n'] => return String::from_utf8(line).map_err(|_| Malformed::NotABundle),
            _ if line.len() == LONGEST_LINE => return Err(Malformed::NotABundle),
            [byte] => line.push(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(digit: char, format: Format) -> String {
        String::from(digit).repeat(format.digits())
    }

    #[test]
    fn what_is_written_is_read() {
        for format in [Format::Sha1, Format::Sha256] {
            let head = Head {
                format,
                prerequisites: vec![id('a', format)],
                refs: vec![(RESULT.to_owned(), id('b', format)), ("refs/x y".to_owned(), id('c', format))],
            };
            let mut bytes = Vec::new();
            head.write(&mut bytes).unwrap();
            bytes.extend_from_slice(b"PACK");
            let mut from = bytes.as_slice();
            assert_eq!(Head::read(&mut from).unwrap(), head);
            assert_eq!(from, b"PACK");
        }
    }

    #[test]
    fn what_is_no_bundle_is_refused() {
        let zeros = vec![0; 5000];
        let long = format!("# v2 git bundle\n{} {}\n\n", id('a', Format::Sha1), "x".repeat(2000));
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
            assert!(Head::read(&mut &*case).is_err(), "{}", String::from_utf8_lossy(case));
        }
    }
}
