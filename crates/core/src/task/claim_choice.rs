//! The choice of the next task to claim, among the oldest ready tasks of each standing.

use super::{OwnedFiles, Standing};
use crate::id::{ProjectId, TaskId};
use crate::time::Timestamp;

/// A task that waits only for a slot.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    pub id: TaskId,
    pub project: ProjectId,
    /// The actor who created the task.
    pub owner: String,
    pub standing: Standing,
    pub queued_since: Timestamp,
    pub owned_files: OwnedFiles,
}

/// A task that occupies a slot.
#[derive(Debug, Clone, PartialEq)]
pub struct ActiveTask {
    pub id: TaskId,
    pub project: ProjectId,
    pub owner: String,
    pub owned_files: OwnedFiles,
}

/// Maximum numbers of active tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DispatchLimits {
    pub overall: usize,
    pub per_project: usize,
    pub per_user: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    Claim(TaskId),
    /// The best candidate shares files with an active task of its project: it waits for that one.
    WaitForFiles {
        task: TaskId,
        holder: TaskId,
    },
}

/// Chooses the candidate with the highest score that the limits admit. Of equal scores, the project with fewer active
/// tasks comes first, then the older task.
pub fn choose_next(
    candidates: &[Candidate],
    active: &[ActiveTask],
    limits: &DispatchLimits,
    now: Timestamp,
) -> Option<Choice> {
    if active.len() >= limits.overall {
        return None;
    }
    let in_project = |project| active.iter().filter(|task| task.project == project).count();
    let of_user = |owner: &str| active.iter().filter(|task| task.owner == owner).count();
    let score = |task: &Candidate| task.standing.score(now.elapsed_since(task.queued_since));
    let best = candidates
        .iter()
        .filter(|task| in_project(task.project) < limits.per_project && of_user(&task.owner) < limits.per_user)
        .max_by(|a, b| {
            let fewer = || in_project(b.project).cmp(&in_project(a.project));
            let older = || b.queued_since.cmp(&a.queued_since).then_with(|| b.id.cmp(&a.id));
            score(a).total_cmp(&score(b)).then_with(fewer).then_with(older)
        })?;
    let holder = active
        .iter()
        .find(|task| task.project == best.project && task.owned_files.overlaps(&best.owned_files))
        .map(|task| task.id);
    Some(match holder {
        Some(holder) => Choice::WaitForFiles { task: best.id, holder },
        None => Choice::Claim(best.id),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::DeadlineLevel;
    use crate::ticket::TicketPriority;
    use std::time::Duration;

    const LIMITS: DispatchLimits = DispatchLimits { overall: 4, per_project: 2, per_user: 3 };

    fn now() -> Timestamp {
        Timestamp::from_micros(0) + Duration::from_secs(100_000)
    }

    fn candidate(project: ProjectId, owner: &str, priority: TicketPriority, age_s: u64, files: &str) -> Candidate {
        Candidate {
            id: TaskId::new(),
            project,
            owner: owner.into(),
            standing: Standing::new(priority, DeadlineLevel::Far, 0, 0, 3),
            queued_since: now() - Duration::from_secs(age_s),
            owned_files: OwnedFiles(files.split_whitespace().map(str::to_owned).collect()),
        }
    }

    fn active(task: &Candidate) -> ActiveTask {
        let Candidate { id, project, owner, owned_files, .. } = task.clone();
        ActiveTask { id, project, owner, owned_files }
    }

    #[test]
    fn the_highest_score_within_the_limits_wins() {
        let (one, two) = (ProjectId::new(), ProjectId::new());
        let urgent = candidate(one, "a", TicketPriority::Critical, 0, "");
        let usual = candidate(two, "b", TicketPriority::Medium, 0, "");
        let both = [usual.clone(), urgent.clone()];
        let choose = |candidates: &[Candidate], active: &[ActiveTask]| choose_next(candidates, active, &LIMITS, now());
        assert_eq!(choose(&both, &[]), Some(Choice::Claim(urgent.id)));
        let other = |project, owner: &str| active(&candidate(project, owner, TicketPriority::Low, 0, ""));
        let full = [other(one, "x"), other(one, "y")];
        assert_eq!(choose(&both, &full), Some(Choice::Claim(usual.id)), "the project is full");
        let busy = [other(two, "a"), other(ProjectId::new(), "a"), other(ProjectId::new(), "a")];
        assert_eq!(choose(&both, &busy), Some(Choice::Claim(usual.id)), "the user is busy");
        let all: Vec<_> = (0..4).map(|_| other(ProjectId::new(), "z")).collect();
        assert_eq!(choose(&both, &all), None, "every slot is occupied");
        assert_eq!(choose(&[], &[]), None);
    }

    #[test]
    fn equal_scores_go_to_the_quieter_project_then_to_the_older_task() {
        let (one, two) = (ProjectId::new(), ProjectId::new());
        let loud = candidate(one, "a", TicketPriority::High, 9_000, "");
        let quiet = candidate(two, "b", TicketPriority::Medium, 8_000, "");
        // Both are over two hours old, but only 0.5875 and 0.475 without the floor.
        let running = [active(&candidate(one, "a", TicketPriority::Low, 0, ""))];
        let both = [loud.clone(), quiet.clone()];
        assert_eq!(choose_next(&both, &running, &LIMITS, now()), Some(Choice::Claim(quiet.id)));
        assert_eq!(choose_next(&both, &[], &LIMITS, now()), Some(Choice::Claim(loud.id)));
    }

    #[test]
    fn two_tasks_with_the_same_files_do_not_run_together() {
        let (one, two) = (ProjectId::new(), ProjectId::new());
        let running = candidate(one, "a", TicketPriority::Low, 0, "src/**");
        let same = candidate(one, "a", TicketPriority::High, 0, "docs src/lib.rs");
        let chosen = choose_next(std::slice::from_ref(&same), &[active(&running)], &LIMITS, now());
        assert_eq!(chosen, Some(Choice::WaitForFiles { task: same.id, holder: running.id }));
        let elsewhere = candidate(two, "a", TicketPriority::High, 0, "src/lib.rs");
        let chosen = choose_next(std::slice::from_ref(&elsewhere), &[active(&running)], &LIMITS, now());
        assert_eq!(chosen, Some(Choice::Claim(elsewhere.id)), "another project has other files");
    }
}
