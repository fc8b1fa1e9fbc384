//! Agents as everybody knows them: their names, what they can do, and where their programs are in a sandbox.

use serde::{Deserialize, Serialize};

/// The agent that is built in and needs neither a program nor a model.
pub const DEMO: &str = "demo";

/// Where agents' programs are in a sandbox on this machine.
pub const PLACE: &str = "/opt/atoll/agents";

/// Where an agent's program is in a sandbox on this machine.
pub fn program_inside(name: &str) -> String {
    format!("{PLACE}/{}", below_place(name))
}

/// The same, as it is told to a provider.
pub fn below_place(name: &str) -> String {
    format!("{name}/bin/{name}")
}

/// Whether this may be an agent's own name for a conversation: it becomes a part of paths and command lines.
pub fn is_native_id(text: &str) -> bool {
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=128).contains(&text.len()) && !text.starts_with('-') && text.bytes().all(letters)
}

/// What an agent can do through its driver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Abilities {
    /// Take a message in the running turn.
    pub steer: bool,
    /// Take messages while it works, for later.
    pub queue: bool,
    /// Break off a turn and live on.
    pub interrupt: bool,
    pub approvals: bool,
    pub questions: bool,
    pub hooks: bool,
    pub resume: bool,
    pub fork: bool,
    pub usage: bool,
    pub plan: bool,
}

impl Abilities {
    /// Those that there are, by name.
    pub fn names(self) -> Vec<&'static str> {
        let all = [
            ("steer", self.steer),
            ("queue", self.queue),
            ("interrupt", self.interrupt),
            ("approvals", self.approvals),
            ("questions", self.questions),
            ("hooks", self.hooks),
            ("resume", self.resume),
            ("fork", self.fork),
            ("usage", self.usage),
            ("plan", self.plan),
        ];
        all.into_iter().filter_map(|(name, has)| has.then_some(name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_conversations_lead_nowhere() {
        for good in ["ses_e1eb886c4ffe1vglhjd3kBEGz0", "019a6b1c-0000-7000-8000-000000000000"] {
            assert!(is_native_id(good), "{good}");
        }
        for bad in ["", "..", "a/b", "--help", "a b", "ä", &"x".repeat(129)] {
            assert!(!is_native_id(bad), "{bad}");
        }
    }

    #[test]
    fn every_ability_has_its_name() {
        let serde_json::Value::Object(fields) = serde_json::json!(Abilities::default()) else { unreachable!() };
        for (name, _) in fields.clone() {
            let mut one = fields.clone();
            one.insert(name.clone(), true.into());
            let abilities: Abilities = serde_json::from_value(one.into()).unwrap();
            assert_eq!(abilities.names(), [name]);
        }
    }
}
