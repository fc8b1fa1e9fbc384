//! Tool policies: rules that decide about a tool call before it runs, by the tool's name and by the paths, commands and
//! hosts that it names. Pure, and takes microseconds.
//!
//! Rules guide an agent; they are not a security boundary, since a command can hide its effects from static analysis.
//! The boundary is the sandbox with its read-only mounts and its network policy.

use crate::bounds::{OutOfBounds, check_line, reject_field};
use crate::{protected_paths, string_enum};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

mod call;
mod glob;
mod shell;
#[cfg(test)]
mod tests;

pub use call::{AnalysedCall, ToolEffect, tool_effect};
pub(crate) use glob::matches_path;

pub const MAX_RULES: usize = 100;
const MAX_PATTERNS: usize = 64;
const MAX_PATTERN_CHARS: usize = 512;
const MAX_REASON_CHARS: usize = 500;

string_enum! {
    /// Action of a rule.
    "rule action"
    RuleAction {
        /// The call runs without approval.
        Allow = "allow",
        /// A user must approve, independent of the approval mode.
        Ask = "ask",
        Deny = "deny",
        /// Changes the input and continues with the next rule.
        Change = "change",
    }
}

/// One rule. For each kind of pattern that it has, at least one pattern must match.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolRule {
    /// Tool names; `*` matches any characters: `Bash`, `mcp__*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// Paths named by the call, relative to the workspace or absolute. `*` matches within a name, `**` any directories.
    /// A directory includes everything in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// The first words of a command: `git push`, `rm -rf *`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
    /// Hosts of URLs: `example.com`, `*.example.com`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    pub then: RuleAction,
    /// Explanation sent to the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// With `change`: fields to set in the input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub set: Option<Map<String, Value>>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolPolicy {
    /// The first matching rule decides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<ToolRule>,
    /// Deny a call that a denying or asking rule cannot judge. Otherwise such a rule is skipped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fail_closed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyVerdict {
    /// No rule matches.
    NoMatchingRule,
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
pub struct PolicyDecision {
    pub verdict: PolicyVerdict,
    /// Replacement of the call's input.
    pub input: Option<Value>,
}

/// Name of the built-in rule for protected paths.
pub const PROTECTED_PATHS_RULE: &str = "protected";

impl ToolPolicy {
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Puts a project's rules before a sandbox's, which cannot weaken them. `fail_closed` if either sets it.
    pub fn join_policies(first: Option<Self>, then: Option<Self>) -> Option<Self> {
        match (first, then) {
            (Some(mut first), Some(then)) => {
                first.rules.extend(then.rules);
                first.fail_closed |= then.fail_closed;
                Some(first)
            }
            (first, then) => first.or(then),
        }
    }

    /// Validates the rules. Rejects rules that could never match.
    pub fn check_bounds(&self, field: &str) -> Result<(), OutOfBounds> {
        if self.rules.len() > MAX_RULES {
            return reject_field(field, format!("has {} rules; at most {MAX_RULES} are allowed", self.rules.len()));
        }
        for (number, rule) in self.rules.iter().enumerate() {
            rule.check_bounds(&format!("{field}.rules[{number}]"))?;
        }
        Ok(())
    }

    /// Decides about a call. Relative paths start at `workspace`; no rule can allow changes of `protected` paths.
    pub fn decide_call(&self, tool: &str, input: &Value, workspace: &str, protected: &[String]) -> PolicyDecision {
        let mut call = AnalysedCall::from_input(tool, input, workspace);
        let mut changed: Option<Value> = None;
        let done = |verdict, input| PolicyDecision { verdict, input };
        if let Some(verdict) = call.deny_protected_change(protected, self.fail_closed) {
            return done(verdict, None);
        }
        for (number, rule) in self.rules.iter().enumerate() {
            match rule.match_call(&call) {
                RuleMatch::No => {}
                RuleMatch::Yes => match rule.then {
                    RuleAction::Allow => return done(PolicyVerdict::Allow, changed),
                    RuleAction::Ask => return done(PolicyVerdict::Ask { rule: rule.name(number) }, changed),
                    RuleAction::Deny => return done(rule.denial_verdict(number), None),
                    RuleAction::Change => {
                        let now = rule.change_input(changed.as_ref().unwrap_or(input));
                        call = AnalysedCall::from_input(tool, &now, workspace);
                        if let Some(verdict) = call.deny_protected_change(protected, self.fail_closed) {
                            return done(verdict, None);
                        }
                        changed = Some(now);
                    }
                },
                RuleMatch::Unknown(why) => match rule.then {
                    RuleAction::Deny | RuleAction::Ask if self.fail_closed => {
                        let name = rule.name(number);
                        let reason = format!("the rule {name} cannot judge this call ({why}), so it is denied");
                        return done(PolicyVerdict::Deny { rule: name, reason }, None);
                    }
                    RuleAction::Deny | RuleAction::Ask | RuleAction::Allow | RuleAction::Change => {}
                },
            }
        }
        done(PolicyVerdict::NoMatchingRule, changed)
    }
}

enum RuleMatch {
    Yes,
    No,
    /// Undecidable, with the reason.
    Unknown(&'static str),
}

impl ToolRule {
    fn check_bounds(&self, field: &str) -> Result<(), OutOfBounds> {
        let kinds =
            [("tools", &self.tools), ("paths", &self.paths), ("commands", &self.commands), ("hosts", &self.hosts)];
        if kinds.iter().all(|(_, patterns)| patterns.is_empty()) {
            return reject_field(field, "matches nothing: it needs `tools`, `paths`, `commands` or `hosts`");
        }
        for (kind, patterns) in kinds {
            let field = format!("{field}.{kind}");
            if patterns.len() > MAX_PATTERNS {
                return reject_field(
                    &field,
                    format!("has {} patterns; at most {MAX_PATTERNS} are allowed", patterns.len()),
                );
            }
            for pattern in patterns {
                check_line(&field, pattern, MAX_PATTERN_CHARS)?;
            }
        }
        for path in &self.paths {
            if path.split('/').any(|part| matches!(part, "." | "..")) {
                return reject_field(
                    &format!("{field}.paths"),
                    format!("`{path}` must be plain, without `.` and `..`"),
                );
            }
        }
        if let Some(reason) = &self.reason {
            check_line(&format!("{field}.reason"), reason, MAX_REASON_CHARS)?;
        }
        match (self.then, &self.set) {
            (RuleAction::Change, Some(set)) if !set.is_empty() => Ok(()),
            (RuleAction::Change, _) => reject_field(field, "changes nothing: it needs `set`"),
            (RuleAction::Allow | RuleAction::Ask | RuleAction::Deny, None) => Ok(()),
            (RuleAction::Allow | RuleAction::Ask | RuleAction::Deny, Some(_)) => {
                reject_field(field, "`set` is for `then: change`")
            }
        }
    }

    /// Matches the rule. The tool's name is always known; if other facts are not, the known ones must match.
    fn match_call(&self, call: &AnalysedCall) -> RuleMatch {
        let tool = call.tool.to_lowercase();
        if !self.tools.is_empty() && !self.tools.iter().any(|name| glob::matches_text(&name.to_lowercase(), &tool)) {
            return RuleMatch::No;
        }
        let conditions = [
            (&self.paths, call.paths.iter().any(|path| self.paths.iter().any(|pattern| matches_path(pattern, path)))),
            (
                &self.commands,
                call.commands
                    .iter()
                    .any(|words| self.commands.iter().any(|pattern| glob::matches_command(pattern, words))),
            ),
            (
                &self.hosts,
                call.hosts
                    .iter()
                    .any(|host| self.hosts.iter().any(|pattern| glob::matches_text(&pattern.to_lowercase(), host))),
            ),
        ];
        if conditions.iter().all(|(patterns, fits)| patterns.is_empty() || *fits) {
            return RuleMatch::Yes;
        }
        match call.incomplete_reason {
            Some(why) => RuleMatch::Unknown(why),
            None => RuleMatch::No,
        }
    }

    fn name(&self, number: usize) -> String {
        format!("rules[{number}]")
    }

    fn denial_verdict(&self, number: usize) -> PolicyVerdict {
        let rule = self.name(number);
        let reason = self.reason.clone().unwrap_or_else(|| format!("the project's rules deny it ({rule})"));
        PolicyVerdict::Deny { rule, reason }
    }

    fn change_input(&self, input: &Value) -> Value {
        let mut now = input.clone();
        if let (Value::Object(fields), Some(set)) = (&mut now, &self.set) {
            fields.extend(set.clone());
        }
        now
    }
}

impl AnalysedCall {
    /// Denies a call that would change a protected path.
    fn deny_protected_change(&self, protected: &[String], fail_closed: bool) -> Option<PolicyVerdict> {
        if protected.is_empty() {
            return None;
        }
        let reason = match self.changed_protected_path(protected) {
            Some(path) => format!(
                "`{path}` is protected: it is read-only here and must stay as it is. Leave it alone, and say so if the task cannot be done without changing it"
            ),
            None => {
                let why = self.incomplete_reason.filter(|_| fail_closed)?;
                format!("cannot tell if this call changes protected paths ({why}), so it is denied")
            }
        };
        Some(PolicyVerdict::Deny { rule: PROTECTED_PATHS_RULE.to_owned(), reason })
    }

    /// Returns the first protected path that the call would change.
    pub fn changed_protected_path(&self, protected: &[String]) -> Option<&str> {
        let touches = |path: &&String| path.as_str() == "." || protected_paths::touches_protected_path(protected, path);
        self.writes.iter().find(touches).map(String::as_str).filter(|_| !protected.is_empty())
    }
}
