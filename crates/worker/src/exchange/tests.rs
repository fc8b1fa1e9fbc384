use super::*;
use atoll_core::bounds;
use proptest::prelude::*;
use serde_json::Value;

/// An exchange, and everything that was told, in its order.
#[derive(Default)]
struct Scene {
    exchange: Exchange,
    log: Vec<(String, Option<i64>, Value)>,
    turn: Option<i64>,
}

impl Scene {
    fn new() -> Self {
        Self { turn: Some(1), ..Self::default() }
    }

    fn tell(&mut self, event_type: &str, data: Value, origin: &Origin) {
        let composed = self.exchange.before(event_type, &data.to_string(), self.turn, origin);
        self.take(composed);
        self.log.push((event_type.to_owned(), self.turn, data));
    }

    fn take(&mut self, composed: Vec<Composed>) {
        for Composed { event_type, turn, data } in composed {
            assert_eq!(bounds::event_data(data.get()), Ok(()));
            self.log.push((event_type.to_owned(), turn, serde_json::from_str(data.get()).unwrap()));
        }
    }

    fn say(&mut self, text: &str, origin: &Origin) {
        self.tell("agent.message", json!({ "text": text }), origin);
    }

    fn call(&mut self, id: &str, origin: &Origin) {
        self.tell("agent.tool_use", json!({"tool": "Bash", "tool_use_id": id, "input": {}}), origin);
    }

    fn result(&mut self, id: &str) {
        let data = json!({"tool": "Bash", "tool_use_id": id, "output": "", "is_error": id.starts_with("bad")});
        self.tell("agent.tool_completed", data, &Origin::Unsaid);
    }

    fn end(&mut self) {
        self.tell("agent.completed", json!({}), &Origin::Unsaid);
    }

    fn whole(&mut self, parent: Option<&str>) {
        self.exchange.ends(parent);
        let whole = self.exchange.whole();
        self.take(whole);
    }

    /// Each event in one word; of the composed ones what they hold.
    fn story(&self) -> Vec<String> {
        let one = |(event_type, _, data): &(String, Option<i64>, Value)| {
            let list = |name: &str| data[name].as_array().unwrap().iter().map(short).collect::<Vec<_>>().join(" ");
            match event_type.as_str() {
                "agent.assistant_message" => format!("answer [{}]", list("content")),
                "agent.user_tool_result" => format!("results [{}]", list("results")),
                other => other.trim_start_matches("agent.").to_owned(),
            }
        };
        self.log.iter().map(one).collect()
    }
}

fn short(part: &Value) -> String {
    let id = part["tool_use_id"].as_str().unwrap_or_default();
    match (part["type"].as_str(), part["is_error"].as_bool()) {
        (Some("tool_use"), _) => id.to_owned(),
        (Some(kind), _) => format!("{kind}:{}", part["characters"]),
        (None, Some(true)) => format!("{id}!"),
        (None, _) => id.to_owned(),
    }
}

fn named(id: &str) -> Origin {
    Origin::Named { id: id.to_owned(), model: Some("large".to_owned()) }
}

#[test]
fn without_names_a_result_ends_an_answer_and_a_part_ends_the_results() {
    let mut scene = Scene::new();
    scene.tell("agent.started", json!({"model": "small"}), &Origin::Unsaid);
    scene.tell("agent.thinking", json!({"text": "hm"}), &Origin::Unsaid);
    scene.say("größer", &Origin::Unsaid);
    for id in ["a", "b"] {
        scene.call(id, &Origin::Unsaid);
    }
    scene.result("b");
    scene.tell("agent.file_edited", json!({}), &Origin::Unsaid);
    scene.result("bad");
    scene.say("done", &Origin::Unsaid);
    scene.end();
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
    assert_eq!(scene.story(), story);
    let data = json!({"model": "small", "content": [{"type": "text", "characters": 4}]});
    assert_eq!(scene.log[11], ("agent.assistant_message".to_owned(), Some(1), data));
}

#[test]
fn calls_of_one_name_are_one_answer_though_a_result_comes_in_between() {
    let mut scene = Scene::new();
    scene.call("a", &named("m1"));
    scene.result("a");
    scene.call("b", &named("m1"));
    scene.result("b");
    scene.say("so", &named("m2"));
    scene.end();
    let story = ["tool_use", "tool_completed", "tool_use", "tool_completed", "answer [a b]", "results [a b]"];
    assert_eq!(scene.story()[..6], story);
    assert_eq!((&scene.log[4].2["message_id"], &scene.log[4].2["model"]), (&json!("m1"), &json!("large")));
    assert_eq!(scene.story()[6..], ["message", "answer [text:2]", "completed"]);
}

#[test]
fn an_answer_whose_end_is_said_is_told_at_once() {
    let mut scene = Scene::new();
    for id in ["a", "b"] {
        scene.call(id, &Origin::Running);
        scene.result(id);
    }
    scene.whole(None);
    scene.call("c", &Origin::Running);
    scene.whole(None);
    scene.result("c");
    scene.end();
    let story = scene.story().join(", ");
    let expected = "tool_use, tool_completed, tool_use, tool_completed, answer [a b], results [a b], tool_use, \
                    answer [c], tool_completed, results [c], completed";
    assert_eq!(story, expected);
}

#[test]
fn words_after_a_result_are_new_ones_where_the_end_was_missed() {
    let mut scene = Scene::new();
    scene.call("a", &Origin::Running);
    scene.result("a");
    scene.say("so", &Origin::Running);
    scene.end();
    assert_eq!(scene.story()[2..5], ["answer [a]", "results [a]", "message"]);
}

/// What is told between is work, and would say that the agent does not wait any more.
#[test]
fn nothing_follows_a_question_but_what_was_not_whole_before_it() {
    let mut scene = Scene::new();
    scene.call("a", &named("m1"));
    scene.exchange.ends(None);
    scene.tell("approval.requested", json!({}), &Origin::Unsaid);
    assert_eq!(scene.story(), ["tool_use", "answer [a]", "approval.requested"]);
    scene.call("b", &named("m2"));
    scene.tell("approval.requested", json!({}), &Origin::Unsaid);
    assert_eq!(scene.story()[3..], ["tool_use", "approval.requested"]);
}

#[test]
fn sub_agents_have_answers_of_their_own() {
    let mut scene = Scene::new();
    scene.tell("agent.started", json!({"model": "small"}), &Origin::Unsaid);
    scene.call("task", &named("m1"));
    let of_it = |data: Value| {
        let mut data = data;
        data["parent_tool_use_id"] = "task".into();
        data
    };
    scene.tell("agent.tool_use", of_it(json!({"tool": "Read", "tool_use_id": "r"})), &Origin::Unsaid);
    scene.call("b", &named("m1"));
    scene.tell("agent.tool_completed", of_it(json!({"tool_use_id": "r", "is_error": false})), &Origin::Unsaid);
    scene.tell("agent.message", of_it(json!({"text": "read"})), &Origin::Unsaid);
    scene.result("b");
    scene.result("task");
    scene.end();
    let composed: Vec<String> = scene.story().into_iter().filter(|word| word.ends_with(']')).collect();
    assert_eq!(composed, ["answer [r]", "results [r]", "answer [text:4]", "answer [task b]", "results [b task]"]);
    let data = json!({"parent_tool_use_id": "task", "content": [{"type": "text", "characters": 4}]});
    assert!(scene.log.iter().any(|(_, _, told)| *told == data), "{:?}", scene.log);
    // Its last words come before its end.
    let words: Vec<String> = scene.story();
    assert_eq!(words[words.len() - 5..][..2], ["answer [text:4]", "tool_completed"]);
}

#[test]
fn whatever_ends_a_turn_comes_after_what_was_in_it() {
    for end in ["agent.completed", "agent.interrupted", "agent.failed", "agent.waiting", "agent.shutdown"] {
        let mut scene = Scene::new();
        scene.call("a", &named("m1"));
        scene.result("a");
        scene.turn = Some(2);
        scene.tell(end, json!({}), &Origin::Unsaid);
        scene.end();
        assert_eq!(scene.story()[2..4], ["answer [a]", "results [a]"], "{end}");
        assert_eq!(scene.log[2].1, Some(1), "it is of the turn in which it was");
        assert_eq!(scene.log.len(), 6, "and told once");
    }
    for between in ["agent.message_injected", "agent.stream_error", "agent.error"] {
        let mut scene = Scene::new();
        scene.say("so", &Origin::Unsaid);
        scene.tell(between, json!({}), &Origin::Unsaid);
        assert_eq!(scene.story()[1], "answer [text:2]", "{between}");
    }
}

#[test]
fn what_is_strange_is_neither_lost_nor_large() {
    let mut scene = Scene::new();
    let long = "\u{1}".repeat(90_000);
    scene.tell("agent.tool_use", json!({"tool_use_id": long, "tool": long, "parent_tool_use_id": long}), &named(&long));
    scene.tell("agent.tool_use", json!({"tool_use_id": 5}), &Origin::Unsaid);
    scene.tell("agent.message", json!({"text": [1]}), &Origin::Unsaid);
    scene.end();
    let answers = scene.log.iter().filter(|(event_type, ..)| event_type == "agent.assistant_message").count();
    assert_eq!(answers, 2);
}

#[derive(Debug, Clone)]
enum Step {
    Words,
    Call,
    Result,
    Whole,
    Turn,
    Injected,
}

fn steps() -> impl Strategy<Value = Vec<(Step, u8, u8)>> {
    let one = prop_oneof![
        3 => Just(Step::Words),
        8 => Just(Step::Call),
        8 => Just(Step::Result),
        1 => Just(Step::Whole),
        1 => Just(Step::Turn),
        1 => Just(Step::Injected),
    ];
    prop::collection::vec((one, 0..40u8, 0..6u8), 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]

    /// In whatever order: every part is in one answer, every result in one group, in the order and the turn in which
    /// they were told, each after what it is drawn from, and little is held.
    #[test]
    fn nothing_is_lost_and_nothing_is_told_twice(steps in steps()) {
        let mut scene = Scene::new();
        let mut open: Vec<(String, u8)> = Vec::new();
        for (at, (step, thread, how)) in steps.into_iter().enumerate() {
            let origin = match how {
                0 | 1 => Origin::Unsaid,
                2 => Origin::Running,
                _ => named(&format!("m{how}")),
            };
            let of = |mut data: Value, thread: u8| {
                if thread > 2 {
                    data["parent_tool_use_id"] = format!("parent{thread}").into();
                }
                data
            };
            match step {
                Step::Words => scene.tell("agent.message", of(json!({"text": "x"}), thread), &origin),
                Step::Call => {
                    let id = format!("t{at}");
                    scene.tell("agent.tool_use", of(json!({"tool": "Bash", "tool_use_id": id}), thread), &origin);
                    open.push((id, thread));
                }
                Step::Result if open.is_empty() => {}
                Step::Result => {
                    let (id, thread) = open.remove(usize::from(how) % open.len());
                    scene.tell("agent.tool_completed", of(json!({"tool_use_id": id}), thread), &Origin::Unsaid);
                }
                Step::Whole => scene.whole((thread > 2).then(|| format!("parent{thread}")).as_deref()),
                Step::Turn => {
                    scene.end();
                    scene.turn = scene.turn.map(|turn| turn + 1);
                }
                Step::Injected => scene.tell("agent.message_injected", json!({}), &Origin::Unsaid),
            }
            prop_assert!(scene.exchange.threads.len() <= THREADS);
        }
        scene.end();
        check(&scene.log);
    }
}

fn check(log: &[(String, Option<i64>, Value)]) {
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
                assert!((1..=PARTS).contains(&list.len()));
                for part in list {
                    match id(part) {
                        Some(id) if is_answer => answered.push(id),
                        Some(id) => assert!(answered.contains(&id), "{id} goes back before it was asked for"),
                        None => {}
                    }
                    // The oldest that it could be.
                    let of =
                        |one: &&(&str, Value, String, Option<i64>)| (one.0 != "result") == is_answer && one.1 == parent;
                    let first = waiting.iter().find(of).expect("it was told before");
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
fn what_grows_without_end_is_told_in_pieces() {
    let mut scene = Scene::new();
    let long = "x".repeat(5_000);
    for n in 0..1_000 {
        let (call, parent) = (format!("t{n}{long}"), format!("p{}", n % 100));
        let data = json!({"tool": long, "tool_use_id": call, "parent_tool_use_id": parent});
        scene.tell("agent.tool_use", data, &named("m1"));
        scene.tell("agent.tool_completed", json!({"tool_use_id": format!("u{n}")}), &Origin::Unsaid);
    }
    scene.end();
    let count = |list: &str| {
        let all = scene.log.iter().filter_map(|(_, _, data)| data[list].as_array());
        all.map(Vec::len).sum::<usize>()
    };
    assert_eq!((count("content"), count("results")), (1_000, 1_000));
}
