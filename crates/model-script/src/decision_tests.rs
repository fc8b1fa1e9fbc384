use super::*;
use crate::conversation::{ConversationEntry, InputForm, Tool};
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

fn offered_tools() -> Vec<Tool> {
    ["Write", "Edit", "Bash"].map(|name| Tool::new(name, InputForm::Object(json!({})))).to_vec()
}

fn conversation_after(results: &[&str], more: &[ConversationEntry]) -> Conversation {
    let mut entries = vec![ConversationEntry::UserText("go #script:main".into())];
    for result in results {
        entries.extend([ConversationEntry::ToolCall, ConversationEntry::ToolResult((*result).into())]);
    }
    entries.extend_from_slice(more);
    Conversation { entries, tools: offered_tools(), ..Conversation::default() }
}

fn called_tools(decision: &Decision) -> Vec<String> {
    let ReplyContent::Answer(answer) = &decision.reply.content else { panic!("{decision:?}") };
    answer.calls().map(|call| call.tool.clone()).collect()
}

fn answer_text(decision: &Decision) -> String {
    let ReplyContent::Answer(answer) = &decision.reply.content else { panic!("{decision:?}") };
    answer.full_text()
}

#[test]
fn a_script_is_played_from_start_to_end() {
    let scripts = Scripts::parse(STEPS).unwrap();
    let failures = &mut FailureCounts::default();
    let mut ask = |conversation: &Conversation| decide_reply(&scripts, conversation, "s", failures);
    let first = ask(&conversation_after(&[], &[]));
    assert_eq!((answer_text(&first).as_str(), called_tools(&first)), ("I begin", vec!["Write".to_owned()]));
    assert_eq!(called_tools(&ask(&conversation_after(&[""], &[]))), ["Bash", "Bash"]);
    // The same request gets the same answer.
    assert_eq!(ask(&conversation_after(&[""], &[])), ask(&conversation_after(&[""], &[])));
    let steered = conversation_after(&["", "", ""], &[ConversationEntry::UserText("hear me".into())]);
    assert_eq!(called_tools(&ask(&steered)), ["Bash"]);
    let unheard = ask(&conversation_after(&["hear me", "", ""], &[]));
    assert!(answer_text(&unheard).contains("expected the text \"hear me\" since the last answer"));
    assert!(unheard.problem.is_some());
    // Two refusals per session, then the answer.
    let end = conversation_after(&["", "", "", ""], &[]);
    for _ in 0..2 {
        let ReplyContent::Refusal(refusal) = ask(&end).reply.content else { panic!() };
        assert_eq!((refusal.status, refusal.retry_after), (429, Some(1)));
    }
    let done = ask(&end);
    assert_eq!((answer_text(&done).as_str(), done.reply.delay), ("all done", Duration::from_secs(1)));
    assert!(matches!(decide_reply(&scripts, &end, "other", failures).reply.content, ReplyContent::Refusal(_)));
    let mut ask = |conversation: &Conversation| decide_reply(&scripts, conversation, "s", failures);
    let again = conversation_after(
        &["", "", "", ""],
        &[ConversationEntry::ModelText, ConversationEntry::UserText("and?".into())],
    );
    assert_eq!(answer_text(&ask(&again)), "again");
    let mut ended = again;
    ended.entries.extend([ConversationEntry::ModelText, ConversationEntry::UserText("and?".into())]);
    assert_eq!(answer_text(&ask(&ended)), "The script main has no more steps.");
}

#[test]
fn repeats_an_interrupted_answer() {
    let scripts = Scripts::parse(STEPS).unwrap();
    let broken = conversation_after(
        &[],
        &[ConversationEntry::ModelText, ConversationEntry::UserText("go on where you were".into())],
    );
    assert_eq!(called_tools(&decide_reply(&scripts, &broken, "", &mut FailureCounts::default())), ["Write"]);
    // Only one of two results arrives.
    let half = conversation_after(&["", "hear me"], &[]);
    assert_eq!(called_tools(&decide_reply(&scripts, &half, "", &mut FailureCounts::default())), ["Bash"]);
}

#[test]
fn a_final_call_is_followed_by_the_end_of_the_turn() {
    let scripts = Scripts::parse("- run: ls").unwrap();
    let tools = offered_tools();
    let ended = Conversation {
        entries: vec![ConversationEntry::ToolCall, ConversationEntry::ToolResult(String::new())],
        tools,
        ..Conversation::default()
    };
    assert_eq!(answer_text(&decide_reply(&scripts, &ended, "", &mut FailureCounts::default())), "Done.");
}

#[test]
fn answers_side_requests_and_unknown_scripts() {
    let scripts = Scripts::parse(STEPS).unwrap();
    let mut conversation = conversation_after(&[], &[]);
    conversation.tools.clear();
    let aside = decide_reply(&scripts, &conversation, "", &mut FailureCounts::default());
    assert_eq!((answer_text(&aside).as_str(), aside.script), ("ok", None));
    let conversation = Conversation {
        entries: vec![ConversationEntry::UserText("#script:nothing".into())],
        tools: offered_tools(),
        ..Conversation::default()
    };
    let decision = decide_reply(&scripts, &conversation, "", &mut FailureCounts::default());
    assert_eq!(decision.problem.as_deref(), Some("no script `nothing`; the scripts are: main"));
}

fn any_step() -> impl Strategy<Value = ScriptStep> {
    use crate::script::{AskStep, EditStep, PlanItem, PlanStatus, SlowStep, UseStep, WriteStep};
    let word = || "[a-z/ ]{0,6}";
    let times = prop_oneof![Just(FailureCount::Always), (0..3u32).prop_map(FailureCount::Count)];
    let call = prop_oneof![
        (word(), word()).prop_map(|(file, content)| ScriptStep::Write(WriteStep { file, content })),
        (word(), word(), word()).prop_map(|(file, old, new)| ScriptStep::Edit(EditStep { file, old, new })),
        word().prop_map(ScriptStep::Run),
        word().prop_map(|step| ScriptStep::Plan(vec![PlanItem { step, status: PlanStatus::Pending }])),
        word().prop_map(|question| ScriptStep::Ask(AskStep { question, options: Vec::new() })),
        word().prop_map(|tool| ScriptStep::Use(UseStep { tool, input: json!([1]) })),
    ];
    prop_oneof![
        4 => call.clone(),
        1 => proptest::collection::vec(call, 0..3).prop_map(ScriptStep::Parallel),
        1 => word().prop_map(ScriptStep::Say),
        1 => word().prop_map(ScriptStep::Think),
        1 => any::<f64>().prop_map(|pause| ScriptStep::Slow(SlowStep { pieces: vec![String::new(), "x".into()], pause })),
        1 => any::<f64>().prop_map(ScriptStep::Delay),
        1 => (word(), any::<bool>()).prop_map(|(text, only_new)| ScriptStep::Expect(ExpectStep { text, only_new })),
        1 => (any::<u16>(), times.clone()).prop_map(|(status, times)| ScriptStep::Fail(FailStep {
            status, retry_after: Some(u32::MAX), kind: None, message: None, body: None, times
        })),
        1 => (any::<usize>(), times).prop_map(|(after_events, times)| ScriptStep::Cut(CutStep { after_events, times })),
        1 => any::<u64>().prop_map(|input| ScriptStep::Usage(TokenUsage { input, output: u64::MAX, cache_read: input, cache_write: 1 })),
        1 => Just(ScriptStep::End),
    ]
}

/// Arbitrary JSON, mostly with words of the APIs.
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
    fn no_request_panics(
        body in any_json(),
        tools in any_json(),
        messages in any_json(),
        steps in proptest::collection::vec(any_step(), 0..8),
    ) {
        let script = Script { name: "main".into(), cwd: None, steps };
        // Unchecked: invalid scripts must not panic either.
        let scripts = Scripts::new_unchecked(vec![script]);
        let whole = json!({
            "tools": tools, "messages": messages, "input": messages, "contents": messages, "stream": true,
        });
        for body in [&body, &whole] {
            for api in crate::wire::Api::ALL {
                let conversation = api.parse_request(body);
                let decision = decide_reply(&scripts, &conversation, "s", &mut FailureCounts::default());
                match decision.reply.content {
                    ReplyContent::Answer(answer) => {
                        prop_assert!(!api.stream_events(&conversation, &answer).is_empty());
                        prop_assert!(api.whole_response(&conversation, &answer).is_object());
                    }
                    ReplyContent::Refusal(refusal) => { api.refusal_body(&refusal); }
                }
            }
        }
    }
}
