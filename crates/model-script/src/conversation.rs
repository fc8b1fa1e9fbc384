//! What a request says, whichever API it came by: the conversation so far and the tools on offer.

use crate::script::in_name;
use serde_json::Value;

/// What stands in a prompt before the name of the script that it chooses.
pub(crate) const TAG: &str = "#script:";

#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Conversation {
    pub(crate) model: String,
    pub(crate) stream: bool,
    /// OpenAI sends figures at a stream's end only to those who ask.
    pub(crate) stream_usage: bool,
    pub(crate) entries: Vec<Entry>,
    pub(crate) tools: Vec<Tool>,
}

/// One thing in a conversation, in order.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Entry {
    /// Instructions around the conversation.
    System(String),
    /// A user's text.
    Told(String),
    /// What a tool gave back.
    Result(String),
    /// The model's own words, thoughts included.
    Said,
    /// The model's call of a tool.
    Called,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tool {
    pub(crate) name: String,
    pub(crate) form: Form,
}

/// How a tool takes its input.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Form {
    /// An object, by its JSON schema.
    Object(Value),
    /// Free text.
    Text,
}

/// Which script a conversation plays, and what has happened since it began.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Course {
    /// The script that a prompt named; none if none did.
    pub(crate) named: Option<String>,
    /// How many prompts named a script: the second time is not the first.
    pub(crate) begun: usize,
    pub(crate) marks: Vec<Mark>,
}

/// What moves a script on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// A tool gave something back.
    Result,
    /// The model spoke without calling anything, and a user went on after that.
    WentOn,
}

/// How an agent asks for the rest of an answer whose stream broke: nobody has gone on, it is the same turn.
const REST_WANTED: &[&str] = &["Your response above was cut off mid-stream"];

impl Conversation {
    /// Read from the conversation alone: the same request always stands at the same place.
    pub(crate) fn course(&self) -> Course {
        let mut course = Course::default();
        // The model's latest words: whether there are any, and whether they called a tool.
        let mut said = None;
        for entry in &self.entries {
            match entry {
                Entry::System(_) => {}
                Entry::Said => said = said.or(Some(false)),
                Entry::Called => said = Some(true),
                Entry::Result(_) => {
                    course.marks.push(Mark::Result);
                    said = None;
                }
                Entry::Told(text) => {
                    if let Some(name) = tag(text) {
                        course = Course { named: Some(name.to_owned()), begun: course.begun + 1, marks: Vec::new() };
                    } else if said == Some(false) && !REST_WANTED.iter().any(|wanted| text.contains(wanted)) {
                        course.marks.push(Mark::WentOn);
                    }
                    said = None;
                }
            }
        }
        course
    }

    /// Whether the model has been told this text; with `new`, since it last said something.
    pub(crate) fn holds(&self, text: &str, new: bool) -> bool {
        let last = self.entries.iter().rposition(|entry| matches!(entry, Entry::Said | Entry::Called));
        let first = if new { last.map_or(0, |last| last + 1) } else { 0 };
        self.entries.iter().skip(first).any(|entry| match entry {
            Entry::System(told) | Entry::Told(told) | Entry::Result(told) => told.contains(text),
            Entry::Said | Entry::Called => false,
        })
    }

    /// The directory that the agent says it works in.
    pub(crate) fn working_directory(&self) -> Option<&str> {
        // Each agent words it in its own way; the directory stands on the same line, or in a list below it.
        const SAID: &[&str] = &[
            "Primary working directory:",
            "Working directory:",
            "Current working directory:",
            "Workspace Directories:**",
            "working in the directory:",
            "<cwd>",
        ];
        let texts = self.entries.iter().filter_map(|entry| match entry {
            Entry::System(text) | Entry::Told(text) => Some(text.as_str()),
            Entry::Result(_) | Entry::Said | Entry::Called => None,
        });
        for text in texts {
            for said in SAID {
                let Some((_, after)) = text.split_once(said) else { continue };
                let after = after.trim_start_matches([' ', '\n', '-', '`']);
                let end = after.find(['\n', '<', '`']).unwrap_or(after.len());
                let found = after[..end].trim();
                if found.starts_with('/') {
                    return Some(found);
                }
            }
        }
        None
    }

    /// About as many tokens as a real model would count.
    pub(crate) fn tokens(&self) -> u64 {
        let letters: usize = self
            .entries
            .iter()
            .map(|entry| match entry {
                Entry::System(text) | Entry::Told(text) | Entry::Result(text) => text.len(),
                Entry::Said | Entry::Called => 0,
            })
            .sum();
        tokens(letters)
    }
}

pub(crate) fn tokens(letters: usize) -> u64 {
    (letters as u64).div_ceil(4).max(1)
}

/// The last script that a text names.
fn tag(text: &str) -> Option<&str> {
    let (_, after) = text.rsplit_once(TAG)?;
    let end = after.find(|letter| !in_name(letter)).unwrap_or(after.len());
    // A full stop behind the name ends the sentence.
    let name = after[..end].trim_end_matches('.');
    (!name.is_empty()).then_some(name)
}

/// The text in a content field, which is text itself or a list of parts with text in them.
pub(crate) fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts = parts.iter().map(|part| match part {
                Value::String(text) => text.clone(),
                part => part["text"].as_str().unwrap_or_default().to_owned(),
            });
            texts.collect::<Vec<_>>().join("\n")
        }
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Entry {
        Entry::Told(text.into())
    }

    fn result(text: &str) -> Entry {
        Entry::Result(text.into())
    }

    fn course(entries: &[Entry]) -> (Option<String>, usize, Vec<Mark>) {
        let course = Conversation { entries: entries.to_vec(), ..Conversation::default() }.course();
        (course.named, course.begun, course.marks)
    }

    #[test]
    fn the_course_is_read_from_the_conversation() {
        use Entry::{Called, Said};
        use Mark::{Result, WentOn};
        let a = || Some("a".to_owned());
        assert_eq!(course(&[told("do it")]), (None, 0, vec![]));
        assert_eq!(course(&[told("do it #script:a.")]), (a(), 1, vec![]));
        let begun = [told("x #script:a y"), Said, Called, result("")];
        assert_eq!(course(&begun), (a(), 1, vec![Result]));
        // A message in between moves nothing.
        assert_eq!(course(&[&begun[..], &[told("and this")]].concat()), (a(), 1, vec![Result]));
        assert_eq!(
            course(&[told("#script:a"), Called, Called, result(""), result("")]),
            (a(), 1, vec![Result, Result])
        );
        // An ended turn counts once somebody goes on, and not when the agent only wants the rest of it.
        let ended = [&begun[..], &[Said]].concat();
        assert_eq!(course(&ended), (a(), 1, vec![Result]));
        assert_eq!(course(&[&ended[..], &[told("go on"), told("more")]].concat()), (a(), 1, vec![Result, WentOn]));
        let rest = told("Your response above was cut off mid-stream. Resume directly.");
        assert_eq!(course(&[&ended[..], &[rest]].concat()), (a(), 1, vec![Result]));
        // A new name begins anew, and the same name too.
        assert_eq!(course(&[&ended[..], &[told("#script:b")]].concat()), (Some("b".into()), 2, vec![]));
        assert_eq!(course(&[&ended[..], &[told("#script:a")]].concat()), (a(), 2, vec![]));
        // What a tool printed chooses nothing.
        assert_eq!(course(&[told("#script:a"), Called, result("#script:b")]), (a(), 1, vec![Result]));
    }

    #[test]
    fn what_was_told_is_found_and_what_was_said_is_not_asked() {
        let entries = vec![told("first"), Entry::Called, result("second"), told("third")];
        let conversation = Conversation { entries, ..Conversation::default() };
        assert!(conversation.holds("first", false) && !conversation.holds("first", true));
        assert!(conversation.holds("second", true) && conversation.holds("third", true));
        assert!(!conversation.holds("fourth", false));
    }

    #[test]
    fn the_directory_is_found_as_each_agent_words_it() {
        for (text, found) in [
            ("# Environment\n - Primary working directory: /a/b\n - Platform: linux", Some("/a/b")),
            ("<env>\n  Working directory: /a b\n</env>", Some("/a b")),
            ("<environment_context>\n  <cwd>/srv/x</cwd>", Some("/srv/x")),
            ("- **Workspace Directories:**\n  - /g\n- more", Some("/g")),
            ("Working directory: unknown", None),
            ("nothing of it", None),
        ] {
            let conversation = Conversation { entries: vec![Entry::System(text.into())], ..Conversation::default() };
            assert_eq!(conversation.working_directory(), found, "{text}");
        }
    }
}
