//! What is decided about a tool call before it runs: rules over the tool's name, the paths, commands and hosts that it
//! names. Pure, and a matter of microseconds.
//!
//! These rules guide an agent; they don't bound it. A command can hide what it does from whoever only reads it: the
//! boundary is the sandbox, its read-only mounts and its network policy.

use crate::bounds::{OutOfBounds, line, refuse};
use crate::{protected, words};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

mod call;
mod glob;
mod shell;
#[cfg(test)]
mod tests;

pub use call::{Call, Does, does};

pub const MOST_RULES: usize = 100;
const MOST_PATTERNS: usize = 64;
const PATTERN: usize = 512;
const REASON: usize = 500;

words! {
    /// What becomes of a call that a rule is about.
    "rule's consequence"
    Then {
        /// It passes, and nobody is asked.
        Allow = "allow",
        /// A person is asked, whatever the approvals are.
        Ask = "ask",
        Deny = "deny",
        /// It passes on to the next rule with other input.
        Change = "change",
    }
}

/// One rule. Of each kind of pattern that it has, one must fit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolRule {
    /// Names of tools, `*` for any letters: `Bash`, `mcp__*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// Paths that the call names, below the workspace or absolute: `*` for a part of a name, `**` for any directories. A
    /// directory stands for all that is in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// The first words of a command: `git push`, `rm -rf *`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
    /// Hosts of URLs: `example.com`, `*.example.com`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    pub then: Then,
    /// Told to the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// With `change`: these fields of the input, whatever they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub set: Option<Map<String, Value>>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolPolicy {
    /// The first that fits decides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<ToolRule>,
    /// A call that a denying or asking rule can't judge is denied; else it passes that rule.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fail_closed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// No rule is about it.
    Open,
    Allow,
    Ask {
        rule: String,
    },
    Deny {
        rule: String,
        reason: String,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    pub verdict: Verdict,
    /// What the call is to have in place of its input.
    pub input: Option<Value>,
}

/// The rule that protected paths make.
pub const PROTECTED: &str = "protected";

impl ToolPolicy {
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The rules of a project before those of one sandbox, which can't lower them; closed if either wants it so.
    pub fn joined(first: Option<Self>, then: Option<Self>) -> Option<Self> {
        match (first, then) {
            (Some(mut first), Some(then)) => {
                first.rules.extend(then.rules);
                first.fail_closed |= then.fail_closed;
                Some(first)
            }
            (first, then) => first.or(then),
        }
    }

    /// Whether the rules make sense; one that does not would never do what somebody thinks it does.
    pub fn check(&self, field: &str) -> Result<(), OutOfBounds> {
        if self.rules.len() > MOST_RULES {
            return refuse(field, format!("has {} rules; at most {MOST_RULES} are allowed", self.rules.len()));
        }
        for (number, rule) in self.rules.iter().enumerate() {
            rule.check(&format!("{field}.rules[{number}]"))?;
        }
        Ok(())
    }

    /// What becomes of a call. `workspace` is where its paths begin; `protected` must not be changed, whatever the
    /// rules say.
    pub fn decide(&self, tool: &str, input: &Value, workspace: &str, protected: &[String]) -> Decision {
        let mut call = Call::of(tool, input, workspace);
        let mut changed: Option<Value> = None;
        let done = |verdict, input| Decision { verdict, input };
        if let Some(verdict) = call.spoils(protected, self.fail_closed) {
            return done(verdict, None);
        }
        for (number, rule) in self.rules.iter().enumerate() {
            match rule.fits(&call) {
                Fits::No => {}
                Fits::Yes => match rule.then {
                    Then::Allow => return done(Verdict::Allow, changed),
                    Then::Ask => return done(Verdict::Ask { rule: rule.name(number) }, changed),
                    Then::Deny => return done(rule.denies(number), None),
                    Then::Change => {
                        let now = rule.applied_to(changed.as_ref().unwrap_or(input));
                        call = Call::of(tool, &now, workspace);
                        if let Some(verdict) = call.spoils(protected, self.fail_closed) {
                            return done(verdict, None);
                        }
                        changed = Some(now);
                    }
                },
                Fits::Unknown(why) => match rule.then {
                    Then::Deny | Then::Ask if self.fail_closed => {
                        let name = rule.name(number);
                        let reason = format!("the rule {name} can't judge this call ({why}), and so it is denied");
                        return done(Verdict::Deny { rule: name, reason }, None);
                    }
                    Then::Deny | Then::Ask | Then::Allow | Then::Change => {}
                },
            }
        }
        done(Verdict::Open, changed)
    }
}

enum Fits {
    Yes,
    No,
    /// Nobody can say, and why.
    Unknown(&'static str),
}

impl ToolRule {
    fn check(&self, field: &str) -> Result<(), OutOfBounds> {
        let kinds =
            [("tools", &self.tools), ("paths", &self.paths), ("commands", &self.commands), ("hosts", &self.hosts)];
        if kinds.iter().all(|(_, patterns)| patterns.is_empty()) {
            return refuse(field, "is about nothing: it needs `tools`, `paths`, `commands` or `hosts`");
        }
        for (kind, patterns) in kinds {
            let field = format!("{field}.{kind}");
            if patterns.len() > MOST_PATTERNS {
                return refuse(&field, format!("has {} patterns; at most {MOST_PATTERNS} are allowed", patterns.len()));
            }
            for pattern in patterns {
                line(&field, pattern, PATTERN)?;
            }
        }
        for path in &self.paths {
            if path.split('/').any(|part| matches!(part, "." | "..")) {
                return refuse(&format!("{field}.paths"), format!("`{path}` must be plain, without `.` and `..`"));
            }
        }
        if let Some(reason) = &self.reason {
            line(&format!("{field}.reason"), reason, REASON)?;
        }
        match (self.then, &self.set) {
            (Then::Change, Some(set)) if !set.is_empty() => Ok(()),
            (Then::Change, _) => refuse(field, "changes nothing: it needs `set`"),
            (Then::Allow | Then::Ask | Then::Deny, None) => Ok(()),
            (Then::Allow | Then::Ask | Then::Deny, Some(_)) => refuse(field, "`set` is for `then: change`"),
        }
    }

    /// Tools are always known. What else it needs may not be: then it fits only if all that is known does.
    fn fits(&self, call: &Call) -> Fits {
        let tool = call.tool.to_lowercase();
        if !self.tools.is_empty() && !self.tools.iter().any(|name| glob::word(&name.to_lowercase(), &tool)) {
            return Fits::No;
        }
        let given = [
            (&self.paths, call.paths.iter().any(|path| self.paths.iter().any(|pattern| glob::path(pattern, path)))),
            (
                &self.commands,
                call.commands.iter().any(|words| self.commands.iter().any(|pattern| glob::command(pattern, words))),
            ),
            (
                &self.hosts,
                call.hosts
                    .iter()
                    .any(|host| self.hosts.iter().any(|pattern| glob::word(&pattern.to_lowercase(), host))),
            ),
        ];
        if given.iter().all(|(patterns, fits)| patterns.is_empty() || *fits) {
            return Fits::Yes;
        }
        match call.unclear {
            Some(why) => Fits::Unknown(why),
            None => Fits::No,
        }
    }

    fn name(&self, number: usize) -> String {
        format!("rules[{number}]")
    }

    fn denies(&self, number: usize) -> Verdict {
        let rule = self.name(number);
        let reason = self.reason.clone().unwrap_or_else(|| format!("the project's rules deny it ({rule})"));
        Verdict::Deny { rule, reason }
    }

    fn applied_to(&self, input: &Value) -> Value {
        let mut now = input.clone();
        if let (Value::Object(fields), Some(set)) = (&mut now, &self.set) {
            fields.extend(set.clone());
        }
        now
    }
}

impl Call {
    /// Whether it would change what must not be changed.
    fn spoils(&self, protected: &[String], fail_closed: bool) -> Option<Verdict> {
        if protected.is_empty() {
            return None;
        }
        let reason = match self.touched(protected) {
            Some(path) => format!(
                "`{path}` is protected: it is read-only here and must stay as it is. Leave it alone, and say so if the task can't be done without changing it"
            ),
            None => {
                let why = self.unclear.filter(|_| fail_closed)?;
                format!("whether this call leaves protected paths alone can't be judged ({why}), and so it is denied")
            }
        };
        Some(Verdict::Deny { rule: PROTECTED.to_owned(), reason })
    }

    /// The first path that it would change though it is protected.
    pub fn touched(&self, protected: &[String]) -> Option<&str> {
        let touches = |path: &&String| path.as_str() == "." || protected::touches(protected, path);
        self.writes.iter().find(touches).map(String::as_str).filter(|_| !protected.is_empty())
    }
}
