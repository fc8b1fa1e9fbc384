//! The agents whose programs are looked for: where each is in its package, and which version was tried.

use atoll_core::model::Api;
use atoll_core::words;

words! {
    "agent"
    Agent {
        /// Whatever program speaks the Agent Client Protocol; the configuration names it.
        Acp = "acp",
        Claude = "claude",
        Codex = "codex",
        Gemini = "gemini",
        Opencode = "opencode",
    }
}

/// How an agent is had from an npm registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Package {
    pub name: &'static str,
    /// What is added to a version for this kind of machine.
    pub suffix: &'static str,
    /// How it lies in `node_modules`.
    pub module: &'static str,
    /// Its program, below the package's directory.
    pub program: &'static str,
    /// How much of the package a sandbox is shown.
    pub extent: Extent,
    /// The version that this version of Atoll was tried with.
    pub version: &'static str,
    /// The checksum of that version's archive; absent where it was not tried on this kind of machine.
    pub integrity: Option<&'static str>,
}

/// How much of its surroundings a program needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// The program is one file.
    File,
    /// The directory above the one that it lies in.
    Above,
    /// The whole package, and node to run it.
    Node,
}

/// The oldest node that runs Gemini CLI.
pub const NODE: u64 = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Machine {
    X64,
    Arm64,
}

impl Machine {
    pub const fn here() -> Option<Self> {
        if cfg!(target_arch = "x86_64") {
            Some(Self::X64)
        } else if cfg!(target_arch = "aarch64") {
            Some(Self::Arm64)
        } else {
            None
        }
    }
}

impl Agent {
    /// What people call it.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Acp => "an agent of the Agent Client Protocol",
            Self::Claude => "Claude Code",
            Self::Codex => "Codex",
            Self::Gemini => "Gemini CLI",
            Self::Opencode => "OpenCode",
        }
    }

    /// The variables with which a sandbox brings a key of its own.
    pub const fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Acp => &[],
            Self::Claude => &["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"],
            Self::Codex => &["OPENAI_API_KEY", "CODEX_API_KEY"],
            Self::Gemini => &["GEMINI_API_KEY", "GOOGLE_API_KEY"],
            Self::Opencode => &["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"],
        }
    }

    /// How its models are spoken to; any one of them will do, and with none named none is needed.
    pub const fn apis(self) -> &'static [Api] {
        match self {
            Self::Acp => &[],
            Self::Claude => &[Api::Anthropic],
            Self::Codex => &[Api::OpenAi],
            Self::Gemini => &[Api::Gemini],
            Self::Opencode => &[Api::Anthropic, Api::OpenAi, Api::Gemini],
        }
    }

    /// In which order they are taken where nobody names one: those that can do most first.
    pub const BY_CHOICE: &'static [Self] = &[Self::Claude, Self::Codex, Self::Opencode, Self::Gemini];

    /// Its package for a kind of machine.
    pub const fn package(self, machine: Machine) -> Option<Package> {
        match (self, machine) {
            (Self::Acp, _) => None,
            (Self::Claude, Machine::X64) => Some(Package {
                name: "@anthropic-ai/claude-code-linux-x64",
                suffix: "",
                module: "@anthropic-ai/claude-code-linux-x64",
                program: "claude",
                extent: Extent::File,
                version: "2.1.325",
                integrity: Some(
                    "sha512-BqZzMvP/zgLLL34S+7OzbG+cyoFp7gwWHU5koVwsyMlTAz+0zZAmbY+UkzvtN2RXxp6AcMenbYIjQJxoXfUY3w==",
                ),
            }),
            (Self::Claude, Machine::Arm64) => Some(Package {
                name: "@anthropic-ai/claude-code-linux-arm64",
                suffix: "",
                module: "@anthropic-ai/claude-code-linux-arm64",
                program: "claude",
                extent: Extent::File,
                version: "2.1.325",
                integrity: None,
            }),
            (Self::Codex, Machine::X64) => Some(Package {
                name: "@openai/codex",
                suffix: "-linux-x64",
                module: "@openai/codex-linux-x64",
                program: "vendor/x86_64-unknown-linux-musl/bin/codex",
                extent: Extent::Above,
                version: "0.166.0",
                integrity: Some(
                    "sha512-CxDm3+D1cpbGJeHrdzINoG+3wn9BVncP4qpZaaNYkxe8iPtRJOYyCJnnPoVjWRIBvI9vPKbRoifsMSA5xDaUpw==",
                ),
            }),
            (Self::Codex, Machine::Arm64) => Some(Package {
                name: "@openai/codex",
                suffix: "-linux-arm64",
                module: "@openai/codex-linux-arm64",
                program: "vendor/aarch64-unknown-linux-musl/bin/codex",
                extent: Extent::Above,
                version: "0.166.0",
                integrity: None,
            }),
            (Self::Gemini, Machine::X64 | Machine::Arm64) => Some(Package {
                name: "@google/gemini-cli",
                suffix: "",
                module: "@google/gemini-cli",
                program: "bundle/gemini.js",
                extent: Extent::Node,
                version: "0.61.0",
                integrity: Some(
                    "sha512-dbQ9A0qBtFJNi6XBkHvfZ6Azpn6PNgH/P8h2MZ67RLlX8hSAVjup39CRWqdRxZv7YXIuhrFaytr8y0jKnkoxnQ==",
                ),
            }),
            (Self::Opencode, Machine::X64) => Some(Package {
                name: "opencode-linux-x64",
                suffix: "",
                module: "opencode-linux-x64",
                program: "bin/opencode",
                extent: Extent::File,
                version: "1.18.33",
                integrity: Some(
                    "sha512-q/t/3p2CTxOT9y2kvjesb/LZab2+1eqlhhWA02Be6mjTtmYtNBcBsrI5yDo4Fw7ZSPBW2oyMIGMNRqiKQjiAWw==",
                ),
            }),
            (Self::Opencode, Machine::Arm64) => Some(Package {
                name: "opencode-linux-arm64",
                suffix: "",
                module: "opencode-linux-arm64",
                program: "bin/opencode",
                extent: Extent::File,
                version: "1.18.33",
                integrity: None,
            }),
        }
    }

    /// Its package for this machine.
    pub fn package_here(self) -> Option<Package> {
        Machine::here().and_then(|machine| self.package(machine))
    }

    /// Whether Atoll was tried with this version of it.
    pub fn is_tested(self, version: &str) -> bool {
        self.package_here().is_some_and(|package| package.version == version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What tests of whole sandboxes are run with is what is installed for people.
    #[test]
    fn what_is_pinned_is_what_is_tested() {
        let lock = include_str!("../../../tests/agents/package-lock.json");
        let lock: serde_json::Value = serde_json::from_str(lock).unwrap();
        for agent in Agent::ALL {
            let Some(package) = agent.package(Machine::X64) else { continue };
            let locked = &lock["packages"][format!("node_modules/{}", package.module)];
            assert_eq!(locked["version"], format!("{}{}", package.version, package.suffix), "{agent}");
            assert_eq!(locked["integrity"].as_str(), package.integrity, "{agent}");
        }
    }
}
