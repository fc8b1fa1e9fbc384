//! For any order of inputs: the loop ends, within its limits, with the correct reason.

use super::check::{self, CheckResult};
use super::*;
use crate::bounds;
use crate::provider::CommandExit;
use proptest::prelude::*;

const SECOND: i64 = 1_000_000;

fn measurements(seconds: i64, cost: i64) -> LoopMeasurements {
    LoopMeasurements { steady_now: Timestamp::from_micros(seconds * SECOND), cost_micros: cost }
}

fn limits() -> LoopLimits {
    Continuous::default().loop_limits()
}

fn run(progress: &LoopProgress, inputs: &[LoopInput]) -> (LoopProgress, Vec<LoopEffect>) {
    let mut all = Vec::new();
    let mut progress = progress.clone();
    for input in inputs {
        let (to, effects) = next(&progress, *input, measurements(1, 0), &limits());
        progress = to;
        all.extend(effects);
    }
    (progress, all)
}

fn checked(round: u32, verdict: CheckVerdict) -> LoopInput {
    LoopInput::ChecksFinished { round, verdict }
}

#[test]
fn failed_checks_go_back_until_they_pass() {
    let start = LoopProgress::start_loop(measurements(0, 0));
    let inputs = [
        LoopInput::RunEnded,
        checked(1, CheckVerdict::Failed),
        LoopInput::RunBegan,
        LoopInput::RunEnded,
        LoopInput::RunEnded,
        checked(1, CheckVerdict::Passed),
        checked(2, CheckVerdict::Passed),
    ];
    let (progress, effects) = run(&start, &inputs);
    assert_eq!((progress.phase, progress.iteration, progress.round), (LoopPhase::Passed, 2, 2));
    assert_eq!(
        effects,
        [LoopEffect::RunChecks, LoopEffect::PromptAgent, LoopEffect::RunChecks, LoopEffect::EndLoop],
        "a late word counts not"
    );
}

#[test]
fn only_consecutive_errors_stop_the_loop() {
    let start = LoopProgress::start_loop(measurements(0, 0));
    let failed = [LoopInput::RunFailed, LoopInput::BackOffEnded];
    let (progress, effects) = run(&start, &failed.repeat(3));
    assert_eq!((progress.stopped, progress.errors), (Some(StopReason::Errors), 3));
    let rests: Vec<_> = effects.iter().filter(|effect| matches!(effect, LoopEffect::BackOff(_))).collect();
    assert_eq!(rests, [&LoopEffect::BackOff(Duration::from_secs(1)), &LoopEffect::BackOff(Duration::from_secs(2))]);
    let mut mixed = failed.repeat(2);
    mixed.extend([LoopInput::RunEnded, checked(1, CheckVerdict::Failed)]);
    mixed.extend(failed.repeat(2));
    assert!(run(&start, &mixed).0.is_live());
}

#[test]
fn an_interrupt_ends_the_loop_and_later_work_starts_another() {
    let start = LoopProgress::start_loop(measurements(0, 0));
    for before in [&[][..], &[LoopInput::RunEnded], &[LoopInput::RunFailed]] {
        let (progress, _) = run(&start, before);
        let (stopped, effects) = next(&progress, LoopInput::Interrupted, measurements(1, 0), &limits());
        assert_eq!(
            (stopped.stopped, &effects[..]),
            (Some(StopReason::Interrupted), &[LoopEffect::CancelChecks, LoopEffect::EndLoop][..])
        );
        assert_eq!(run(&stopped, &[LoopInput::RunBegan, LoopInput::RunEnded]), (stopped, Vec::new()));
    }
    let (passed, _) = run(&start, &[LoopInput::RunEnded, checked(1, CheckVerdict::Passed)]);
    let (again, effects) = run(&passed, &[LoopInput::RunBegan, LoopInput::RunEnded]);
    assert_eq!((again.phase, again.iteration, again.round), (LoopPhase::Validating, 1, 2));
    assert_eq!(effects, [LoopEffect::RunChecks]);
}

#[test]
fn unknown_does_not_pass_and_each_limit_has_its_reason() {
    let start = LoopProgress::start_loop(measurements(0, 5));
    let end = |verdict, measurements: LoopMeasurements, limits: &LoopLimits, iteration| {
        let progress = LoopProgress { phase: LoopPhase::Validating, round: 1, iteration, ..start.clone() };
        next(&progress, checked(1, verdict), measurements, limits).0.stopped
    };
    let costly = LoopLimits { max_cost_micros: Some(10), ..limits() };
    assert_eq!(end(CheckVerdict::Unknown, measurements(1, 5), &limits(), 1), Some(StopReason::Undecided));
    assert_eq!(end(CheckVerdict::Failed, measurements(1, 5), &limits(), 10), Some(StopReason::Iterations));
    assert_eq!(end(CheckVerdict::Failed, measurements(1, 15), &costly, 1), Some(StopReason::Cost));
    assert_eq!(end(CheckVerdict::Failed, measurements(1, 14), &costly, 1), None, "what was spent before is not its");
    assert_eq!(end(CheckVerdict::Failed, measurements(3600, 5), &limits(), 1), Some(StopReason::Duration));
    assert_eq!(end(CheckVerdict::Passed, measurements(9999, 99), &costly, 10), None, "what passes, passes");
    assert!(
        next(&start, LoopInput::DeadlineReached, measurements(3599, 0), &limits()).0.is_live(),
        "a deadline of an earlier loop"
    );
    assert_eq!(
        next(&start, LoopInput::DeadlineReached, measurements(3600, 0), &limits()).0.stopped,
        Some(StopReason::Duration)
    );
    assert_eq!(
        next(&start, LoopInput::CostLimitReached, measurements(1, 0), &costly).0.stopped,
        Some(StopReason::Cost)
    );
    assert!(
        next(&start, LoopInput::CostLimitReached, measurements(1, 0), &limits()).0.is_live(),
        "it has no such limit"
    );
    let (checking, _) = run(&start, &[LoopInput::RunEnded]);
    assert_eq!(
        next(&checking, LoopInput::CostLimitReached, measurements(1, 0), &costly).0,
        checking,
        "what is done may still pass"
    );
    assert_eq!((checking.max_total_cost_micros(&costly), checking.max_total_cost_micros(&limits())), (Some(15), None));
    assert_eq!(
        run(&checking, &[LoopInput::SandboxEnding]).0.max_total_cost_micros(&costly),
        None,
        "and then it bounds nothing"
    );
    let (spent, _) = next(&start, LoopInput::CostLimitReached, measurements(1, 12), &costly);
    assert_eq!(spent.max_total_cost_micros(&costly), Some(15), "its agent is still on its way out");
    assert_eq!(
        next(&spent, LoopInput::RunBegan, measurements(1, 12), &costly).0.max_total_cost_micros(&costly),
        Some(22)
    );
}

fn any_input() -> impl Strategy<Value = LoopInput> {
    let verdict = prop_oneof![Just(CheckVerdict::Passed), Just(CheckVerdict::Failed), Just(CheckVerdict::Unknown)];
    prop_oneof![
        3 => Just(LoopInput::RunBegan),
        5 => Just(LoopInput::RunEnded),
        2 => Just(LoopInput::RunFailed),
        2 => Just(LoopInput::BackOffEnded),
        5 => (0..4_u32, verdict).prop_map(|(round, verdict)| LoopInput::ChecksFinished { round, verdict }),
        1 => Just(LoopInput::Interrupted),
        1 => Just(LoopInput::DeadlineReached),
        1 => Just(LoopInput::CostLimitReached),
        1 => Just(LoopInput::SandboxEnding),
    ]
}

fn any_limits() -> impl Strategy<Value = LoopLimits> {
    (1..6_u32, proptest::option::of(1..100_i64), 1..200_u64, 1..4_u32).prop_map(
        |(iterations, cost, duration, errors)| LoopLimits {
            max_iterations: iterations,
            max_cost_micros: cost,
            max_duration: Duration::from_secs(duration),
            max_errors: errors,
        },
    )
}

proptest! {
    #[test]
    fn whatever_comes_it_keeps_its_promises(
        limits in any_limits(),
        inputs in proptest::collection::vec((any_input(), 0..20_i64, 0..20_i64), 0..60),
    ) {
        let mut progress = LoopProgress::start_loop(measurements(0, 0));
        let (mut now, mut cost) = (0, 0);
        for (input, seconds, spent) in inputs {
            now += seconds;
            cost += spent;
            let here = measurements(now, cost);
            let before = progress.clone();
            let (after, effects) = next(&before, input, here, &limits);
            prop_assert_eq!(&next(&before, input, here, &limits).0, &after, "the same leads to the same");
            prop_assert_eq!(after.phase == LoopPhase::Stopped, after.stopped.is_some(), "who stops says why");
            prop_assert!(after.iteration <= limits.max_iterations.max(1), "no run too many");
            prop_assert!(after.errors <= limits.max_errors);
            prop_assert!(after.round >= before.round, "rounds are never counted twice");
            // The loop ends once, and passes only by a verdict on the current round.
            let ends = before.is_live() && !after.is_live();
            prop_assert_eq!(effects.contains(&LoopEffect::EndLoop), ends);
            if after.phase == LoopPhase::Passed && before.phase != LoopPhase::Passed {
                prop_assert_eq!(input, LoopInput::ChecksFinished { round: before.round, verdict: CheckVerdict::Passed });
                prop_assert_eq!(before.phase, LoopPhase::Validating);
            }
            if effects.contains(&LoopEffect::PromptAgent) {
                prop_assert_eq!(after.iteration, before.iteration + 1, "a prompt begins a run");
                prop_assert_eq!(after.phase, LoopPhase::Working);
            }
            prop_assert_eq!(effects.contains(&LoopEffect::RunChecks), after.round > before.round);
            // An interrupt by a user takes effect at once in every phase.
            let person = next(&after, LoopInput::Interrupted, here, &limits).0;
            prop_assert!(!person.is_live());
            progress = after;
        }
    }

    /// An agent that never passes or never makes progress reaches a limit.
    #[test]
    fn the_loop_always_ends(limits in any_limits(), runs in proptest::collection::vec(any::<bool>(), 1..60)) {
        let mut progress = LoopProgress::start_loop(measurements(0, 0));
        let mut prompts = 0;
        for well in runs.into_iter().chain(std::iter::repeat_n(true, 12)) {
            if !progress.is_live() {
                break;
            }
            let inputs = if well { vec![LoopInput::RunEnded] } else { vec![LoopInput::RunFailed, LoopInput::BackOffEnded] };
            for input in inputs {
                let (to, effects) = next(&progress, input, measurements(0, 0), &limits);
                progress = to;
                prompts += u32::from(effects.contains(&LoopEffect::PromptAgent));
            }
            let (to, effects) = next(&progress, checked(progress.round, CheckVerdict::Failed), measurements(0, 0), &limits);
            progress = to;
            prompts += u32::from(effects.contains(&LoopEffect::PromptAgent));
        }
        prop_assert!(!progress.is_live());
        prop_assert!(prompts < limits.max_iterations, "the loop does not prompt the first run");
    }

    #[test]
    fn a_report_fits_a_message(
        checks in proptest::collection::vec(("[a€𝄞\\x1b]", 0..3000_usize, 0..300_usize, 0..6000_usize, 0..3_usize), 1..20),
    ) {
        let checks: Vec<CheckResult> = checks
            .into_iter()
            .map(|(piece, name, detail, output, verdict)| {
                let (name, detail, output) = (piece.repeat(name), piece.repeat(detail), piece.repeat(output));
                let verdict = CheckVerdict::ALL[verdict];
                CheckResult { name, verdict, exit: None, detail, output, duration_ms: 1 }
            })
            .collect();
        let text = check::failed_checks_message(&checks, 2, 10);
        prop_assert!(bounds::check_content("content", &text, bounds::MAX_MESSAGE_BYTES).is_ok(), "{}", text.len());
        prop_assert!(bounds::check_content("content", &check::failed_run_message(&checks[0].name, 1, 2), bounds::MAX_MESSAGE_BYTES).is_ok());
    }
}

#[test]
fn the_message_has_command_exit_code_and_end_of_output() {
    let output = format!("{}the last line", "line\n".repeat(5000));
    let (verdict, detail) = check::verdict_of_exit(CommandExit::Exited { code: 3 });
    let failed = CheckResult { name: "make test".into(), verdict, exit: None, detail, output, duration_ms: 1 };
    let passed = CheckResult {
        name: "make lint".into(),
        verdict: CheckVerdict::Passed,
        output: String::new(),
        ..failed.clone()
    };
    assert_eq!(check::combine_verdicts(std::slice::from_ref(&passed)), CheckVerdict::Passed);
    assert_eq!(check::combine_verdicts(&[]), CheckVerdict::Unknown);
    assert_eq!(check::combine_verdicts(&[passed.clone(), failed.clone()]), CheckVerdict::Failed);
    let unknown = CheckResult { verdict: CheckVerdict::Unknown, ..passed.clone() };
    assert_eq!(check::combine_verdicts(&[passed.clone(), unknown.clone()]), CheckVerdict::Unknown);
    let text = check::failed_checks_message(&[passed, failed, unknown], 1, 10);
    for words in ["make test\nfailed: exit code 3", "the last line", "make lint\ncould not be decided", "2 of 3"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn settings_are_inherited_per_field_and_bounded() {
    let project = Continuous {
        enabled: Some(false),
        checks: Some(vec!["make".into()]),
        iterations: Some(4),
        ..Continuous::default()
    };
    let request = Continuous { iterations: Some(2), ..Continuous::default() }.or(Some(project.clone()));
    assert!(request.is_enabled() && !project.is_enabled(), "a request with a setting enables it");
    assert_eq!((request.checks.as_deref(), request.loop_limits().max_iterations), (Some(&["make".to_owned()][..]), 2));
    assert_eq!((request.loop_limits().max_duration, request.loop_limits().max_errors), (Duration::from_secs(3600), 3));
    assert_eq!(request.requirements(true), [Requirement::Clean, Requirement::Committed]);
    assert!(request.requirements(false).is_empty() && request.check_bounds().is_ok());
    for bad in [
        Continuous { iterations: Some(0), ..Continuous::default() },
        Continuous { errors: Some(0), ..Continuous::default() },
        Continuous { duration_s: Some(0), ..Continuous::default() },
        Continuous { check_timeout_s: Some(4000), ..Continuous::default() },
        Continuous { cost_usd: Some(-1.0), ..Continuous::default() },
        Continuous { checks: Some(vec![" ".into()]), ..Continuous::default() },
        Continuous { checks: Some(vec!["true".into(); 21]), ..Continuous::default() },
    ] {
        assert!(bad.check_bounds().is_err(), "{bad:?}");
    }
}
