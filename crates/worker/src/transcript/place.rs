//! Where each agent keeps the transcript of a conversation, below its home directory. Pure.

use super::Agent;
use std::path::{Path, PathBuf};

/// A file that is looked for in directories of the agent's home.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Search {
    pub directory: &'static [&'static str],
    /// How many directories lie between that and the file.
    pub depth: usize,
    /// How the file's name ends.
    pub ending: String,
}

pub(super) fn search(agent: Agent, id: &str) -> Search {
    match agent {
        // One directory for each place that it worked in.
        Agent::Claude => Search { directory: &[".claude", "projects"], depth: 1, ending: format!("{id}.jsonl") },
        // Year, month and day.
        Agent::Codex => Search { directory: &[".codex", "sessions"], depth: 3, ending: format!("-{id}.jsonl") },
        // In a database, which only its program reads.
        Agent::OpenCode => Search { directory: &[], depth: 0, ending: format!("{id}.json") },
    }
}

/// Where the agent looks for it when it is to go on in `workspace`. `first` is the transcript's first line.
pub(super) fn of(agent: Agent, id: &str, workspace: &Path, first: &str) -> PathBuf {
    match agent {
        Agent::Claude => {
            let name: String = workspace.to_string_lossy().chars().map(plain).collect();
            Path::new(".claude/projects").join(name).join(format!("{id}.jsonl"))
        }
        Agent::Codex => {
            let [year, month, day, clock] = begun(first);
            let name = format!("rollout-{year}-{month}-{day}T{clock}-{id}.jsonl");
            Path::new(".codex/sessions").join(year).join(month).join(day).join(name)
        }
        Agent::OpenCode => PathBuf::from(format!(".atoll-{id}.json")),
    }
}

fn plain(character: char) -> char {
    if character.is_ascii_alphanumeric() { character } else { '-' }
}

/// When the conversation began, in parts; one that does not say so began long ago.
fn begun(first: &str) -> [String; 4] {
    let line: serde_json::Value = serde_json::from_str(first).unwrap_or_default();
    let said = line["payload"]["timestamp"].as_str().or_else(|| line["timestamp"].as_str()).unwrap_or_default();
    let fits = |said: &str| {
        said.len() >= 19
            && said.bytes().zip(b"0000-00-00T00:00:00").all(|(byte, form)| match form {
                b'0' => byte.is_ascii_digit(),
                other => byte == *other,
            })
    };
    let said = if fits(said) { said } else { "2000-01-01T00:00:00" };
    [&said[..4], &said[5..7], &said[8..10], &said[11..19].replace(':', "-")].map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_place() {
        let place = |agent, first: &str| of(agent, "id-1", Path::new("/workspace"), first);
        assert_eq!(place(Agent::Claude, ""), Path::new(".claude/projects/-workspace/id-1.jsonl"));
        let first = r#"{"timestamp":"2026-11-15T22:14:32.1Z","payload":{"timestamp":"2026-11-15T22:14:31.123Z"}}"#;
        let codex = ".codex/sessions/2026/11/15/rollout-2026-11-15T22-14-31-id-1.jsonl";
        assert_eq!(place(Agent::Codex, first), Path::new(codex));
    }

    #[test]
    fn a_time_that_is_none_leads_nowhere() {
        for first in ["", "{}", r#"{"timestamp":"../../../../x"}"#, r#"{"timestamp":"2026-11-15T22:14:ää"}"#] {
            let place = of(Agent::Codex, "x", Path::new("/"), first);
            assert_eq!(place, Path::new(".codex/sessions/2000/01/01/rollout-2000-01-01T00-00-00-x.jsonl"), "{first}");
        }
    }
}
