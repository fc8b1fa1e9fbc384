use super::*;
use crate::driver::testing::{cases, hear, line, lines};
use crate::executor::tests::message;
use crate::heartbeat::Settings;
use atoll_core::message::Delivery;
use atoll_core::sandbox::{Approvals, Mode};
use atoll_protocol::Gateway;
use proptest::prelude::*;
use std::path::Path;

fn happens(kind: &str, mut properties: Value) -> Value {
    properties["sessionID"] = "s".into();
    json!({"event": {"data": {"id": "e", "type": kind, "properties": properties}}})
}

fn status(kind: &str) -> Value {
    happens("session.status", json!({"status": {"type": kind}}))
}

fn idle() -> Value {
    happens("session.idle", json!({}))
}

fn part(part: Value) -> Value {
    happens("message.part.updated", json!({"part": part}))
}

/// The server has a message of ours, by this name.
fn stored(name: &str, text: &str) -> Value {
    part(json!({"type": "text", "id": format!("p{name}"), "messageID": name, "text": text}))
}

fn answer(name: &str, parent: &str) -> Value {
    happens("message.updated", json!({"info": {"id": name, "role": "assistant", "parentID": parent, "modelID": "m"}}))
}

fn tool(state: Value) -> Value {
    part(json!({"type": "tool", "id": "pt", "messageID": "a1", "tool": "bash", "callID": "c", "state": state}))
}

fn begun() -> OpenCode {
    let mut agent = OpenCode::default();
    let ready = hear(&mut agent, &json!({"ready": {"session": "s"}}));
    assert_eq!(ready, [r#"Native { id: "s" }"#, "reply "]);
    let prompt = message("go", Delivery::Steer);
    let told = line(&agent.tell(&prompt, Standing::Idle));
    assert_eq!(told, json!({"prompt": {"id": prompt.id, "text": "go"}}));
    assert_eq!(hear(&mut agent, &stored("u1", "go")), [""; 0]);
    assert_eq!(hear(&mut agent, &status("busy")), ["agent.started  [TurnBegins]"]);
    assert_eq!(hear(&mut agent, &answer("a1", "u1")), ["receipt new_turn"]);
    agent
}

fn interrupt() -> LeasedMessage {
    LeasedMessage { message_type: MessageType::Interrupt, ..message("enough", Delivery::Steer) }
}

#[test]
fn a_turn_from_its_prompt_to_its_end() {
    let mut agent = begun();
    assert_eq!(hear(&mut agent, &status("busy")), [""; 0], "it says so before each step");
    let thought =
        |end: Value| json!({"type": "reasoning", "id": "r", "messageID": "a1", "text": "Hm.", "time": {"end": end}});
    assert_eq!(hear(&mut agent, &part(thought(Value::Null))), [""; 0]);
    let piece = |of: &str, text: &str| {
        happens("message.part.delta", json!({"messageID": "a1", "partID": of, "field": "text", "delta": text}))
    };
    assert_eq!(hear(&mut agent, &piece("r", "Hm.")), [""; 0], "a thought is shown when it is whole");
    assert_eq!(hear(&mut agent, &part(thought(json!(1)))), [r#"agent.thinking "Hm.""#]);
    assert_eq!(hear(&mut agent, &piece("w", "I wi")), [r#"live {"text":"I wi"}"#]);
    let words =
        part(json!({"type": "text", "id": "w", "messageID": "a1", "text": "I will", "time": {"start": 1, "end": 2}}));
    assert_eq!(hear(&mut agent, &words), [r#"agent.message "I will""#]);
    assert_eq!(hear(&mut agent, &words), [""; 0], "once is enough");
    assert_eq!(hear(&mut agent, &tool(json!({"status": "pending", "input": {}}))), [""; 0]);
    let runs = tool(json!({"status": "running", "input": {"command": "ls"}}));
    assert_eq!(hear(&mut agent, &runs), [r#"agent.tool_use "bash" [ToolBegins("c")]"#]);
    assert_eq!(hear(&mut agent, &runs), [""; 0]);
    let done =
        tool(json!({"status": "completed", "input": {"command": "ls"}, "output": "a.txt", "metadata": {"exit": 0}}));
    assert_eq!(hear(&mut agent, &done), [r#"agent.tool_completed "bash" "a.txt" [ToolEnds("c")]"#]);
    assert_eq!(hear(&mut agent, &done), [""; 0]);
    let tokens = json!({"input": 138, "output": 42, "reasoning": 3, "cache": {"read": 50, "write": 0}});
    let step = part(json!({"type": "step-finish", "id": "f", "messageID": "a1", "tokens": tokens, "cost": 0.25}));
    assert_eq!(hear(&mut agent, &step), ["AnswerEnds { parent: None }", "agent.usage 0.25"]);
    assert_eq!(hear(&mut agent, &status("idle")), [""; 0]);
    assert_eq!(hear(&mut agent, &idle()), [r#"agent.completed "end_turn" [TurnEnds]"#, "Idle"]);
    assert_eq!(hear(&mut agent, &idle()), [""; 0]);
}

#[test]
fn it_is_steered_and_confirms_what_an_answer_follows() {
    let mut agent = begun();
    agent.tell(&message("one", Delivery::Steer), Standing::InTurn);
    agent.tell(&message("two", Delivery::Steer), Standing::InTurn);
    hear(&mut agent, &stored("u2", "one"));
    assert_eq!(hear(&mut agent, &answer("a1", "u1")), [""; 0], "an answer to what was before");
    hear(&mut agent, &stored("u3", "two"));
    let seen = hear(&mut agent, &answer("a2", "u3"));
    let once = ["agent.message_injected ", "receipt injected"];
    assert_eq!(seen, [once, once].concat());
    assert_eq!(hear(&mut agent, &answer("a2", "u3")), [""; 0]);
}

#[test]
fn what_it_answered_in_other_words_is_confirmed_at_the_end() {
    let mut agent = OpenCode::default();
    hear(&mut agent, &json!({"ready": {"session": "s"}}));
    agent.tell(&message("go", Delivery::Steer), Standing::Idle);
    hear(&mut agent, &stored("u1", "go, as the template says"));
    hear(&mut agent, &status("busy"));
    assert_eq!(hear(&mut agent, &answer("a1", "u1")), [""; 0]);
    assert_eq!(hear(&mut agent, &idle()), ["receipt new_turn", r#"agent.completed "end_turn" [TurnEnds]"#, "Idle"]);
}

#[test]
fn an_interrupt_ends_the_turn_and_what_was_not_seen_begins_the_next() {
    let mut agent = begun();
    hear(&mut agent, &tool(json!({"status": "running", "input": {}})));
    agent.tell(&message("unseen", Delivery::Steer), Standing::InTurn);
    agent.tell(&message("not even stored", Delivery::Steer), Standing::InTurn);
    hear(&mut agent, &stored("u2", "unseen"));
    assert_eq!(line(&agent.tell(&interrupt(), Standing::InTurn)), json!({"abort": {}}));
    let aborted = happens("session.error", json!({"error": {"name": "MessageAbortedError", "data": {}}}));
    assert_eq!(hear(&mut agent, &aborted), [""; 0]);
    let ended = hear(&mut agent, &idle());
    assert_eq!(
        ended[..4],
        [
            r#"agent.tool_completed "bash" "broken off" [ToolEnds("c")]"#,
            "receipt injected",
            r#"agent.interrupted "enough" [TurnEnds]"#,
            "Idle"
        ]
    );
    assert!(ended[4].contains(r#""text":"unseen""#) && !ended[4].contains("not even"), "{ended:?}");
    let mut agent = OpenCode::default();
    assert!(agent.tell(&interrupt(), Standing::InTurn).is_empty(), "there is nothing to break off");
    hear(&mut agent, &json!({"ready": {"session": "s"}}));
    agent.tell(&message("go", Delivery::Steer), Standing::Idle);
    assert!(agent.tell(&interrupt(), Standing::InTurn).is_empty(), "it has not begun");
    assert_eq!(hear(&mut agent, &status("busy"))[1], r#"reply {"abort":{}}"#);
    hear(&mut agent, &stored("u1", "go"));
    let wanted = ["receipt new_turn", "receipt injected", r#"agent.interrupted "enough" [TurnEnds]"#, "Idle"];
    assert_eq!(hear(&mut agent, &idle()), wanted, "what began the turn is broken off with it");
}

#[test]
fn what_it_asks_is_answered_once_and_in_its_own_form() {
    let mut agent = begun();
    let asks = happens(
        "permission.asked",
        json!({"id": "per", "permission": "bash", "patterns": ["ls"],
        "metadata": {"command": "ls"}, "tool": {"callID": "c"}}),
    );
    let asked = hear(&mut agent, &asks);
    assert_eq!(asked, [r#"asks Permission bash {"details":{"command":"ls"},"patterns":["ls"]}"#]);
    let no = || Answer::Deny { reason: "not here".to_owned() };
    let denied = line(&agent.answer("per", no()));
    assert_eq!(denied, json!({"permission": {"id": "per", "allow": false, "reason": "not here"}}));
    assert!(agent.answer("per", no()).is_empty());
    let mut of_other = asks.clone();
    of_other["event"]["data"]["properties"]["sessionID"] = "of a sub-agent".into();
    assert_eq!(hear(&mut agent, &of_other).len(), 1, "sub-agents ask too");
    assert!(!agent.answer("per", Answer::Allow { input: None, context: None }).is_empty());
    let questions = json!([{"question": "Which?", "header": "h"}, {"question": "Why?", "header": "w"}]);
    hear(&mut agent, &happens("question.asked", json!({"id": "q", "questions": questions})));
    let said = line(&agent.answer("q", Answer::Words(json!({"Which?": "this", "w": ["a", "b"]}))));
    assert_eq!(said, json!({"answers": {"id": "q", "answers": [["this"], ["a", "b"]]}}));
    hear(&mut agent, &asks);
    hear(&mut agent, &idle());
    assert!(agent.answer("per", no()).is_empty(), "the turn is over");
}

#[test]
fn errors_end_it_and_retries_do_not() {
    let mut agent = begun();
    let retry = happens(
        "session.status",
        json!({"status": {"type": "retry", "attempt": 1, "message": "Rate limited: rate limit"}}),
    );
    assert_eq!(hear(&mut agent, &retry)[1], "RateLimited { wait: None }");
    let error = happens(
        "session.error",
        json!({"error": {"name": "APIError", "data": {"message": "no key", "statusCode": 401}}}),
    );
    assert_eq!(hear(&mut agent, &error), [r#"agent.error "no key""#]);
    assert_eq!(hear(&mut agent, &idle()), [r#"Failed { error: "no key" }"#]);
    let mut agent = OpenCode::default();
    let failed = json!({"failed": {"error": "it does not listen"}});
    assert_eq!(hear(&mut agent, &failed), [r#"Failed { error: "it does not listen" }"#]);
    hear(&mut agent, &json!({"ready": {"session": "s"}}));
    let prompt = message("go", Delivery::Steer);
    agent.tell(&prompt, Standing::Idle);
    let refused = json!({"refused": {"what": "prompt", "id": prompt.id, "error": "400 Bad Request"}});
    assert_eq!(hear(&mut agent, &refused)[1], r#"Failed { error: "it did not take a message: 400 Bad Request" }"#);
}

#[test]
fn it_is_started_behind_the_bridge_with_what_was_asked_for() {
    let mcp = json!({"docs": {"command": "docs", "args": ["-v"]}});
    let settings = Settings {
        model: Some("glm".to_owned()),
        approvals: Some(Approvals::Ask),
        mode: Some(Mode::Exploration),
        system_prompt: Some("be brief".to_owned()),
        mcp: mcp.as_object().cloned(),
        ..Settings::default()
    };
    let gateway = Gateway { base_url: "http://127.0.0.1:7709".to_owned(), key: "placeholder".to_owned() };
    let launch =
        Launch { gateway: Some(&gateway), native_id: Some("ses"), ..Launch::plain(Path::new("/w"), &settings) };
    let mut agent = OpenCode::default();
    let command = agent.command(&launch);
    assert_eq!(command.argv, ["/w", "opencode", "opencode", "ses"]);
    let content = |env: &[(String, String)]| -> Value {
        let (_, text) = env.iter().find(|(name, _)| name == "OPENCODE_CONFIG_CONTENT").unwrap();
        serde_json::from_str(text).unwrap()
    };
    let all = content(&command.env);
    assert_eq!(all["model"], "atoll/glm");
    assert_eq!(all["provider"]["atoll"]["options"]["baseURL"], "http://127.0.0.1:7709/openai/v1");
    assert_eq!((&all["permission"]["*"], &all["permission"]["read"]), (&json!("ask"), &json!("allow")));
    assert_eq!(all["mcp"]["docs"]["command"], json!(["docs", "-v"]));
    assert!(agent.tell(&message("go", Delivery::Steer), Standing::Idle).is_empty(), "it is not ready");
    let said = agent.line(br#"{"ready":{"session":"ses"}}"#);
    let Said::Reply(reply) = &said[1] else { panic!("{said:?}") };
    let prompt = lines(reply)[0]["prompt"].clone();
    assert_eq!((&prompt["system"], &prompt["agent"]), (&json!("be brief"), &json!("plan")));
    let settings =
        Settings { model: Some("claude-x".to_owned()), approvals: Some(Approvals::Full), ..Settings::default() };
    let launch = Launch { gateway: Some(&gateway), ..Launch::plain(Path::new("/w"), &settings) };
    let all = content(&start::command(&launch).env);
    assert_eq!(all["provider"]["atoll"]["npm"], "@ai-sdk/anthropic");
    assert_eq!(all["permission"], json!({"*": "allow"}));
}

proptest! {
    #![proptest_config(cases(10_000))]

    /// Whatever it says is told on or named as not understood, and nothing breaks.
    #[test]
    fn no_line_is_dropped_silently(bytes in prop::collection::vec(any::<u8>(), 1..200)) {
        let said = OpenCode::default().line(&bytes);
        prop_assert!(matches!(&said[..], [Said::Unparsed { .. }]), "{:?}", said);
    }

    #[test]
    fn events_with_something_else_in_them_break_nothing(
        kind in prop::sample::select(vec!["session.status", "session.idle", "session.error", "message.updated",
            "message.part.updated", "message.part.delta", "permission.asked", "question.asked", "thing.new"]),
        field in prop::sample::select(vec!["status", "error", "info", "part", "delta", "id", "questions"]),
        value in prop::sample::select(vec![json!(null), json!(1), json!("x"), json!([1]), json!({"type": "tool"}),
            json!({"type": "tool", "id": "i", "callID": "c", "state": {"status": 3}}), json!({"type": "text", "id": "i"}),
            json!({"role": "assistant", "id": 4, "parentID": null}), json!({"type": "step-finish", "id": "f", "tokens": 3})]),
    ) {
        let mut agent = begun();
        let mut properties = json!({});
        properties[field] = value;
        let said = agent.line(happens(kind, properties).to_string().as_bytes());
        agent.line(idle().to_string().as_bytes());
        prop_assert!(kind != "thing.new" || matches!(&said[..], [Said::Unparsed { .. }]), "{:?}", said);
    }
}
