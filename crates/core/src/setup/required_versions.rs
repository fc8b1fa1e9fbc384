//! Versions of languages that a repository's files ask for.

use super::RepositoryFiles;

const MAX_VERSION_BYTES: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionRule {
    /// The installed version has all its numbers: 20 matches 20.11.1.
    Prefix,
    /// The installed version is at least this one.
    Minimum,
}

/// A version of a program that a file of the repository asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequiredVersion {
    pub file: &'static str,
    pub program: &'static str,
    /// Numbers with dots, or a channel such as `nightly`.
    pub version: String,
    pub rule: VersionRule,
}

impl RequiredVersion {
    /// Compares with the output of the program's version command; `None` if it has no version.
    pub fn is_met_by(&self, version_output: &str) -> Option<bool> {
        let required = parse_numbers(&self.version);
        if required.is_empty() {
            return Some(version_output.contains(&self.version));
        }
        let installed = parse_numbers(find_version(version_output)?);
        Some(match self.rule {
            VersionRule::Prefix => installed.starts_with(&required),
            VersionRule::Minimum => installed >= required,
        })
    }
}

/// The first dotted number in the output of a version command.
pub fn find_version(version_output: &str) -> Option<&str> {
    let mut words = version_output.split(|c: char| !c.is_ascii_digit() && c != '.').map(|word| word.trim_matches('.'));
    words.find(|word| word.contains('.'))
}

fn parse_numbers(version: &str) -> Vec<u64> {
    version.split('.').map_while(|number| number.parse().ok()).collect()
}

/// Version files with a single version, the program, and prefixes of the version that do not count.
const SINGLE_VERSION_FILES: &[(&str, &str, &[&str])] = &[
    (".nvmrc", "node", &["v"]),
    (".node-version", "node", &["v"]),
    (".python-version", "python3", &[]),
    (".ruby-version", "ruby", &["ruby-"]),
    (".java-version", "java", &[]),
];

/// Programs by their name in `.tool-versions` and `mise.toml`.
const TOOL_NAMES: &[(&str, &str)] = &[
    ("go", "go"),
    ("golang", "go"),
    ("java", "java"),
    ("node", "node"),
    ("nodejs", "node"),
    ("python", "python3"),
    ("ruby", "ruby"),
    ("rust", "rustc"),
];

/// Lists the versions that files at the root ask for. Names without a number, such as `lts/*`, are left out.
pub fn list_required_versions(files: &RepositoryFiles) -> Vec<RequiredVersion> {
    let mut found = Vec::new();
    for (file, program, prefixes) in SINGLE_VERSION_FILES {
        let line = files.text(file).and_then(first_line).unwrap_or_default();
        let version = prefixes.iter().find_map(|prefix| line.strip_prefix(prefix)).unwrap_or(line);
        found.extend(require(file, program, version, VersionRule::Prefix));
    }
    for file in ["rust-toolchain.toml", "rust-toolchain"] {
        let channel = files.text(file).and_then(|text| {
            let channel = text.lines().find_map(|line| split_assignment(line).filter(|(name, _)| *name == "channel"));
            channel.map(|(_, value)| value).or_else(|| first_line(text))
        });
        let channel = channel.map(|channel| if channel.starts_with("nightly") { "nightly" } else { channel });
        found.extend(channel.and_then(|channel| require(file, "rustc", channel, VersionRule::Prefix)));
    }
    let go = files.text("go.mod").and_then(|text| text.lines().find_map(|line| line.strip_prefix("go ")));
    found.extend(go.and_then(|version| require("go.mod", "go", version, VersionRule::Minimum)));
    for (file, is_toml) in [(".tool-versions", false), ("mise.toml", true), (".mise.toml", true)] {
        for line in files.text(file).unwrap_or_default().lines() {
            let pair = if is_toml { split_assignment(line) } else { line.trim().split_once([' ', '\t']) };
            let tool = pair.and_then(|(name, version)| {
                let (_, program) = TOOL_NAMES.iter().find(|(tool, _)| *tool == name)?;
                require(file, program, version.split_whitespace().next()?, VersionRule::Prefix)
            });
            found.extend(tool);
        }
    }
    found
}

fn require(file: &'static str, program: &'static str, version: &str, rule: VersionRule) -> Option<RequiredVersion> {
    let version = version.trim();
    let is_number = version.starts_with(|first: char| first.is_ascii_digit());
    let is_plain =
        version.len() <= MAX_VERSION_BYTES && version.bytes().all(|b| b.is_ascii_alphanumeric() || b".-".contains(&b));
    (is_plain && (is_number || version == "nightly")).then(|| RequiredVersion {
        file,
        program,
        version: version.to_owned(),
        rule,
    })
}

fn first_line(text: &str) -> Option<&str> {
    text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'))
}

/// Splits `name = "value"`.
fn split_assignment(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once('=')?;
    Some((name.trim(), value.trim().strip_prefix('"')?.split('"').next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn required(file: &str, text: &str) -> Vec<(&'static str, String)> {
        let files = [(file, text)].into_iter().collect();
        list_required_versions(&files).into_iter().map(|it| (it.program, it.version)).collect()
    }

    #[test]
    fn reads_each_version_file() {
        for (file, text, program, version) in [
            (".nvmrc", "v20.11\n", "node", "20.11"),
            (".node-version", "22", "node", "22"),
            (".python-version", "# pyenv\n3.11.4\n3.10\n", "python3", "3.11.4"),
            (".ruby-version", "ruby-3.1.2\n", "ruby", "3.1.2"),
            (".java-version", "17", "java", "17"),
            ("rust-toolchain.toml", "[toolchain]\nchannel = \"1.80.0\" # pinned\n", "rustc", "1.80.0"),
            ("rust-toolchain.toml", "[toolchain]\nchannel = \"nightly-2024-05-01\"\n", "rustc", "nightly"),
            ("rust-toolchain", "1.70\n", "rustc", "1.70"),
            ("go.mod", "module x\n\ngo 1.22.1\n", "go", "1.22.1"),
            (".tool-versions", "zig 0.1\nnodejs 20.1.0 18.0.0\n", "node", "20.1.0"),
            ("mise.toml", "[tools]\npython = \"3.12\"\n", "python3", "3.12"),
        ] {
            assert_eq!(required(file, text), [(program, version.to_owned())], "{file}: {text}");
        }
        for (file, text) in [
            (".nvmrc", "lts/*"),
            (".nvmrc", ""),
            (".nvmrc", "20;rm -rf /"),
            ("rust-toolchain.toml", "[toolchain]\nchannel = \"stable\"\n"),
            ("go.mod", "module x\n"),
            (".tool-versions", "nodejs"),
            (".python-version", "pypy3.9"),
        ] {
            assert_eq!(required(file, text), [], "{file}: {text}");
        }
    }

    #[test]
    fn compares_versions() {
        let requirement =
            |version: &str, rule| RequiredVersion { file: "f", program: "p", version: version.to_owned(), rule };
        for (version, rule, output, expected) in [
            ("20", VersionRule::Prefix, "v20.11.1\n", Some(true)),
            ("2", VersionRule::Prefix, "v20.11.1\n", Some(false)),
            ("3.11.4", VersionRule::Prefix, "Python 3.11.2", Some(false)),
            ("1.22", VersionRule::Minimum, "go version go1.19.8 linux/amd64", Some(false)),
            ("1.9", VersionRule::Minimum, "go version go1.19.8 linux/amd64", Some(true)),
            ("nightly", VersionRule::Prefix, "rustc 1.95.0 (59807616e 2026-04-14)", Some(false)),
            ("nightly", VersionRule::Prefix, "rustc 1.97.0-nightly (x)", Some(true)),
            ("17", VersionRule::Prefix, "openjdk version \"17.0.11\" 2024-04-16", Some(true)),
            ("17", VersionRule::Prefix, "broken", None),
        ] {
            assert_eq!(requirement(version, rule).is_met_by(output), expected, "{version} and {output}");
        }
    }
}
