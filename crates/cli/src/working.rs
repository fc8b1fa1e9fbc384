//! Flags that say how an agent works: its mode, its tools, and whether it works until checks pass.

use crate::arguments::word;
use atoll_core::continuous::Requirement;
use atoll_core::sandbox::{Approvals, Mode};
use serde_json::{Map, Value, json};

#[derive(Debug, Default, clap::Args)]
pub struct Working {
    /// What it is asked to do: exploration, implementation or validation; chooses among its settings
    #[arg(long, value_name = "MODE", value_parser = word::<Mode>)]
    mode: Option<Mode>,
    /// What it may do without asking: full, edits or ask [default: the project's, else full where the isolation is
    /// strong, and edits where it is not]
    #[arg(long, value_name = "WHAT", value_parser = word::<Approvals>)]
    approvals: Option<Approvals>,
    /// Work until the project's checks pass: what fails goes back to the agent
    #[arg(long)]
    continuous: bool,
    /// A command that must succeed, run in the sandbox after each run of the agent; several times; means --continuous
    #[arg(long = "check", value_name = "COMMAND")]
    checks: Vec<String>,
    /// What must be so: clean, committed, pushed or pull_request; several times; means --continuous
    /// [default with a repository: clean and committed]
    #[arg(long = "require", value_name = "WHAT", value_parser = word::<Requirement>)]
    require: Vec<Requirement>,
    /// Give up after this many runs of the agent; means --continuous [default: continuous.iterations]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    iterations: Option<u32>,
    /// Said to the agent beside its own instructions
    #[arg(long, value_name = "TEXT")]
    system_prompt: Option<String>,
    /// A tool that the agent has; several times: those and no others
    #[arg(long = "tool", value_name = "NAME")]
    tools: Vec<String>,
    /// A tool that the agent has not, such as WebFetch; several times
    #[arg(long = "deny-tool", value_name = "NAME")]
    denied_tools: Vec<String>,
}

impl Working {
    /// Puts what was said into the body of a request; the rest is the project's.
    pub fn put(&self, body: &mut Map<String, Value>) {
        let mut put = |field: &str, value: Option<Value>| body.extend(value.map(|value| (field.to_owned(), value)));
        let some = |names: &[String]| (!names.is_empty()).then(|| json!(names));
        put("mode", self.mode.map(|mode| mode.as_str().into()));
        put("approvals", self.approvals.map(|approvals| approvals.as_str().into()));
        put("system_prompt", self.system_prompt.clone().map(Value::from));
        put("tools", some(&self.tools));
        put("denied_tools", some(&self.denied_tools));
        put("continuous", self.continuous_body());
    }

    fn continuous_body(&self) -> Option<Value> {
        let said = self.continuous || !self.checks.is_empty() || !self.require.is_empty() || self.iterations.is_some();
        let mut body = Map::new();
        if !self.checks.is_empty() {
            body.insert("checks".to_owned(), json!(self.checks));
        }
        if !self.require.is_empty() {
            body.insert("require".to_owned(), json!(self.require));
        }
        body.extend(self.iterations.map(|most| ("iterations".to_owned(), most.into())));
        said.then_some(Value::Object(body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(working: &Working) -> Value {
        let mut body = Map::new();
        working.put(&mut body);
        Value::Object(body)
    }

    #[test]
    fn nothing_said_is_nothing_sent_and_a_check_turns_it_on() {
        assert_eq!(body(&Working::default()), json!({}));
        assert_eq!(body(&Working { continuous: true, ..Working::default() }), json!({"continuous": {}}));
        let checks = vec!["make test".to_owned()];
        let checked = Working { checks, mode: Some(Mode::Implementation), ..Working::default() };
        assert_eq!(body(&checked), json!({"mode": "implementation", "continuous": {"checks": ["make test"]}}));
    }
}
