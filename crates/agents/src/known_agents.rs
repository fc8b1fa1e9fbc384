//! The agents that Atoll can install: their packages, programs and tested versions.

use atoll_core::model::ModelApi;
use atoll_core::string_enum;

string_enum! {
    "agent"
    Agent {
        /// Any program that speaks the Agent Client Protocol, named in the configuration.
        Acp = "acp",
        Claude = "claude",
        Codex = "codex",
        Gemini = "gemini",
        Opencode = "opencode",
    }
}

/// An agent's package in an npm registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Package {
    pub name: &'static str,
    /// Platform suffix of the version.
    pub suffix: &'static str,
    /// Directory name in `node_modules`.
    pub module: &'static str,
    /// Path of the program in the package.
    pub program: &'static str,
    /// The part of the package that a sandbox mounts.
    pub extent: MountExtent,
    /// The version that Atoll was tested with.
    pub version: &'static str,
    /// Checksum of that version's archive; absent on platforms where it was not tested.
    pub integrity: Option<&'static str>,
}

/// The files that a program needs around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountExtent {
    /// Only the program file.
    File,
    /// The parent of the program's directory.
    ParentDir,
    /// The whole package, and node to run it.
    Node,
}

/// The oldest major version of node that runs Gemini CLI.
pub const MIN_NODE_VERSION: u64 = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Platform {
    X64,
    Arm64,
}

impl Platform {
    pub const fn current() -> Option<Self> {
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
    /// The agent's name in messages.
    pub const fn display_name(self) -> &'static str {
        match self {
            Self::Acp => "an agent of the Agent Client Protocol",
            Self::Claude => "Claude Code",
            Self::Codex => "Codex",
            Self::Gemini => "Gemini CLI",
            Self::Opencode => "OpenCode",
        }
    }

    /// Environment variables that can hold the agent's key.
    pub const fn key_variables(self) -> &'static [&'static str] {
        match self {
            Self::Acp => &[],
            Self::Claude => &["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"],
            Self::Codex => &["OPENAI_API_KEY", "CODEX_API_KEY"],
            Self::Gemini => &["GEMINI_API_KEY", "GOOGLE_API_KEY"],
            Self::Opencode => &["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"],
        }
    }

    /// The model APIs that the agent can use. It needs one of them, or none if the list is empty.
    pub const fn model_apis(self) -> &'static [ModelApi] {
        match self {
            Self::Acp => &[],
            Self::Claude => &[ModelApi::Anthropic],
            Self::Codex => &[ModelApi::OpenAi],
            Self::Gemini => &[ModelApi::Gemini],
            Self::Opencode => &[ModelApi::Anthropic, ModelApi::OpenAi, ModelApi::Gemini],
        }
    }

    /// Selection order if no agent is named, the most capable first.
    pub const BY_PREFERENCE: &'static [Self] = &[Self::Claude, Self::Codex, Self::Opencode, Self::Gemini];

    /// The agent's package for a platform.
    pub const fn package_for(self, machine: Platform) -> Option<Package> {
        match (self, machine) {
            (Self::Acp, _) => None,
            (Self::Claude, Platform::X64) => Some(Package {
                name: "@anthropic-ai/claude-code-linux-x64",
                suffix: "",
                module: "@anthropic-ai/claude-code-linux-x64",
                program: "claude",
                extent: MountExtent::File,
                version: "2.1.325",
                integrity: Some(
                    "sha512-BqZzMvP/zgLLL34S+7OzbG+cyoFp7gwWHU5koVwsyMlTAz+0zZAmbY+UkzvtN2RXxp6AcMenbYIjQJxoXfUY3w==",
                ),
            }),
            (Self::Claude, Platform::Arm64) => Some(Package {
                name: "@anthropic-ai/claude-code-linux-arm64",
                suffix: "",
                module: "@anthropic-ai/claude-code-linux-arm64",
                program: "claude",
                extent: MountExtent::File,
                version: "2.1.325",
                integrity: None,
            }),
            (Self::Codex, Platform::X64) => Some(Package {
                name: "@openai/codex",
                suffix: "-linux-x64",
                module: "@openai/codex-linux-x64",
                program: "vendor/x86_64-unknown-linux-musl/bin/codex",
                extent: MountExtent::ParentDir,
                version: "0.166.0",
                integrity: Some(
                    "sha512-CxDm3+D1cpbGJeHrdzINoG+3wn9BVncP4qpZaaNYkxe8iPtRJOYyCJnnPoVjWRIBvI9vPKbRoifsMSA5xDaUpw==",
                ),
            }),
            (Self::Codex, Platform::Arm64) => Some(Package {
                name: "@openai/codex",
                suffix: "-linux-arm64",
                module: "@openai/codex-linux-arm64",
                program: "vendor/aarch64-unknown-linux-musl/bin/codex",
                extent: MountExtent::ParentDir,
                version: "0.166.0",
                integrity: None,
            }),
            (Self::Gemini, Platform::X64 | Platform::Arm64) => Some(Package {
                name: "@google/gemini-cli",
                suffix: "",
                module: "@google/gemini-cli",
                program: "bundle/gemini.js",
                extent: MountExtent::Node,
                version: "0.61.0",
                integrity: Some(
                    "sha512-dbQ9A0qBtFJNi6XBkHvfZ6Azpn6PNgH/P8h2MZ67RLlX8hSAVjup39CRWqdRxZv7YXIuhrFaytr8y0jKnkoxnQ==",
                ),
            }),
            (Self::Opencode, Platform::X64) => Some(Package {
                name: "opencode-linux-x64",
                suffix: "",
                module: "opencode-linux-x64",
                program: "bin/opencode",
                extent: MountExtent::File,
                version: "1.18.33",
                integrity: Some(
                    "sha512-q/t/3p2CTxOT9y2kvjesb/LZab2+1eqlhhWA02Be6mjTtmYtNBcBsrI5yDo4Fw7ZSPBW2oyMIGMNRqiKQjiAWw==",
                ),
            }),
            (Self::Opencode, Platform::Arm64) => Some(Package {
                name: "opencode-linux-arm64",
                suffix: "",
                module: "opencode-linux-arm64",
                program: "bin/opencode",
                extent: MountExtent::File,
                version: "1.18.33",
                integrity: None,
            }),
        }
    }

    /// The agent's package for this machine.
    pub fn package_for_host(self) -> Option<Package> {
        Platform::current().and_then(|machine| self.package_for(machine))
    }

    /// Returns true if Atoll was tested with this version on this machine's platform.
    pub fn is_tested(self, version: &str) -> bool {
        self.package_for_host().is_some_and(|package| package.is_tested(version))
    }
}

impl Package {
    /// Returns true if Atoll was tested with this version. Only tested packages have a checksum.
    fn is_tested(&self, version: &str) -> bool {
        self.integrity.is_some() && self.version == version
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_platform_without_a_checksum_is_not_tested() {
        let is_tested = |platform| {
            let package = Agent::Claude.package_for(platform).unwrap();
            (package.is_tested(package.version), package.is_tested("0.0.1"))
        };
        assert_eq!(is_tested(Platform::X64), (true, false));
        assert_eq!(is_tested(Platform::Arm64), (false, false));
    }

    /// `atoll agents install` and the end-to-end tests use the same versions.
    #[test]
    fn pinned_versions_match_the_tested_ones() {
        let lock = include_str!("../../../tests/agents/package-lock.json");
        let lock: serde_json::Value = serde_json::from_str(lock).unwrap();
        for agent in Agent::ALL {
            let Some(package) = agent.package_for(Platform::X64) else { continue };
            let locked = &lock["packages"][format!("node_modules/{}", package.module)];
            assert_eq!(locked["version"], format!("{}{}", package.version, package.suffix), "{agent}");
            assert_eq!(locked["integrity"].as_str(), package.integrity, "{agent}");
        }
    }
}
