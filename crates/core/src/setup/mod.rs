//! Set-up: the commands that prepare a project in its sandbox before the agent starts.
//!
//! `plan_setup` chooses them from the first source that has some; `CacheKey::compute` names the layer that they leave.
//! File names and contents of a repository are hostile: they reach a command only as arguments, never a shell.

mod cache_key;
mod detection;
mod devcontainer;
mod jsonc;
mod package_environment;
mod repository_files;
mod request;
mod required_versions;
mod setup_files;
#[cfg(test)]
mod tests;
mod tool_remedies;

pub use cache_key::{CacheKey, CacheKeyInputs, CacheKeyPart};
pub use package_environment::{PackageEnvironment, SETUP_VARIABLES};
pub use repository_files::{MAX_SETUP_FILE_BYTES, MAX_SETUP_FILES, MAX_TOTAL_BYTES, RepositoryFiles};
pub use request::SetupRequest;
pub use required_versions::{RequiredVersion, VersionRule, find_version, list_required_versions};
pub use setup_files::{is_setup_file, may_hold_setup_files};
pub use tool_remedies::remedy_for_tool;

use crate::bounds::OutOfBounds;
use crate::string_enum;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The directory of a step that runs in the workspace itself.
pub const WORKSPACE_ROOT: &str = ".";

/// The repository's own set-up script.
const SCRIPT_PATH: &str = ".atoll/setup";
/// The kernel's limit of a script's first line.
const MAX_SHEBANG_BYTES: usize = 255;

string_enum! {
    /// Source of the commands of a set-up plan, in order of precedence.
    "set-up source"
    SetupSource {
        /// The request for the sandbox.
        Request = "request",
        /// The project's defaults.
        Project = "project",
        /// `.atoll/setup` in the repository.
        Repository = "repository",
        Devcontainer = "devcontainer",
        /// Manifests and lock files in the repository.
        Detected = "detected",
    }
}

/// A command of a set-up step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum SetupCommand {
    /// Run by `/bin/sh -c`.
    Shell(String),
    /// A program and its arguments.
    Argv(Vec<String>),
}

impl SetupCommand {
    /// The program and its arguments.
    pub fn to_argv(&self) -> Vec<String> {
        match self {
            Self::Shell(text) => vec!["/bin/sh".to_owned(), "-c".to_owned(), text.clone()],
            Self::Argv(argv) => argv.clone(),
        }
    }
}

/// Shows the command as a user would type it.
impl fmt::Display for SetupCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shell(text) => f.write_str(text),
            Self::Argv(argv) => f.write_str(&argv.iter().map(|word| quote_word(word)).collect::<Vec<_>>().join(" ")),
        }
    }
}

fn quote_word(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./=:@%+,".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// One command of a set-up plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SetupStep {
    pub command: SetupCommand,
    /// Relative to the workspace; `.` is the workspace itself.
    pub directory: String,
    /// Why the plan has this step, such as "package-lock.json".
    pub reason: String,
    /// Programs that the command needs, as far as they are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
}

/// The commands that prepare a project, with everything that they need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SetupPlan {
    pub source: SetupSource,
    /// They run in this order; the first failure ends set-up. Empty if the notes say why there is none.
    pub steps: Vec<SetupStep>,
    /// Variables of the set-up and of the agent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Ports that the project listens on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<u16>,
    /// Files whose contents are part of the cache key, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub key_files: Vec<String>,
    /// False if the same key can lead to other package versions later, so that the age of a layer must be bounded.
    pub locked: bool,
    /// Sentences for the user, such as "package.json has no lock file: …".
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl SetupPlan {
    fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.env.is_empty() && self.ports.is_empty() && self.notes.is_empty()
    }

    /// The programs that the steps need, sorted.
    pub fn tools(&self) -> Vec<&str> {
        let mut tools: Vec<&str> = self.steps.iter().flat_map(|step| step.tools.iter().map(String::as_str)).collect();
        tools.sort_unstable();
        tools.dedup();
        tools
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    #[error("{path} is larger than {} MB, so set-up cannot use it", MAX_SETUP_FILE_BYTES >> 20)]
    FileTooLarge { path: String },
}

/// Chooses the commands that prepare a project; `None` if set-up is off or there is nothing to do or to report.
pub fn plan_setup(
    request: Option<&SetupRequest>,
    project: Option<&SetupRequest>,
    files: &RepositoryFiles,
) -> Result<Option<SetupPlan>, SetupError> {
    let enabled = [request, project].into_iter().flatten().find_map(|settings| settings.enabled);
    if enabled == Some(false) {
        return Ok(None);
    }
    for (settings, source) in [(request, SetupSource::Request), (project, SetupSource::Project)] {
        if let Some(commands) = settings.and_then(|settings| settings.commands.as_ref()) {
            settings.map_or(Ok(()), SetupRequest::check_bounds)?;
            return Ok(plan_commands(source, commands, files));
        }
    }
    if files.contains(SCRIPT_PATH) {
        return plan_script(files).map(Some);
    }
    Ok(Some(plan_repository(files)).filter(|plan| !plan.is_empty()))
}

/// The commands of `devcontainer.json`; without one, the detected ones with its variables and ports.
fn plan_repository(files: &RepositoryFiles) -> SetupPlan {
    let Some(devcontainer) = devcontainer::read_devcontainer(files) else { return detection::detect_setup(files) };
    if !devcontainer.steps.is_empty() {
        return devcontainer;
    }
    let detected = detection::detect_setup(files);
    let notes = detected.notes.into_iter().chain(devcontainer.notes).collect();
    SetupPlan { env: devcontainer.env, ports: devcontainer.ports, notes, ..detected }
}

fn plan_commands(source: SetupSource, commands: &[String], files: &RepositoryFiles) -> Option<SetupPlan> {
    let reason = match source {
        SetupSource::Project => "the project's `setup`",
        SetupSource::Request | SetupSource::Repository | SetupSource::Devcontainer | SetupSource::Detected => {
            "the request"
        }
    };
    let steps: Vec<_> = commands
        .iter()
        .map(|command| SetupStep {
            command: SetupCommand::Shell(command.clone()),
            directory: WORKSPACE_ROOT.to_owned(),
            reason: reason.to_owned(),
            tools: Vec::new(),
        })
        .collect();
    (!steps.is_empty()).then(|| plan_with_all_files(source, steps, files))
}

/// A plan whose commands may read every setup file.
fn plan_with_all_files(source: SetupSource, steps: Vec<SetupStep>, files: &RepositoryFiles) -> SetupPlan {
    SetupPlan {
        source,
        steps,
        env: BTreeMap::new(),
        ports: Vec::new(),
        key_files: files.paths().map(str::to_owned).collect(),
        locked: files.paths().any(setup_files::is_lock_file),
        notes: Vec::new(),
    }
}

/// Runs the repository's script by its interpreter, as the kernel would, so that it needs no executable bit.
fn plan_script(files: &RepositoryFiles) -> Result<SetupPlan, SetupError> {
    let content =
        files.content(SCRIPT_PATH).ok_or_else(|| SetupError::FileTooLarge { path: SCRIPT_PATH.to_owned() })?;
    let mut argv = parse_shebang(content).unwrap_or_else(|| vec!["/bin/sh".to_owned()]);
    let interpreter = match argv.as_slice() {
        [env, program, ..] if env.ends_with("/env") => program.split_whitespace().find(|word| !word.starts_with('-')),
        [program, ..] => program.rsplit('/').next(),
        [] => None,
    };
    let tools = interpreter.map(str::to_owned).into_iter().collect();
    argv.push(SCRIPT_PATH.to_owned());
    let step = SetupStep {
        command: SetupCommand::Argv(argv),
        directory: WORKSPACE_ROOT.to_owned(),
        reason: SCRIPT_PATH.to_owned(),
        tools,
    };
    Ok(plan_with_all_files(SetupSource::Repository, vec![step], files))
}

/// The interpreter of a script and its argument: the kernel passes the rest of the line as one.
fn parse_shebang(content: &[u8]) -> Option<Vec<String>> {
    let line = content.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = std::str::from_utf8(line.get(..line.len().min(MAX_SHEBANG_BYTES))?).ok()?.trim();
    let (interpreter, argument) = line.split_once([' ', '\t']).unwrap_or((line, ""));
    let words = [interpreter, argument.trim()].into_iter().filter(|word| !word.is_empty());
    (interpreter.starts_with('/') && !line.contains('\0')).then(|| words.map(str::to_owned).collect())
}
