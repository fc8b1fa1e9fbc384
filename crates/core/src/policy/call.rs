//! A tool call as rules see it: the paths, commands and hosts that it names, for any agent's field names.

use super::shell::{self, ShellLine};
use serde_json::Value;

/// Maximum number and length of strings examined in an unknown tool's input.
const MAX_STRINGS: usize = 200;
const MAX_STRING_BYTES: usize = 4096;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnalysedCall {
    pub tool: String,
    /// Relative for paths in the workspace, `.` for the workspace itself, otherwise absolute. Links are not resolved.
    pub paths: Vec<String>,
    /// The paths that the call would change.
    pub writes: Vec<String>,
    pub commands: Vec<Vec<String>>,
    pub hosts: Vec<String>,
    /// Reason why the analysis may be incomplete.
    pub incomplete_reason: Option<&'static str>,
}

/// Effect of a tool, derived from its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolEffect {
    Reads,
    /// Reads from the network.
    Fetches,
    Writes,
    Runs,
    /// Unknown effect.
    Other,
}

pub fn tool_effect(tool: &str) -> ToolEffect {
    match tool.to_ascii_lowercase().as_str() {
        "read"
        | "glob"
        | "grep"
        | "ls"
        | "list"
        | "read_file"
        | "read_many_files"
        | "list_directory"
        | "search_file_content"
        | "glob_search"
        | "todowrite"
        | "todoread"
        | "task"
        | "agent"
        | "skill"
        | "taskcreate"
        | "taskupdate" => ToolEffect::Reads,
        "webfetch" | "web_fetch" | "websearch" | "google_web_search" => ToolEffect::Fetches,
        "write" | "edit" | "multiedit" | "notebookedit" | "apply_patch" | "patch" | "write_file" | "replace"
        | "file_change" => ToolEffect::Writes,
        "bash" | "shell" | "run_shell_command" | "execute" | "exec_command" => ToolEffect::Runs,
        _ => ToolEffect::Other,
    }
}

const PATH_FIELDS: &[&str] =
    &["file_path", "path", "filePath", "notebook_path", "absolute_path", "dir_path", "target_file", "paths"];
const COMMAND_FIELDS: &[&str] = &["command", "cmd", "script"];
/// Prefixes of file names in the patches that agents write.
const PATCH_FILE_PREFIXES: &[&str] =
    &["*** Update File: ", "*** Add File: ", "*** Delete File: ", "*** Move to: ", "+++ b/", "--- a/"];

impl AnalysedCall {
    pub fn from_input(tool: &str, input: &Value, workspace: &str) -> Self {
        let mut call = Self { tool: tool.to_owned(), ..Self::default() };
        let does = tool_effect(tool);
        let named: Vec<String> = PATH_FIELDS.iter().flat_map(|field| own_strings(&input[*field])).collect();
        match does {
            ToolEffect::Reads | ToolEffect::Fetches => named.iter().for_each(|path| call.add_read(path, workspace, "")),
            ToolEffect::Writes => {
                named.iter().for_each(|path| call.add_write(path, workspace, ""));
                for path in patched_files(input) {
                    call.add_write(&path, workspace, "");
                }
                if call.writes.is_empty() {
                    call.incomplete_reason = Some("its input names no file");
                }
            }
            ToolEffect::Runs => {}
            ToolEffect::Other => {
                let mut all = Vec::new();
                all_strings(input, &mut all);
                for text in
                    all.iter().filter(|text| text.len() <= MAX_STRING_BYTES && !text.contains(char::is_whitespace))
                {
                    call.add_read(text, workspace, "");
                    call.hosts.extend(host_of(text));
                }
                if all.len() >= MAX_STRINGS {
                    call.incomplete_reason = Some("its input is too large");
                } else if !call.paths.is_empty() {
                    call.incomplete_reason = Some("the effect of the tool is unknown");
                }
            }
        }
        for url in ["url", "urls", "prompt", "query"].iter().flat_map(|field| own_strings(&input[*field])) {
            call.hosts.extend(url.split_whitespace().filter_map(host_of));
        }
        if does == ToolEffect::Runs || does == ToolEffect::Other {
            let cwd =
                own_strings(&input["cwd"]).pop().or_else(|| own_strings(&input["workdir"]).pop()).unwrap_or_default();
            for field in COMMAND_FIELDS {
                match &input[*field] {
                    Value::String(text) => call.add_commands(shell::parse_line(text), workspace, &cwd),
                    Value::Array(words) => {
                        let words = words.iter().filter_map(Value::as_str).map(str::to_owned).collect();
                        call.add_commands(shell::parse_words(words), workspace, &cwd);
                    }
                    Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {}
                }
            }
            if does == ToolEffect::Runs && call.commands.is_empty() && call.incomplete_reason.is_none() {
                call.incomplete_reason = Some("its input names no command");
            }
        }
        for list in [&mut call.paths, &mut call.writes, &mut call.hosts] {
            list.sort();
            list.dedup();
        }
        call
    }

    fn add_read(&mut self, path: &str, workspace: &str, cwd: &str) {
        self.paths.extend(normalise_path(path, workspace, cwd));
    }

    fn add_write(&mut self, path: &str, workspace: &str, cwd: &str) {
        let place = normalise_path(path, workspace, cwd);
        // Changing a parent directory of the workspace changes the whole workspace.
        let holds = |place: &String| {
            workspace.strip_prefix(place.as_str()).is_some_and(|rest| place == "/" || rest.starts_with('/'))
        };
        self.writes.extend(place.as_ref().map(|place| if holds(place) { ".".to_owned() } else { place.clone() }));
        self.paths.extend(place);
    }

    fn add_commands(&mut self, line: ShellLine, workspace: &str, cwd: &str) {
        self.incomplete_reason = self.incomplete_reason.or(line.incomplete_reason);
        let mut cwd = cwd.to_owned();
        for command in line.commands {
            for path in &command.output_files {
                self.add_write(path, workspace, &cwd);
            }
            let Some((program, arguments)) = command.words.split_first() else { continue };
            let program = program.rsplit('/').next().unwrap_or(program);
            for word in arguments {
                let word = word.split_once('=').map_or(word.as_str(), |(_, value)| value);
                if !word.starts_with('-') {
                    self.add_read(word, workspace, &cwd);
                }
                self.hosts.extend(host_of(word));
            }
            if NETWORK_PROGRAMS.contains(&program) {
                self.hosts.extend(arguments.iter().filter_map(|word| bare_host(word)));
            }
            for path in paths_written_by(program, arguments) {
                self.add_write(path, workspace, &cwd);
            }
            if program == "cd" {
                let to = arguments.first().map_or("~", String::as_str);
                cwd = match (to.starts_with(['/', '~']), cwd.is_empty()) {
                    (true, _) | (_, true) => to.to_owned(),
                    (false, false) => format!("{cwd}/{to}"),
                };
            }
            self.commands.push(command.words);
        }
    }
}

/// Programs whose arguments are hosts, also without a scheme.
const NETWORK_PROGRAMS: &[&str] = &["curl", "wget", "ssh", "scp", "sftp", "nc", "ncat", "telnet", "ping", "rsync"];

/// Returns the paths that a known file-changing program changes.
fn paths_written_by<'a>(program: &str, arguments: &'a [String]) -> Vec<&'a str> {
    let plain = || arguments.iter().map(String::as_str).filter(|word| !word.starts_with('-'));
    let in_place = || arguments.iter().any(|word| word.starts_with("-i") || word.starts_with("--in-place"));
    match program {
        "rm" | "rmdir" | "unlink" | "touch" | "mkdir" | "truncate" | "chmod" | "chown" | "chgrp" | "shred" | "tee"
        | "patch" | "mv" => plain().collect(),
        "cp" | "install" | "ln" | "rsync" => plain().next_back().into_iter().collect(),
        "sed" | "perl" if in_place() => plain().collect(),
        "dd" => arguments.iter().filter_map(|word| word.strip_prefix("of=")).collect(),
        "git" => match arguments.first().map(String::as_str) {
            Some("rm" | "mv" | "checkout" | "restore" | "clean") => plain().skip(1).collect(),
            Some(_) | None => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// Normalises a path for comparison. A shell pattern ends the path, since it may match anything below.
fn normalise_path(path: &str, workspace: &str, cwd: &str) -> Option<String> {
    let path = path.trim();
    if path.is_empty() || path.contains('\0') || path.contains("://") {
        return None;
    }
    let whole = match (path.starts_with('/'), path.starts_with('~'), cwd.starts_with(['/', '~'])) {
        (true, _, _) | (_, true, _) => path.to_owned(),
        (false, false, true) => format!("{cwd}/{path}"),
        (false, false, false) => format!("{workspace}/{cwd}/{path}"),
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in whole.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part if part.contains(['*', '?', '[', '{']) => break,
            part => parts.push(part),
        }
    }
    if whole.starts_with('~') {
        return Some(parts.join("/"));
    }
    let absolute = format!("/{}", parts.join("/"));
    let workspace = workspace.trim_end_matches('/');
    Some(match absolute.strip_prefix(workspace) {
        Some("") => ".".to_owned(),
        Some(below) if below.starts_with('/') => below[1..].to_owned(),
        Some(_) | None => absolute,
    })
}

fn own_strings(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => vec![text.clone()],
        Value::Array(all) => all.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Vec::new(),
    }
}

fn all_strings(value: &Value, into: &mut Vec<String>) {
    if into.len() >= MAX_STRINGS {
        return;
    }
    match value {
        Value::String(text) => into.push(text.clone()),
        Value::Array(all) => all.iter().for_each(|one| all_strings(one, into)),
        Value::Object(all) => all.values().for_each(|one| all_strings(one, into)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Returns the files of a patch, given as text or as a list of changes.
fn patched_files(input: &Value) -> Vec<String> {
    let mut files = Vec::new();
    for field in ["patch", "patchText", "input", "diff"] {
        for line in input[field].as_str().unwrap_or_default().lines() {
            files.extend(
                PATCH_FILE_PREFIXES.iter().find_map(|head| line.strip_prefix(head)).map(|file| file.trim().to_owned()),
            );
        }
    }
    match &input["changes"] {
        Value::Array(changes) => {
            for change in changes {
                files.extend(["path", "file_path"].iter().flat_map(|field| own_strings(&change[*field])));
                files.extend(own_strings(&change["kind"]["move_path"]));
            }
        }
        Value::Object(changes) => files.extend(changes.keys().cloned()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    files
}

/// Returns the host of a URL or of git's `user@host:path`.
fn host_of(word: &str) -> Option<String> {
    let after = match word.split_once("://") {
        Some((_, after)) => after,
        None => {
            let (user, rest) = word.split_once('@')?;
            let (host, _) = rest.split_once(':')?;
            return (!user.is_empty() && !user.contains('/')).then(|| host.to_lowercase()).filter(|host| is_host(host));
        }
    };
    let authority = after.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    let host = match host.strip_prefix('[') {
        Some(address) => address.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let host = host.trim_end_matches('.').to_lowercase();
    (!host.is_empty()).then_some(host)
}

fn bare_host(word: &str) -> Option<String> {
    if word.starts_with(['-', '/', '.']) || word.contains("://") {
        return None;
    }
    let word = word.rsplit('@').next().unwrap_or(word);
    let host = word.split(['/', ':']).next().unwrap_or_default().trim_end_matches('.').to_lowercase();
    (host.contains('.') || host == "localhost").then_some(host).filter(|host| is_host(host))
}

fn is_host(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
}
