//! Tool calls that the guardian denies: repetitions of earlier calls.

use super::Executor;
use atoll_drivers::{AgentRequest, RequestKind};
use atoll_protocol::frame::DeniedCall;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Rule name of the guardian's denials.
pub(super) const GUARDIAN_RULE: &str = "guardian";
/// Number of earlier calls to remember.
const MAX_CALLS: usize = 256;
const MAX_DENIALS: usize = 64;

#[derive(Debug, Default)]
pub(super) struct CallDenials {
    /// Ids and hashes of earlier calls, newest last.
    calls: VecDeque<(String, u64)>,
    /// Reasons by the hash of the denied call.
    denied: BTreeMap<u64, String>,
}

impl CallDenials {
    /// Records a call. Returns the reason if the guardian denies it.
    pub(super) fn check_call(&mut self, request: &AgentRequest) -> Option<String> {
        if request.kind == RequestKind::Question {
            return None;
        }
        let hash = hash_call(request);
        if let Some(id) = &request.tool_use_id {
            if self.calls.len() >= MAX_CALLS {
                self.calls.pop_front();
            }
            self.calls.push_back((id.clone(), hash));
        }
        self.denied.get(&hash).cloned()
    }

    /// Adds denials. A call that this worker does not remember cannot be denied.
    pub(super) fn add_denials(&mut self, calls: Vec<DeniedCall>) {
        for DeniedCall { tool_use_id, reason } in calls {
            let known = self.calls.iter().rev().find(|(id, _)| *id == tool_use_id);
            if let Some((_, hash)) = known
                && self.denied.len() < MAX_DENIALS
            {
                self.denied.insert(*hash, reason);
            }
        }
    }
}

fn hash_call(request: &AgentRequest) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&request.tool, request.input.to_string()).hash(&mut hasher);
    hasher.finish()
}

impl Executor {
    pub(super) fn workspace_path(&self) -> String {
        self.tools.workspace.to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn request(id: &str, command: &str) -> AgentRequest {
        AgentRequest {
            id: String::new(),
            kind: RequestKind::BeforeTool,
            tool_use_id: Some(id.to_owned()),
            tool: "Bash".to_owned(),
            input: json!({"command": command}),
        }
    }

    #[test]
    fn denies_the_same_call_but_no_other() {
        let mut denials = CallDenials::default();
        assert_eq!(denials.check_call(&request("t1", "make")), None);
        let of = |id: &str| DeniedCall { tool_use_id: id.to_owned(), reason: "it changes nothing".to_owned() };
        denials.add_denials(vec![of("t1"), of("unknown")]);
        assert_eq!(denials.check_call(&request("t2", "make")).as_deref(), Some("it changes nothing"));
        assert_eq!(denials.check_call(&request("t3", "make test")), None);
    }

    #[test]
    fn memory_is_bounded() {
        let mut denials = CallDenials::default();
        for n in 0..1000 {
            let id = n.to_string();
            denials.check_call(&request(&id, &id));
            denials.add_denials(vec![DeniedCall { tool_use_id: id, reason: String::new() }]);
        }
        assert_eq!((denials.calls.len(), denials.denied.len()), (MAX_CALLS, MAX_DENIALS));
    }
}
