//! Whatever happens in whatever order: it ends, within its limits, and for the reason that it says.

use super::check::{self, Checked};
use super::*;
use crate::bounds;
use crate::provider::Exit;
use proptest::prelude::*;

const SECOND: i64 = 1_000_000;

fn facts(seconds: i64, cost: i64) -> Facts {
    Facts { steady: Timestamp::from_micros(seconds * SECOND), cost }
}

fn limits() -> Limits {
    Continuous::default().limits()
}

fn run(progress: &Progress, inputs: &[Input]) -> (Progress, Vec<Effect>) {
    let mut all = Vec::new();
    let mut progress = progress.clone();
    for input in inputs {
        let (to, effects) = next(&progress, *input, facts(1, 0), &limits());
        progress = to;
        all.extend(effects);
    }
    (progress, all)
}

fn checked(round: u32, verdict: Verdict) -> Input {
    Input::Checked { round, verdict }
}

#[test]
fn it_goes_back_until_it_passes() {
    let begun = Progress::begin(facts(0, 0));
    let inputs = [
        Input::RunEnded,
        checked(1, Verdict::Failed),
        Input::RunBegan,
        Input::RunEnded,
        Input::RunEnded,
        checked(1, Verdict::Passed),
        checked(2, Verdict::Passed),
    ];
    let (progress, effects) = run(&begun, &inputs);
    assert_eq!((progress.phase, progress.iteration, progress.round), (Phase::Passed, 2, 2));
    assert_eq!(effects, [Effect::Validate, Effect::Tell, Effect::Validate, Effect::Finish], "a late word counts not");
}

#[test]
fn errors_in_a_row_stop_it_and_a_good_run_between_them_does_not() {
    let begun = Progress::begin(facts(0, 0));
    let failed = [Input::RunFailed, Input::Rested];
    let (progress, effects) = run(&begun, &failed.repeat(3));
    assert_eq!((progress.stopped, progress.errors), (Some(Stop::Errors), 3));
    let rests: Vec<_> = effects.iter().filter(|effect| matches!(effect, Effect::Rest(_))).collect();
    assert_eq!(rests, [&Effect::Rest(Duration::from_secs(1)), &Effect::Rest(Duration::from_secs(2))]);
    let mut mixed = failed.repeat(2);
    mixed.extend([Input::RunEnded, checked(1, Verdict::Failed)]);
    mixed.extend(failed.repeat(2));
    assert!(run(&begun, &mixed).0.is_live());
}

#[test]
fn a_person_ends_it_and_it_stays_ended_but_later_work_is_checked_anew() {
    let begun = Progress::begin(facts(0, 0));
    for before in [&[][..], &[Input::RunEnded], &[Input::RunFailed]] {
        let (progress, _) = run(&begun, before);
        let (stopped, effects) = next(&progress, Input::Interrupted, facts(1, 0), &limits());
        assert_eq!((stopped.stopped, &effects[..]), (Some(Stop::Interrupted), &[Effect::Abandon, Effect::Finish][..]));
        assert_eq!(run(&stopped, &[Input::RunBegan, Input::RunEnded]), (stopped, Vec::new()));
    }
    let (passed, _) = run(&begun, &[Input::RunEnded, checked(1, Verdict::Passed)]);
    let (again, effects) = run(&passed, &[Input::RunBegan, Input::RunEnded]);
    assert_eq!((again.phase, again.iteration, again.round), (Phase::Validating, 1, 2));
    assert_eq!(effects, [Effect::Validate]);
}

#[test]
fn unknown_is_not_passed_and_each_limit_has_its_reason() {
    let begun = Progress::begin(facts(0, 5));
    let end = |verdict, facts: Facts, limits: &Limits, iteration| {
        let progress = Progress { phase: Phase::Validating, round: 1, iteration, ..begun.clone() };
        next(&progress, checked(1, verdict), facts, limits).0.stopped
    };
    let costly = Limits { cost: Some(10), ..limits() };
    assert_eq!(end(Verdict::Unknown, facts(1, 5), &limits(), 1), Some(Stop::Undecided));
    assert_eq!(end(Verdict::Failed, facts(1, 5), &limits(), 10), Some(Stop::Iterations));
    assert_eq!(end(Verdict::Failed, facts(1, 15), &costly, 1), Some(Stop::Cost));
    assert_eq!(end(Verdict::Failed, facts(1, 14), &costly, 1), None, "what was spent before is not its");
    assert_eq!(end(Verdict::Failed, facts(3600, 5), &limits(), 1), Some(Stop::Duration));
    assert_eq!(end(Verdict::Passed, facts(9999, 99), &costly, 10), None, "what passes, passes");
    assert!(next(&begun, Input::Deadline, facts(3599, 0), &limits()).0.is_live(), "a deadline of an earlier loop");
    assert_eq!(next(&begun, Input::Deadline, facts(3600, 0), &limits()).0.stopped, Some(Stop::Duration));
    assert_eq!(next(&begun, Input::SpentOut, facts(1, 0), &costly).0.stopped, Some(Stop::Cost));
    assert!(next(&begun, Input::SpentOut, facts(1, 0), &limits()).0.is_live(), "it has no such limit");
    let (checking, _) = run(&begun, &[Input::RunEnded]);
    assert_eq!(next(&checking, Input::SpentOut, facts(1, 0), &costly).0, checking, "what is done may still pass");
    assert_eq!((checking.most(&costly), checking.most(&limits())), (Some(15), None));
    assert_eq!(run(&checking, &[Input::SandboxEnds]).0.most(&costly), None, "and then it bounds nothing");
    let (spent, _) = next(&begun, Input::SpentOut, facts(1, 12), &costly);
    assert_eq!(spent.most(&costly), Some(15), "its agent is still on its way out");
    assert_eq!(next(&spent, Input::RunBegan, facts(1, 12), &costly).0.most(&costly), Some(22));
}

fn any_input() -> impl Strategy<Value = Input> {
    let verdict = prop_oneof![Just(Verdict::Passed), Just(Verdict::Failed), Just(Verdict::Unknown)];
    prop_oneof![
        3 => Just(Input::RunBegan),
        5 => Just(Input::RunEnded),
        2 => Just(Input::RunFailed),
        2 => Just(Input::Rested),
        5 => (0..4_u32, verdict).prop_map(|(round, verdict)| Input::Checked { round, verdict }),
        1 => Just(Input::Interrupted),
        1 => Just(Input::Deadline),
        1 => Just(Input::SpentOut),
        1 => Just(Input::SandboxEnds),
    ]
}

fn any_limits() -> impl Strategy<Value = Limits> {
    (1..6_u32, proptest::option::of(1..100_i64), 1..200_u64, 1..4_u32).prop_map(
        |(iterations, cost, duration, errors)| Limits {
            iterations,
            cost,
            duration: Duration::from_secs(duration),
            errors,
        },
    )
}

proptest! {
    #[test]
    fn whatever_comes_it_keeps_its_promises(
        limits in any_limits(),
        inputs in proptest::collection::vec((any_input(), 0..20_i64, 0..20_i64), 0..60),
    ) {
        let mut progress = Progress::begin(facts(0, 0));
        let (mut now, mut cost) = (0, 0);
        for (input, seconds, spent) in inputs {
            now += seconds;
            cost += spent;
            let here = facts(now, cost);
            let before = progress.clone();
            let (after, effects) = next(&before, input, here, &limits);
            prop_assert_eq!(&next(&before, input, here, &limits).0, &after, "the same leads to the same");
            prop_assert_eq!(after.phase == Phase::Stopped, after.stopped.is_some(), "who stops says why");
            prop_assert!(after.iteration <= limits.iterations.max(1), "no run too many");
            prop_assert!(after.errors <= limits.errors);
            prop_assert!(after.round >= before.round, "rounds are never counted twice");
            // It ends once, and passes only by a verdict about the round that it is in.
            let ends = before.is_live() && !after.is_live();
            prop_assert_eq!(effects.contains(&Effect::Finish), ends);
            if after.phase == Phase::Passed && before.phase != Phase::Passed {
                prop_assert_eq!(input, Input::Checked { round: before.round, verdict: Verdict::Passed });
                prop_assert_eq!(before.phase, Phase::Validating);
            }
            if effects.contains(&Effect::Tell) {
                prop_assert_eq!(after.iteration, before.iteration + 1, "what is told begins a run");
                prop_assert_eq!(after.phase, Phase::Working);
            }
            prop_assert_eq!(effects.contains(&Effect::Validate), after.round > before.round);
            // The word of a person is obeyed at once, wherever it is.
            let person = next(&after, Input::Interrupted, here, &limits).0;
            prop_assert!(!person.is_live());
            progress = after;
        }
    }

    /// An agent that never gets it right, or never gets anywhere, comes to an end by itself.
    #[test]
    fn it_always_ends(limits in any_limits(), runs in proptest::collection::vec(any::<bool>(), 1..60)) {
        let mut progress = Progress::begin(facts(0, 0));
        let mut told = 0;
        for well in runs.into_iter().chain(std::iter::repeat_n(true, 12)) {
            if !progress.is_live() {
                break;
            }
            let inputs = if well { vec![Input::RunEnded] } else { vec![Input::RunFailed, Input::Rested] };
            for input in inputs {
                let (to, effects) = next(&progress, input, facts(0, 0), &limits);
                progress = to;
                told += u32::from(effects.contains(&Effect::Tell));
            }
            let (to, effects) = next(&progress, checked(progress.round, Verdict::Failed), facts(0, 0), &limits);
            progress = to;
            told += u32::from(effects.contains(&Effect::Tell));
        }
        prop_assert!(!progress.is_live());
        prop_assert!(told < limits.iterations, "the first run was not told by it");
    }

    #[test]
    fn what_is_told_fits_a_message(
        checks in proptest::collection::vec(("[a€𝄞\\x1b]", 0..3000_usize, 0..300_usize, 0..6000_usize, 0..3_usize), 1..20),
    ) {
        let checks: Vec<Checked> = checks
            .into_iter()
            .map(|(piece, name, detail, output, verdict)| {
                let (name, detail, output) = (piece.repeat(name), piece.repeat(detail), piece.repeat(output));
                let verdict = Verdict::ALL[verdict];
                Checked { name, verdict, exit: None, detail, output, duration_ms: 1 }
            })
            .collect();
        let text = check::message(&checks, 2, 10);
        prop_assert!(bounds::content("content", &text, bounds::MESSAGE_BYTES).is_ok(), "{}", text.len());
        prop_assert!(bounds::content("content", &check::after_error(&checks[0].name, 1, 2), bounds::MESSAGE_BYTES).is_ok());
    }
}

#[test]
fn the_agent_is_told_the_command_its_exit_code_and_the_end_of_its_output() {
    let output = format!("{}the last line", "line\n".repeat(5000));
    let (verdict, detail) = check::of_exit(Exit::Exited { code: 3 });
    let failed = Checked { name: "make test".into(), verdict, exit: None, detail, output, duration_ms: 1 };
    let passed =
        Checked { name: "make lint".into(), verdict: Verdict::Passed, output: String::new(), ..failed.clone() };
    assert_eq!(check::verdict(std::slice::from_ref(&passed)), Verdict::Passed);
    assert_eq!(check::verdict(&[]), Verdict::Unknown);
    assert_eq!(check::verdict(&[passed.clone(), failed.clone()]), Verdict::Failed);
    let unknown = Checked { verdict: Verdict::Unknown, ..passed.clone() };
    assert_eq!(check::verdict(&[passed.clone(), unknown.clone()]), Verdict::Unknown);
    let text = check::message(&[passed, failed, unknown], 1, 10);
    for words in ["make test\nfailed: exit code 3", "the last line", "make lint\ncould not be decided", "2 of 3"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn settings_are_filled_field_by_field_and_bounded() {
    let project = Continuous {
        enabled: Some(false),
        checks: Some(vec!["make".into()]),
        iterations: Some(4),
        ..Continuous::default()
    };
    let asked = Continuous { iterations: Some(2), ..Continuous::default() }.or(Some(project.clone()));
    assert!(asked.is_on() && !project.is_on(), "who asks for it turns it on");
    assert_eq!((asked.checks.as_deref(), asked.limits().iterations), (Some(&["make".to_owned()][..]), 2));
    assert_eq!((asked.limits().duration, asked.limits().errors), (Duration::from_secs(3600), 3));
    assert_eq!(asked.required(true), [Requirement::Clean, Requirement::Committed]);
    assert!(asked.required(false).is_empty() && asked.bounds().is_ok());
    for bad in [
        Continuous { iterations: Some(0), ..Continuous::default() },
        Continuous { errors: Some(0), ..Continuous::default() },
        Continuous { duration_s: Some(0), ..Continuous::default() },
        Continuous { check_timeout_s: Some(4000), ..Continuous::default() },
        Continuous { cost_usd: Some(-1.0), ..Continuous::default() },
        Continuous { checks: Some(vec![" ".into()]), ..Continuous::default() },
        Continuous { checks: Some(vec!["true".into(); 21]), ..Continuous::default() },
    ] {
        assert!(bad.bounds().is_err(), "{bad:?}");
    }
}
