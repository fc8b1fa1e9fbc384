//! Sentences for events of tasks. Pure.

use super::fact::Fact;
use atoll_api::events::{EventData, TaskSetback};

/// The sentence of a task's event; `None` for other events.
pub fn describe_task_event(data: &EventData) -> Option<Fact> {
    Some(match data {
        EventData::TaskAssigned(task) => Fact::note(format!("the sandbox got the task {}", task.task_id)),
        EventData::TaskRunning(_) => Fact::note("the agent works on its task"),
        EventData::TaskWarned(left) => Fact::warning(format!("the task ends in {} s", left.left_s)),
        EventData::TaskInterrupted(left) => {
            Fact::warning(format!("the task reached its time limit; the sandbox ends in {} s", left.left_s))
        }
        EventData::TaskValidating(_) => Fact::note("the work on the task waits for a verdict"),
        EventData::TaskNeedsRevision(verdict) => Fact::warning(match &verdict.feedback {
            Some(feedback) => format!("a validation refused the work: {feedback}"),
            None => "a validation refused the work".to_owned(),
        }),
        EventData::TaskRetrying(setback) => Fact::warning(describe_setback("the attempt failed", setback)),
        EventData::TaskCompleted(_) => Fact::note("the task is completed"),
        EventData::TaskFailed(setback) => Fact::warning(describe_setback("the task failed", setback)),
        EventData::TaskCancelled(_) => Fact::note("the task is cancelled"),
        _ => return None,
    })
}

fn describe_setback(what: &str, setback: &TaskSetback) -> String {
    let again = setback.retry_s.map(|seconds| format!("; the next one may start in {seconds} s")).unwrap_or_default();
    format!("{what}: {}{again}", setback.reason.detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::id::TaskId;
    use atoll_core::sandbox::Reason;
    use atoll_core::task::FailureClass;

    #[test]
    fn a_setback_says_what_follows() {
        let setback = TaskSetback {
            task_id: TaskId::new(),
            class: Some(FailureClass::AgentCrash),
            reason: Reason::new("worker_died", "its worker died"),
            retries: 1,
            retry_s: Some(10),
        };
        let retrying = describe_task_event(&EventData::TaskRetrying(setback.clone())).unwrap();
        assert_eq!(retrying.head, "the attempt failed: its worker died; the next one may start in 10 s");
        let failed = EventData::TaskFailed(TaskSetback { retry_s: None, ..setback });
        assert_eq!(describe_task_event(&failed).unwrap().head, "the task failed: its worker died");
    }
}
