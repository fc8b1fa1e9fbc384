use super::*;
use crate::conversation::{Entry, Form, Tool};
use proptest::prelude::*;
use serde_json::json;

const STEPS: &str = "
scripts:
  - name: main
    cwd: /w
    steps:
      - say: I begin
      - write: {file: a, content: x}
      - parallel: [{run: one}, {run: two}]
      - expect: {text: hear me, new: true}
      - run: three
      - fail: {status: 429, retry_after: 1, times: 2}
      - delay: 1
      - say: all done
      - end
      - say: again
";

fn shells() -> Vec<Tool> {
    ["Write", "Edit", "Bash"].map(|name| Tool { name: name.into(), form: Form::Object(json!({})) }).to_vec()
}

fn after(results: &[&str], more: &[Entry]) -> Conversation {
    let mut entries = vec![Entry::Told("go #script:main".into())];
    for result in results {
        entries.extend([Entry::Called, Entry::Result((*result).into())]);
    }
    entries.extend_from_slice(more);
    Conversation { entries, tools: shells(), ..Conversation::default() }
}

fn called(decision: &Decision) -> Vec<String> {
    let Content::Answer(answer) = &decision.reply.content else { panic!("{decision:?}") };
    answer.calls().map(|call| call.tool.clone()).collect()
}

fn text(decision: &Decision) -> String {
    let Content::Answer(answer) = &decision.reply.content else { panic!("{decision:?}") };
    answer.full_text()
}

#[test]
fn a_script_is_played_from_start_to_end() {
    let scripts = Scripts::parse(STEPS).unwrap();
    let failures = &mut Failures::default();
    let mut ask = |asked: &Conversation| decide(&scripts, asked, "s", failures);
    let first = ask(&after(&[], &[]));
    assert_eq!((text(&first).as_str(), called(&first)), ("I begin", vec!["Write".to_owned()]));
    assert_eq!(called(&ask(&after(&[""], &[]))), ["Bash", "Bash"]);
    // The same question gets the same answer.
    assert_eq!(ask(&after(&[""], &[])), ask(&after(&[""], &[])));
    let heard = after(&["", "", ""], &[Entry::Told("hear me".into())]);
    assert_eq!(called(&ask(&heard)), ["Bash"]);
    let unheard = ask(&after(&["hear me", "", ""], &[]));
    assert!(text(&unheard).contains("expected to be told \"hear me\" since the last answer"));
    assert!(unheard.problem.is_some());
    // Two refusals for each session, then the answer.
    let end = after(&["", "", "", ""], &[]);
    for _ in 0..2 {
        let Content::Refusal(refusal) = ask(&end).reply.content else { panic!() };
        assert_eq!((refusal.status, refusal.retry_after), (429, Some(1)));
    }
    let done = ask(&end);
    assert_eq!((text(&done).as_str(), done.reply.delay), ("all done", Duration::from_secs(1)));
    assert!(matches!(decide(&scripts, &end, "other", failures).reply.content, Content::Refusal(_)));
    let mut ask = |asked: &Conversation| decide(&scripts, asked, "s", failures);
    let again = after(&["", "", "", ""], &[Entry::Said, Entry::Told("and?".into())]);
    assert_eq!(text(&ask(&again)), "again");
    let mut over = again;
    over.entries.extend([Entry::Said, Entry::Told("and?".into())]);
    assert_eq!(text(&ask(&over)), "The script main has no more steps.");
}

#[test]
fn an_answer_that_broke_off_is_given_again() {
    let scripts = Scripts::parse(STEPS).unwrap();
    let broken = after(&[], &[Entry::Said, Entry::Told("go on where you were".into())]);
    assert_eq!(called(&decide(&scripts, &broken, "", &mut Failures::default())), ["Write"]);
    // One of two results: the other never comes.
    let half = after(&["", "hear me"], &[]);
    assert_eq!(called(&decide(&scripts, &half, "", &mut Failures::default())), ["Bash"]);
}

#[test]
fn a_call_at_the_end_is_followed_by_an_end() {
    let scripts = Scripts::parse("- run: ls").unwrap();
    let tools = shells();
    let ended =
        Conversation { entries: vec![Entry::Called, Entry::Result(String::new())], tools, ..Conversation::default() };
    assert_eq!(text(&decide(&scripts, &ended, "", &mut Failures::default())), "Done.");
}

#[test]
fn side_questions_and_unknown_names_are_answered() {
    let scripts = Scripts::parse(STEPS).unwrap();
    let mut asked = after(&[], &[]);
    asked.tools.clear();
    let aside = decide(&scripts, &asked, "", &mut Failures::default());
    assert_eq!((text(&aside).as_str(), aside.script), ("ok", None));
    let asked = Conversation {
        entries: vec![Entry::Told("#script:nothing".into())],
        tools: shells(),
        ..Conversation::default()
    };
    let decision = decide(&scripts, &asked, "", &mut Failures::default());
    assert_eq!(decision.problem.as_deref(), Some("there is no script `nothing`; there are: main"));
}

fn any_step() -> impl Strategy<Value = Step> {
    use crate::script::{Ask, Edit, PlanItem, PlanStatus, Slow, Use, Write};
    let word = || "[a-z/ ]{0,6}";
    let times = prop_oneof![Just(Times::Always), (0..3u32).prop_map(Times::Count)];
    let call = prop_oneof![
        (word(), word()).prop_map(|(file, content)| Step::Write(Write { file, content })),
        (word(), word(), word()).prop_map(|(file, old, new)| Step::Edit(Edit { file, old, new })),
        word().prop_map(Step::Run),
        word().prop_map(|step| Step::Plan(vec![PlanItem { step, status: PlanStatus::Pending }])),
        word().prop_map(|question| Step::Ask(Ask { question, options: Vec::new() })),
        word().prop_map(|tool| Step::Use(Use { tool, input: json!([1]) })),
    ];
    prop_oneof![
        4 => call.clone(),
        1 => proptest::collection::vec(call, 0..3).prop_map(Step::Parallel),
        1 => word().prop_map(Step::Say),
        1 => word().prop_map(Step::Think),
        1 => any::<f64>().prop_map(|pause| Step::Slow(Slow { pieces: vec![String::new(), "x".into()], pause })),
        1 => any::<f64>().prop_map(Step::Delay),
        1 => (word(), any::<bool>()).prop_map(|(text, new)| Step::Expect(Expect { text, new })),
        1 => (any::<u16>(), times.clone()).prop_map(|(status, times)| Step::Fail(Fail {
            status, retry_after: Some(u32::MAX), kind: None, message: None, body: None, times
        })),
        1 => (any::<usize>(), times).prop_map(|(after, times)| Step::Cut(Cut { after, times })),
        1 => any::<u64>().prop_map(|input| Step::Usage(Usage { input, output: u64::MAX, cache_read: input, cache_write: 1 })),
        1 => Just(Step::End),
    ]
}

/// JSON that is anything at all, mostly with the words that the APIs use.
fn any_json() -> impl Strategy<Value = serde_json::Value> {
    use serde_json::Value;
    let word = prop_oneof![
        Just("user"),
        Just("assistant"),
        Just("tool"),
        Just("model"),
        Just("text"),
        Just("tool_result"),
        Just("tool_use"),
        Just("function"),
        Just("custom"),
        Just("apply_patch"),
        Just("Write"),
        Just("exec_command"),
        Just("Bash"),
        Just("TaskCreate"),
        Just("update_plan"),
        Just("function_call_output"),
        Just("message"),
        Just("#script:main"),
        Just("é <cwd>/é"),
        Just(""),
    ];
    let key = prop_oneof![
        Just("role"),
        Just("content"),
        Just("type"),
        Just("messages"),
        Just("input"),
        Just("contents"),
        Just("parts"),
        Just("tools"),
        Just("functionDeclarations"),
        Just("name"),
        Just("function"),
        Just("parameters"),
        Just("input_schema"),
        Just("properties"),
        Just("required"),
        Just("text"),
        Just("stream"),
        Just("system"),
        Just("tool_calls"),
        Just("functionResponse"),
        Just("functionCall"),
        Just("output"),
        Just("response"),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        word.prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 60, 5, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::vec((key.clone(), inner), 0..6)
                .prop_map(|pairs| pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
        ]
    })
}

proptest! {
    #[test]
    fn nothing_that_is_asked_breaks_it(
        body in any_json(),
        tools in any_json(),
        messages in any_json(),
        steps in proptest::collection::vec(any_step(), 0..8),
    ) {
        let script = Script { name: "main".into(), cwd: None, steps };
        // Unchecked on purpose: what the check refuses must not break anything either.
        let scripts = Scripts::unchecked(vec![script]);
        let whole = json!({
            "tools": tools, "messages": messages, "input": messages, "contents": messages, "stream": true,
        });
        for body in [&body, &whole] {
            for api in crate::wire::Api::ALL {
                let asked = api.read(body);
                let decision = decide(&scripts, &asked, "s", &mut Failures::default());
                match decision.reply.content {
                    Content::Answer(answer) => {
                        prop_assert!(!api.events(&asked, &answer).is_empty());
                        prop_assert!(api.whole(&asked, &answer).is_object());
                    }
                    Content::Refusal(refusal) => { api.refusal(&refusal); }
                }
            }
        }
    }
}
