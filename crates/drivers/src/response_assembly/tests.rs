use super::*;
use atoll_core::bounds;
use proptest::prelude::*;
use serde_json::{Value, json};

/// An assembler and the log of all events in order.
#[derive(Default)]
struct AssemblerTest {
    exchange: ResponseAssembler,
    log: Vec<(String, Option<i64>, Value)>,
    turn: Option<i64>,
}

impl AssemblerTest {
    fn new() -> Self {
        Self { turn: Some(1), ..Self::default() }
    }

    fn record_event(&mut self, event_type: &str, data: Value, origin: &ResponseRef) {
        let composed = self.exchange.observe_event(event_type, &data.to_string(), self.turn, origin);
        self.record_assembled(composed);
        self.log.push((event_type.to_owned(), self.turn, data));
    }

    fn record_assembled(&mut self, composed: Vec<AssembledEvent>) {
        for AssembledEvent { event_type, turn, data } in composed {
            assert_eq!(bounds::check_event_data(data.get()), Ok(()));
            self.log.push((event_type.to_owned(), turn, serde_json::from_str(data.get()).unwrap()));
        }
    }

    fn say_text(&mut self, text: &str, origin: &ResponseRef) {
        self.record_event("agent.message", json!({ "text": text }), origin);
    }

    fn start_tool(&mut self, id: &str, origin: &ResponseRef) {
        self.record_event("agent.tool_use", json!({"tool": "Bash", "tool_use_id": id, "input": {}}), origin);
    }

    fn end_tool(&mut self, id: &str) {
        let data = json!({"tool": "Bash", "tool_use_id": id, "output": "", "is_error": id.starts_with("bad")});
        self.record_event("agent.tool_completed", data, &ResponseRef::Unknown);
    }

    fn end_turn(&mut self) {
        self.record_event("agent.completed", json!({}), &ResponseRef::Unknown);
    }

    fn end_response(&mut self, parent: Option<&str>) {
        self.exchange.end_response(parent);
        let whole = self.exchange.take_ended();
        self.record_assembled(whole);
    }

    /// One word per event; the content of assembled events.
    fn summarize_log(&self) -> Vec<String> {
        let one = |(event_type, _, data): &(String, Option<i64>, Value)| {
            let list =
                |name: &str| data[name].as_array().unwrap().iter().map(summarize_item).collect::<Vec<_>>().join(" ");
            match event_type.as_str() {
                "agent.assistant_message" => format!("answer [{}]", list("content")),
                "agent.user_tool_result" => format!("results [{}]", list("results")),
                other => other.trim_start_matches("agent.").to_owned(),
            }
        };
        self.log.iter().map(one).collect()
    }
}

fn summarize_item(part: &Value) -> String {
    let id = part["tool_use_id"].as_str().unwrap_or_default();
    match (part["type"].as_str(), part["is_error"].as_bool()) {
        (Some("tool_use"), _) => id.to_owned(),
        (Some(kind), _) => format!("{kind}:{}", part["characters"]),
        (None, Some(true)) => format!("{id}!"),
        (None, _) => id.to_owned(),
    }
}

fn named_response(id: &str) -> ResponseRef {
    ResponseRef::Named { id: id.to_owned(), model: Some("large".to_owned()) }
}

#[test]
fn without_ids_a_result_ends_a_response_and_a_part_ends_the_results() {
    let mut scene = AssemblerTest::new();
    scene.record_event("agent.started", json!({"model": "small"}), &ResponseRef::Unknown);
    scene.record_event("agent.thinking", json!({"text": "hm"}), &ResponseRef::Unknown);
    scene.say_text("größer", &ResponseRef::Unknown);
    for id in ["a", "b"] {
        scene.start_tool(id, &ResponseRef::Unknown);
    }
    scene.end_tool("b");
    scene.record_event("agent.file_edited", json!({}), &ResponseRef::Unknown);
    scene.end_tool("bad");
    scene.say_text("done", &ResponseRef::Unknown);
    scene.end_turn();
    let story = [
        "started",
        "thinking",
        "message",
        "tool_use",
        "tool_use",
        "answer [thinking:2 text:6 a b]",
        "tool_completed",
        "file_edited",
        "tool_completed",
        "results [b bad!]",
        "message",
        "answer [text:4]",
        "completed",
    ];
    assert_eq!(scene.summarize_log(), story);
    let data = json!({"model": "small", "content": [{"type": "text", "characters": 4}]});
    assert_eq!(scene.log[11], ("agent.assistant_message".to_owned(), Some(1), data));
}

#[test]
fn calls_with_one_id_are_one_response_despite_results_between_them() {
    let mut scene = AssemblerTest::new();
    scene.start_tool("a", &named_response("m1"));
    scene.end_tool("a");
    scene.start_tool("b", &named_response("m1"));
    scene.end_tool("b");
    scene.say_text("so", &named_response("m2"));
    scene.end_turn();
    let story = ["tool_use", "tool_completed", "tool_use", "tool_completed", "answer [a b]", "results [a b]"];
    assert_eq!(scene.summarize_log()[..6], story);
    assert_eq!((&scene.log[4].2["message_id"], &scene.log[4].2["model"]), (&json!("m1"), &json!("large")));
    assert_eq!(scene.summarize_log()[6..], ["message", "answer [text:2]", "completed"]);
}

#[test]
fn a_response_with_a_known_end_is_emitted_at_once() {
    let mut scene = AssemblerTest::new();
    for id in ["a", "b"] {
        scene.start_tool(id, &ResponseRef::Current);
        scene.end_tool(id);
    }
    scene.end_response(None);
    scene.start_tool("c", &ResponseRef::Current);
    scene.end_response(None);
    scene.end_tool("c");
    scene.end_turn();
    let story = scene.summarize_log().join(", ");
    let expected = "tool_use, tool_completed, tool_use, tool_completed, answer [a b], results [a b], tool_use, \
                    answer [c], tool_completed, results [c], completed";
    assert_eq!(story, expected);
}

#[test]
fn text_after_a_result_starts_a_new_response_if_the_end_was_missed() {
    let mut scene = AssemblerTest::new();
    scene.start_tool("a", &ResponseRef::Current);
    scene.end_tool("a");
    scene.say_text("so", &ResponseRef::Current);
    scene.end_turn();
    assert_eq!(scene.summarize_log()[2..5], ["answer [a]", "results [a]", "message"]);
}

/// An event of work after the question would show the agent as no longer waiting.
#[test]
fn complete_responses_precede_an_approval_request() {
    let mut scene = AssemblerTest::new();
    scene.start_tool("a", &named_response("m1"));
    scene.exchange.end_response(None);
    scene.record_event("approval.requested", json!({}), &ResponseRef::Unknown);
    assert_eq!(scene.summarize_log(), ["tool_use", "answer [a]", "approval.requested"]);
    scene.start_tool("b", &named_response("m2"));
    scene.record_event("approval.requested", json!({}), &ResponseRef::Unknown);
    assert_eq!(scene.summarize_log()[3..], ["tool_use", "approval.requested"]);
}

#[test]
fn subagents_have_their_own_responses() {
    let mut scene = AssemblerTest::new();
    scene.record_event("agent.started", json!({"model": "small"}), &ResponseRef::Unknown);
    scene.start_tool("task", &named_response("m1"));
    let of_it = |data: Value| {
        let mut data = data;
        data["parent_tool_use_id"] = "task".into();
        data
    };
    scene.record_event("agent.tool_use", of_it(json!({"tool": "Read", "tool_use_id": "r"})), &ResponseRef::Unknown);
    scene.start_tool("b", &named_response("m1"));
    scene.record_event(
        "agent.tool_completed",
        of_it(json!({"tool_use_id": "r", "is_error": false})),
        &ResponseRef::Unknown,
    );
    scene.record_event("agent.message", of_it(json!({"text": "read"})), &ResponseRef::Unknown);
    scene.end_tool("b");
    scene.end_tool("task");
    scene.end_turn();
    let composed: Vec<String> = scene.summarize_log().into_iter().filter(|word| word.ends_with(']')).collect();
    assert_eq!(composed, ["answer [r]", "results [r]", "answer [text:4]", "answer [task b]", "results [b task]"]);
    let data = json!({"parent_tool_use_id": "task", "content": [{"type": "text", "characters": 4}]});
    assert!(scene.log.iter().any(|(_, _, logged)| *logged == data), "{:?}", scene.log);
    // Its last message precedes the end of the tool call.
    let words: Vec<String> = scene.summarize_log();
    assert_eq!(words[words.len() - 5..][..2], ["answer [text:4]", "tool_completed"]);
}

#[test]
fn the_end_of_a_turn_follows_its_responses() {
    for end in ["agent.completed", "agent.interrupted", "agent.failed", "agent.waiting", "agent.shutdown"] {
        let mut scene = AssemblerTest::new();
        scene.start_tool("a", &named_response("m1"));
        scene.end_tool("a");
        scene.turn = Some(2);
        scene.record_event(end, json!({}), &ResponseRef::Unknown);
        scene.end_turn();
        assert_eq!(scene.summarize_log()[2..4], ["answer [a]", "results [a]"], "{end}");
        assert_eq!(scene.log[2].1, Some(1), "keeps its turn");
        assert_eq!(scene.log.len(), 6, "emitted once");
    }
    for between in ["agent.message_injected", "agent.stream_error", "agent.error"] {
        let mut scene = AssemblerTest::new();
        scene.say_text("so", &ResponseRef::Unknown);
        scene.record_event(between, json!({}), &ResponseRef::Unknown);
        assert_eq!(scene.summarize_log()[1], "answer [text:2]", "{between}");
    }
}

#[test]
fn unexpected_data_is_kept_and_bounded() {
    let mut scene = AssemblerTest::new();
    let long = "\u{1}".repeat(90_000);
    scene.record_event(
        "agent.tool_use",
        json!({"tool_use_id": long, "tool": long, "parent_tool_use_id": long}),
        &named_response(&long),
    );
    scene.record_event("agent.tool_use", json!({"tool_use_id": 5}), &ResponseRef::Unknown);
    scene.record_event("agent.message", json!({"text": [1]}), &ResponseRef::Unknown);
    scene.end_turn();
    let answers = scene.log.iter().filter(|(event_type, ..)| event_type == "agent.assistant_message").count();
    assert_eq!(answers, 2);
}

#[derive(Debug, Clone)]
enum AssemblyStep {
    Words,
    Call,
    Result,
    Whole,
    Turn,
    Injected,
}

fn random_steps() -> impl Strategy<Value = Vec<(AssemblyStep, u8, u8)>> {
    let one = prop_oneof![
        3 => Just(AssemblyStep::Words),
        8 => Just(AssemblyStep::Call),
        8 => Just(AssemblyStep::Result),
        1 => Just(AssemblyStep::Whole),
        1 => Just(AssemblyStep::Turn),
        1 => Just(AssemblyStep::Injected),
    ];
    prop::collection::vec((one, 0..40u8, 0..6u8), 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]

    /// Every part is in one response and every result in one group, in order, in the right turn and after the events
    /// they come from. The assembler's memory is bounded.
    #[test]
    fn every_part_is_assembled_once(steps in random_steps()) {
        let mut scene = AssemblerTest::new();
        let mut open: Vec<(String, u8)> = Vec::new();
        for (at, (step, thread, how)) in steps.into_iter().enumerate() {
            let origin = match how {
                0 | 1 => ResponseRef::Unknown,
                2 => ResponseRef::Current,
                _ => named_response(&format!("m{how}")),
            };
            let of = |mut data: Value, thread: u8| {
                if thread > 2 {
                    data["parent_tool_use_id"] = format!("parent{thread}").into();
                }
                data
            };
            match step {
                AssemblyStep::Words => scene.record_event("agent.message", of(json!({"text": "x"}), thread), &origin),
                AssemblyStep::Call => {
                    let id = format!("t{at}");
                    scene.record_event("agent.tool_use", of(json!({"tool": "Bash", "tool_use_id": id}), thread), &origin);
                    open.push((id, thread));
                }
                AssemblyStep::Result if open.is_empty() => {}
                AssemblyStep::Result => {
                    let (id, thread) = open.remove(usize::from(how) % open.len());
                    scene.record_event("agent.tool_completed", of(json!({"tool_use_id": id}), thread), &ResponseRef::Unknown);
                }
                AssemblyStep::Whole => scene.end_response((thread > 2).then(|| format!("parent{thread}")).as_deref()),
                AssemblyStep::Turn => {
                    scene.end_turn();
                    scene.turn = scene.turn.map(|turn| turn + 1);
                }
                AssemblyStep::Injected => scene.record_event("agent.message_injected", json!({}), &ResponseRef::Unknown),
            }
            prop_assert!(scene.exchange.threads.len() <= MAX_THREADS);
        }
        scene.end_turn();
        check_log(&scene.log);
    }
}

fn check_log(log: &[(String, Option<i64>, Value)]) {
    let id = |data: &Value| data["tool_use_id"].as_str().map(str::to_owned);
    let mut waiting: Vec<(&str, Value, String, Option<i64>)> = Vec::new();
    let mut answered: Vec<String> = Vec::new();
    for (event_type, turn, data) in log {
        let parent = data["parent_tool_use_id"].clone();
        match event_type.as_str() {
            "agent.message" => waiting.push(("text", parent, String::new(), *turn)),
            "agent.tool_use" => waiting.push(("call", parent, id(data).unwrap(), *turn)),
            "agent.tool_completed" => waiting.push(("result", parent, id(data).unwrap(), *turn)),
            "agent.assistant_message" | "agent.user_tool_result" => {
                let is_answer = event_type == "agent.assistant_message";
                let list = data[if is_answer { "content" } else { "results" }].as_array().unwrap();
                assert!((1..=MAX_PARTS).contains(&list.len()));
                for part in list {
                    match id(part) {
                        Some(id) if is_answer => answered.push(id),
                        Some(id) => assert!(answered.contains(&id), "result {id} before its call"),
                        None => {}
                    }
                    // The oldest matching event.
                    let of =
                        |one: &&(&str, Value, String, Option<i64>)| (one.0 != "result") == is_answer && one.1 == parent;
                    let first = waiting.iter().find(of).expect("reported before");
                    assert_eq!((first.2.clone(), first.3), (id(part).unwrap_or_default(), *turn));
                    let at = waiting.iter().position(|one| one == first).unwrap();
                    waiting.remove(at);
                }
            }
            _ => {}
        }
    }
    assert!(waiting.is_empty(), "{waiting:?}");
}

#[test]
fn long_responses_are_split() {
    let mut scene = AssemblerTest::new();
    let long = "x".repeat(5_000);
    for n in 0..1_000 {
        let (call, parent) = (format!("t{n}{long}"), format!("p{}", n % 100));
        let data = json!({"tool": long, "tool_use_id": call, "parent_tool_use_id": parent});
        scene.record_event("agent.tool_use", data, &named_response("m1"));
        scene.record_event("agent.tool_completed", json!({"tool_use_id": format!("u{n}")}), &ResponseRef::Unknown);
    }
    scene.end_turn();
    let count = |list: &str| {
        let all = scene.log.iter().filter_map(|(_, _, data)| data[list].as_array());
        all.map(Vec::len).sum::<usize>()
    };
    assert_eq!((count("content"), count("results")), (1_000, 1_000));
}
