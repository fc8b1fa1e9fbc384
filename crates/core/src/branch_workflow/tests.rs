use super::*;

fn at(step: WorkflowStep, goal: WorkflowGoal) -> WorkflowProgress {
    WorkflowProgress { step, ..WorkflowProgress::start(goal) }
}

const NOW: Timestamp = Timestamp::from_micros(1_000_000);
const RETRY: StepOutcome = StepOutcome::Retry { after: None };

#[test]
fn each_goal_has_its_steps() {
    for (goal, steps) in [(WorkflowGoal::Push, 3), (WorkflowGoal::PullRequest, 4), (WorkflowGoal::Merge, 7)] {
        let mut progress = WorkflowProgress::start(goal);
        let mut visited = vec![progress.step];
        loop {
            let (to, effect) = next(&progress, StepOutcome::Finished, NOW);
            progress = to;
            if effect == WorkflowEffect::Rest {
                break;
            }
            visited.push(progress.step);
        }
        assert_eq!(visited, &WorkflowStep::ALL[..steps], "{goal}");
        assert_eq!(progress.state, WorkflowState::Done);
    }
}

#[test]
fn every_step_and_outcome_ends_or_runs_again() {
    for step in WorkflowStep::ALL {
        for outcome in [
            StepOutcome::Finished,
            StepOutcome::Outdated,
            StepOutcome::Conflict,
            StepOutcome::Undecided,
            RETRY,
            StepOutcome::Refused,
        ] {
            let (to, effect) = next(&at(*step, WorkflowGoal::Merge), outcome, NOW);
            let rests = matches!(to.state, WorkflowState::Done | WorkflowState::Failed | WorkflowState::WaitingAgent);
            assert_eq!(rests, effect == WorkflowEffect::Rest, "{step} {outcome:?}");
        }
    }
}

#[test]
fn an_outdated_branch_gets_its_base_first() {
    for step in [WorkflowStep::Push, WorkflowStep::PullRequest, WorkflowStep::Merge] {
        let (to, _) = next(&at(step, WorkflowGoal::Merge), StepOutcome::Outdated, NOW);
        assert_eq!((to.step, to.needs_base, to.updates), (WorkflowStep::Update, true, 1));
        let (to, _) = next(&to, StepOutcome::Finished, NOW);
        assert_eq!((to.step, to.needs_base), (WorkflowStep::Push, false));
    }
    let restless = WorkflowProgress { updates: MAX_UPDATES, ..at(WorkflowStep::Push, WorkflowGoal::Push) };
    assert_eq!(next(&restless, StepOutcome::Outdated, NOW).0.state, WorkflowState::Failed);
}

#[test]
fn retries_back_off_and_end() {
    let mut progress = at(WorkflowStep::Push, WorkflowGoal::Push);
    let mut delays = Vec::new();
    loop {
        let (to, effect) = next(&progress, RETRY, NOW);
        progress = to;
        let WorkflowEffect::RunStep(delay) = effect else { break };
        delays.push(delay.as_secs());
    }
    assert_eq!(delays, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
    assert_eq!((progress.state, progress.step), (WorkflowState::Failed, WorkflowStep::Push));
    let demanded = StepOutcome::Retry { after: Some(Duration::from_secs(900)) };
    let (_, effect) = next(&at(WorkflowStep::Push, WorkflowGoal::Push), demanded, NOW);
    assert_eq!(effect, WorkflowEffect::RunStep(Duration::from_secs(900)));
    // The next step starts with all of its attempts.
    let tired = WorkflowProgress { attempts: 5, ..at(WorkflowStep::Push, WorkflowGoal::Merge) };
    assert_eq!(next(&tired, StepOutcome::Finished, NOW).0.attempts, 0);
}

#[test]
fn a_merge_waits_until_its_time_is_over() {
    let (waiting, effect) = next(&at(WorkflowStep::Merge, WorkflowGoal::Merge), StepOutcome::Undecided, NOW);
    assert_eq!((waiting.state, waiting.waiting_since), (WorkflowState::Waiting, Some(NOW)));
    assert_eq!(effect, WorkflowEffect::RunStep(Duration::from_secs(1)));
    let late = NOW + MERGE_TIMEOUT;
    assert_eq!(next(&waiting, StepOutcome::Undecided, late).0.state, WorkflowState::Failed);
    assert_eq!(next(&waiting, StepOutcome::Finished, late).0.step, WorkflowStep::DeleteBranch);
}

#[test]
fn a_long_wait_survives_failures_of_the_forge() {
    let mut progress = at(WorkflowStep::Merge, WorkflowGoal::Merge);
    for _ in 0..100 {
        progress = next(&progress, StepOutcome::Undecided, NOW).0;
    }
    // The polls are no failures: the first failure is reported, and backs off from the start.
    let (failed_once, effect) = next(&progress, RETRY, NOW);
    assert_eq!((failed_once.state, failed_once.attempts), (WorkflowState::Running, 1));
    assert_eq!(effect, WorkflowEffect::RunStep(Duration::from_secs(1)));
    let (waiting, effect) = next(&failed_once, StepOutcome::Undecided, NOW);
    assert_eq!((waiting.attempts, waiting.waiting_since), (0, Some(NOW)));
    assert_eq!(effect, WorkflowEffect::RunStep(MAX_POLL_INTERVAL), "the polls go on at their own interval");
    // An outage of hours does not end a wait of days.
    for _ in 0..=MAX_ATTEMPTS {
        progress = next(&progress, RETRY, NOW).0;
    }
    assert_eq!(progress.state, WorkflowState::Running);
    assert_eq!(next(&progress, RETRY, NOW + MERGE_TIMEOUT).0.state, WorkflowState::Failed);
}

#[test]
fn the_agent_gets_a_bounded_number_of_conflicts() {
    let mut progress = at(WorkflowStep::Update, WorkflowGoal::PullRequest);
    for _ in 0..MAX_CONFLICTS {
        progress = next(&progress, StepOutcome::Conflict, NOW).0;
        assert_eq!(progress.state, WorkflowState::WaitingAgent);
        progress = WorkflowProgress { step: WorkflowStep::Update, ..progress.restart(WorkflowGoal::Push) };
        assert_eq!((progress.state, progress.goal), (WorkflowState::Running, WorkflowGoal::PullRequest));
    }
    assert_eq!(next(&progress, StepOutcome::Conflict, NOW).0.state, WorkflowState::Failed);
}

#[test]
fn a_restart_does_not_push_a_merged_branch_again() {
    for step in [WorkflowStep::DeleteBranch, WorkflowStep::UpdateDependants] {
        let failed = WorkflowProgress { state: WorkflowState::Failed, ..at(step, WorkflowGoal::Merge) };
        assert_eq!(failed.restart(WorkflowGoal::Push).step, step);
    }
    let failed = WorkflowProgress { state: WorkflowState::Failed, ..at(WorkflowStep::Push, WorkflowGoal::Push) };
    assert_eq!(failed.restart(WorkflowGoal::Merge), WorkflowProgress::start(WorkflowGoal::Merge));
    let done =
        WorkflowProgress { state: WorkflowState::Done, ..at(WorkflowStep::UpdateDependants, WorkflowGoal::Merge) };
    assert_eq!(done.restart(WorkflowGoal::Push).step, WorkflowStep::Export);
}

#[test]
fn settings_choose_the_goal() {
    let goal = |publish, merge| WorkflowGoal::from_settings(&GitSettings { publish, merge, ..GitSettings::default() });
    assert_eq!(goal(None, Some(true)), None);
    assert_eq!(goal(Some(Publication::None), None), None);
    assert_eq!(goal(Some(Publication::Push), Some(true)), Some(WorkflowGoal::Push));
    assert_eq!(goal(Some(Publication::PullRequest), None), Some(WorkflowGoal::PullRequest));
    assert_eq!(goal(Some(Publication::PullRequest), Some(true)), Some(WorkflowGoal::Merge));
}
