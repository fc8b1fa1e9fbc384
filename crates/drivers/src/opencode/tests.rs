use super::*;
use crate::settings::AgentSettings;
use crate::testing::{feed_line, parse_line, parse_lines, proptest_config};
use atoll_core::message::Delivery;
use atoll_core::model::ModelApi;
use atoll_core::sandbox::{ApprovalMode, Mode};
use atoll_protocol::Gateway;
use proptest::prelude::*;
use std::path::Path;

fn server_event(kind: &str, mut properties: Value) -> Value {
    properties["sessionID"] = "s".into();
    json!({"event": {"data": {"id": "e", "type": kind, "properties": properties}}})
}

fn session_status(kind: &str) -> Value {
    server_event("session.status", json!({"status": {"type": kind}}))
}

fn session_idle() -> Value {
    server_event("session.idle", json!({}))
}

fn part_updated(part: Value) -> Value {
    server_event("message.part.updated", json!({"part": part}))
}

/// The server has stored our message with this id.
fn stored_message(name: &str, text: &str) -> Value {
    part_updated(json!({"type": "text", "id": format!("p{name}"), "messageID": name, "text": text}))
}

fn model_response(name: &str, parent: &str) -> Value {
    server_event(
        "message.updated",
        json!({"info": {"id": name, "role": "assistant", "parentID": parent, "modelID": "m"}}),
    )
}

fn tool_part(state: Value) -> Value {
    part_updated(json!({"type": "tool", "id": "pt", "messageID": "a1", "tool": "bash", "callID": "c", "state": state}))
}

fn driver_in_turn() -> OpenCodeDriver {
    let mut agent = OpenCodeDriver::default();
    let ready = feed_line(&mut agent, &json!({"ready": {"session": "s"}}));
    assert_eq!(ready, [r#"NativeId { id: "s" }"#, "reply "]);
    let prompt = LeasedMessage::example("go", Delivery::Steer);
    let line = parse_line(&agent.encode_message(&prompt, AgentTurn::Idle));
    assert_eq!(line, json!({"prompt": {"id": prompt.id, "text": "go"}}));
    assert_eq!(feed_line(&mut agent, &stored_message("u1", "go")), [""; 0]);
    assert_eq!(feed_line(&mut agent, &session_status("busy")), ["agent.started  [TurnStarted]"]);
    assert_eq!(feed_line(&mut agent, &model_response("a1", "u1")), ["acknowledged new_turn"]);
    agent
}

fn interrupt_message() -> LeasedMessage {
    LeasedMessage { message_type: MessageType::Interrupt, ..LeasedMessage::example("enough", Delivery::Steer) }
}

#[test]
fn a_turn_runs_from_prompt_to_end() {
    let mut agent = driver_in_turn();
    assert_eq!(feed_line(&mut agent, &session_status("busy")), [""; 0], "repeated before each step");
    let thought =
        |end: Value| json!({"type": "reasoning", "id": "r", "messageID": "a1", "text": "Hm.", "time": {"end": end}});
    assert_eq!(feed_line(&mut agent, &part_updated(thought(Value::Null))), [""; 0]);
    let piece = |of: &str, text: &str| {
        server_event("message.part.delta", json!({"messageID": "a1", "partID": of, "field": "text", "delta": text}))
    };
    assert_eq!(feed_line(&mut agent, &piece("r", "Hm.")), [""; 0], "reasoning has no live text");
    assert_eq!(feed_line(&mut agent, &part_updated(thought(json!(1)))), [r#"agent.thinking "Hm.""#]);
    assert_eq!(feed_line(&mut agent, &piece("w", "I wi")), [r#"delta {"text":"I wi"}"#]);
    let words = part_updated(
        json!({"type": "text", "id": "w", "messageID": "a1", "text": "I will", "time": {"start": 1, "end": 2}}),
    );
    assert_eq!(feed_line(&mut agent, &words), [r#"agent.message "I will""#]);
    assert_eq!(feed_line(&mut agent, &words), [""; 0], "acknowledged only once");
    assert_eq!(feed_line(&mut agent, &tool_part(json!({"status": "pending", "input": {}}))), [""; 0]);
    let runs = tool_part(json!({"status": "running", "input": {"command": "ls"}}));
    assert_eq!(feed_line(&mut agent, &runs), [r#"agent.tool_use "bash" [ToolStarted("c")]"#]);
    assert_eq!(feed_line(&mut agent, &runs), [""; 0]);
    let done = tool_part(
        json!({"status": "completed", "input": {"command": "ls"}, "output": "a.txt", "metadata": {"exit": 0}}),
    );
    assert_eq!(feed_line(&mut agent, &done), [r#"agent.tool_completed "bash" "a.txt" [ToolEnded("c")]"#]);
    assert_eq!(feed_line(&mut agent, &done), [""; 0]);
    let tokens = json!({"input": 138, "output": 42, "reasoning": 3, "cache": {"read": 50, "write": 0}});
    let step =
        part_updated(json!({"type": "step-finish", "id": "f", "messageID": "a1", "tokens": tokens, "cost": 0.25}));
    assert_eq!(feed_line(&mut agent, &step), ["ResponseEnded { parent: None }", "agent.usage 0.25"]);
    assert_eq!(feed_line(&mut agent, &session_status("idle")), [""; 0]);
    assert_eq!(feed_line(&mut agent, &session_idle()), [r#"agent.completed "end_turn" [TurnEnded]"#, "Idle"]);
    assert_eq!(feed_line(&mut agent, &session_idle()), [""; 0]);
}

#[test]
fn acknowledges_messages_that_a_response_follows() {
    let mut agent = driver_in_turn();
    agent.encode_message(&LeasedMessage::example("one", Delivery::Steer), AgentTurn::InTurn);
    agent.encode_message(&LeasedMessage::example("two", Delivery::Steer), AgentTurn::InTurn);
    feed_line(&mut agent, &stored_message("u2", "one"));
    assert_eq!(feed_line(&mut agent, &model_response("a1", "u1")), [""; 0], "a response to an earlier message");
    feed_line(&mut agent, &stored_message("u3", "two"));
    let outputs = feed_line(&mut agent, &model_response("a2", "u3"));
    let once = ["agent.message_injected ", "acknowledged injected"];
    assert_eq!(outputs, [once, once].concat());
    assert_eq!(feed_line(&mut agent, &model_response("a2", "u3")), [""; 0]);
}

#[test]
fn acknowledges_a_changed_message_at_the_end_of_the_turn() {
    let mut agent = OpenCodeDriver::default();
    feed_line(&mut agent, &json!({"ready": {"session": "s"}}));
    agent.encode_message(&LeasedMessage::example("go", Delivery::Steer), AgentTurn::Idle);
    feed_line(&mut agent, &stored_message("u1", "go, as the template says"));
    feed_line(&mut agent, &session_status("busy"));
    assert_eq!(feed_line(&mut agent, &model_response("a1", "u1")), [""; 0]);
    assert_eq!(
        feed_line(&mut agent, &session_idle()),
        ["acknowledged new_turn", r#"agent.completed "end_turn" [TurnEnded]"#, "Idle"]
    );
}

#[test]
fn an_interrupt_ends_the_turn_and_unread_messages_start_the_next() {
    let mut agent = driver_in_turn();
    feed_line(&mut agent, &tool_part(json!({"status": "running", "input": {}})));
    agent.encode_message(&LeasedMessage::example("unseen", Delivery::Steer), AgentTurn::InTurn);
    agent.encode_message(&LeasedMessage::example("not even stored", Delivery::Steer), AgentTurn::InTurn);
    feed_line(&mut agent, &stored_message("u2", "unseen"));
    assert_eq!(parse_line(&agent.encode_message(&interrupt_message(), AgentTurn::InTurn)), json!({"abort": {}}));
    let aborted = server_event("session.error", json!({"error": {"name": "MessageAbortedError", "data": {}}}));
    assert_eq!(feed_line(&mut agent, &aborted), [""; 0]);
    let ended = feed_line(&mut agent, &session_idle());
    assert_eq!(
        ended[..4],
        [
            r#"agent.tool_completed "bash" "the turn ended before the tool" [ToolEnded("c")]"#,
            "acknowledged injected",
            r#"agent.interrupted "enough" [TurnEnded]"#,
            "Idle"
        ]
    );
    assert_eq!(ended.len(), 5, "{ended:?}");
    let again: Value = serde_json::from_str(ended[4].trim_start_matches("reply ")).unwrap();
    let again = &again["prompt"];
    assert_eq!(again["text"], "unseen", "the other one is under way and starts its own turn");
    assert_eq!(again["stored"], json!({"message_id": "u2", "part_id": "pu2"}), "replaces the stored message");
    feed_line(&mut agent, &stored_message("u2", "unseen"));
    feed_line(&mut agent, &session_status("busy"));
    assert_eq!(feed_line(&mut agent, &model_response("a2", "u2")), ["acknowledged new_turn"]);
    let mut agent = OpenCodeDriver::default();
    assert!(agent.encode_message(&interrupt_message(), AgentTurn::InTurn).is_empty(), "no turn is running");
    feed_line(&mut agent, &json!({"ready": {"session": "s"}}));
    agent.encode_message(&LeasedMessage::example("go", Delivery::Steer), AgentTurn::Idle);
    assert!(agent.encode_message(&interrupt_message(), AgentTurn::InTurn).is_empty(), "the turn has not started");
    assert_eq!(feed_line(&mut agent, &session_status("busy"))[1], r#"reply {"abort":{}}"#);
    feed_line(&mut agent, &stored_message("u1", "go"));
    let expected =
        ["acknowledged new_turn", "acknowledged injected", r#"agent.interrupted "enough" [TurnEnded]"#, "Idle"];
    assert_eq!(feed_line(&mut agent, &session_idle()), expected, "the interrupt also ends the unread prompt");
}

#[test]
fn encodes_each_answer_once() {
    let mut agent = driver_in_turn();
    let asks = server_event(
        "permission.asked",
        json!({"id": "per", "permission": "bash", "patterns": ["ls"],
        "metadata": {"command": "ls"}, "tool": {"callID": "c"}}),
    );
    let outputs = feed_line(&mut agent, &asks);
    assert_eq!(outputs, [r#"request Permission bash {"details":{"command":"ls"},"patterns":["ls"]}"#]);
    let no = || RequestAnswer::Deny { reason: "not here".to_owned() };
    let denied = parse_line(&agent.answer_request("per", no()));
    assert_eq!(denied, json!({"permission": {"id": "per", "allow": false, "reason": "not here"}}));
    assert!(agent.answer_request("per", no()).is_empty());
    let mut of_other = asks.clone();
    of_other["event"]["data"]["properties"]["sessionID"] = "subagent".into();
    assert_eq!(feed_line(&mut agent, &of_other).len(), 1, "subagents ask too");
    assert!(!agent.answer_request("per", RequestAnswer::Allow { input: None, context: None }).is_empty());
    let questions = json!([{"question": "Which?", "header": "h"}, {"question": "Why?", "header": "w"}]);
    feed_line(&mut agent, &server_event("question.asked", json!({"id": "q", "questions": questions})));
    let reply =
        parse_line(&agent.answer_request("q", RequestAnswer::Answers(json!({"Which?": "this", "w": ["a", "b"]}))));
    assert_eq!(reply, json!({"answers": {"id": "q", "answers": [["this"], ["a", "b"]]}}));
    feed_line(&mut agent, &asks);
    feed_line(&mut agent, &session_idle());
    assert!(agent.answer_request("per", no()).is_empty(), "the turn is over");
}

#[test]
fn errors_fail_the_agent_and_retries_do_not() {
    let mut agent = driver_in_turn();
    let retry = server_event(
        "session.status",
        json!({"status": {"type": "retry", "attempt": 1, "message": "Rate limited: rate limit"}}),
    );
    assert_eq!(feed_line(&mut agent, &retry)[1], "RateLimited { wait: None }");
    let error = server_event(
        "session.error",
        json!({"error": {"name": "APIError", "data": {"message": "no key", "statusCode": 401}}}),
    );
    assert_eq!(feed_line(&mut agent, &error), [r#"agent.error "no key""#]);
    assert_eq!(feed_line(&mut agent, &session_idle()), [r#"Failed { error: "no key" }"#]);
    let mut agent = OpenCodeDriver::default();
    let failed = json!({"failed": {"error": "it does not listen"}});
    assert_eq!(feed_line(&mut agent, &failed), [r#"Failed { error: "it does not listen" }"#]);
    feed_line(&mut agent, &json!({"ready": {"session": "s"}}));
    let prompt = LeasedMessage::example("go", Delivery::Steer);
    agent.encode_message(&prompt, AgentTurn::Idle);
    let refused = json!({"refused": {"what": "prompt", "id": prompt.id, "error": "400 Bad Request"}});
    assert_eq!(
        feed_line(&mut agent, &refused)[1],
        r#"Failed { error: "the server rejected a message: 400 Bad Request" }"#
    );
}

#[test]
fn the_command_starts_the_bridge_with_the_settings() {
    let mcp = json!({"docs": {"command": "docs", "args": ["-v"]}});
    let settings = AgentSettings {
        model: Some("glm".to_owned()),
        approvals: Some(ApprovalMode::Ask),
        mode: Some(Mode::Exploration),
        system_prompt: Some("be brief".to_owned()),
        mcp: mcp.as_object().cloned(),
        ..AgentSettings::default()
    };
    let gateway =
        Gateway { base_url: "http://127.0.0.1:7709".to_owned(), key: "placeholder".to_owned(), apis: Vec::new() };
    let launch = LaunchContext {
        gateway: Some(&gateway),
        native_id: Some("ses"),
        ..LaunchContext::minimal(Path::new("/w"), &settings)
    };
    let mut agent = OpenCodeDriver::default();
    let command = agent.build_command(&launch);
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
    assert!(
        agent.encode_message(&LeasedMessage::example("go", Delivery::Steer), AgentTurn::Idle).is_empty(),
        "not ready"
    );
    let outputs = agent.handle_line(br#"{"ready":{"session":"ses"}}"#);
    let AgentOutput::Reply(reply) = &outputs[1] else { panic!("{outputs:?}") };
    let prompt = parse_lines(reply)[0]["prompt"].clone();
    assert_eq!((&prompt["system"], &prompt["agent"]), (&json!("be brief"), &json!("plan")));
    let settings = AgentSettings {
        model: Some("claude-x".to_owned()),
        approvals: Some(ApprovalMode::Full),
        ..AgentSettings::default()
    };
    let launch = LaunchContext { gateway: Some(&gateway), ..LaunchContext::minimal(Path::new("/w"), &settings) };
    let all = content(&opencode_launch::build_command(&launch).env);
    assert_eq!(all["provider"]["atoll"]["npm"], "@ai-sdk/anthropic");
    assert_eq!(all["permission"], json!({"*": "allow"}));
}

#[test]
fn the_command_uses_the_model_key_that_is_present() {
    let launch_with = |apis: &[ModelApi], model: Option<&str>| {
        let base_url = "http://127.0.0.1:7709".to_owned();
        let gateway = Gateway { base_url, key: "placeholder".to_owned(), apis: apis.to_vec() };
        let settings = AgentSettings { model: model.map(str::to_owned), ..AgentSettings::default() };
        let launch = LaunchContext { gateway: Some(&gateway), ..LaunchContext::minimal(Path::new("/w"), &settings) };
        let env = opencode_launch::build_command(&launch).env;
        let (_, text) = env.iter().find(|(name, _)| name == "OPENCODE_CONFIG_CONTENT").unwrap();
        let all: Value = serde_json::from_str(text).unwrap();
        let name = all["enabled_providers"][0].as_str().unwrap().to_owned();
        (name.clone(), all["provider"][name]["options"]["baseURL"].as_str().unwrap().to_owned())
    };
    let (anthropic, openai, gemini) = (ModelApi::Anthropic, ModelApi::OpenAi, ModelApi::Gemini);
    for (apis, name, path) in [
        (&[anthropic][..], "anthropic", "/anthropic/v1"),
        (&[openai], "openai", "/openai/v1"),
        (&[gemini], "google", "/gemini/v1beta"),
        (&[anthropic, openai, gemini], "openai", "/openai/v1"),
        (&[anthropic, gemini], "anthropic", "/anthropic/v1"),
        (&[], "openai", "/openai/v1"),
    ] {
        assert_eq!(launch_with(apis, None), (name.to_owned(), format!("http://127.0.0.1:7709{path}")), "{apis:?}");
    }
    let named = launch_with(&[openai], Some("gemini-9"));
    assert_eq!(named, ("atoll".to_owned(), "http://127.0.0.1:7709/gemini/v1beta".to_owned()));
}

proptest! {
    #![proptest_config(proptest_config(10_000))]

    /// Every line yields output, at least `Unparsed`, and nothing panics.
    #[test]
    fn random_bytes_are_unparsed(bytes in prop::collection::vec(any::<u8>(), 1..200)) {
        let outputs = OpenCodeDriver::default().handle_line(&bytes);
        prop_assert!(matches!(&outputs[..], [AgentOutput::Unparsed { .. }]), "{:?}", outputs);
    }

    #[test]
    fn unexpected_values_do_not_panic(
        kind in prop::sample::select(vec!["session.status", "session.idle", "session.error", "message.updated",
            "message.part.updated", "message.part.delta", "permission.asked", "question.asked", "thing.new"]),
        field in prop::sample::select(vec!["status", "error", "info", "part", "delta", "id", "questions"]),
        value in prop::sample::select(vec![json!(null), json!(1), json!("x"), json!([1]), json!({"type": "tool"}),
            json!({"type": "tool", "id": "i", "callID": "c", "state": {"status": 3}}), json!({"type": "text", "id": "i"}),
            json!({"role": "assistant", "id": 4, "parentID": null}), json!({"type": "step-finish", "id": "f", "tokens": 3})]),
    ) {
        let mut agent = driver_in_turn();
        let mut properties = json!({});
        properties[field] = value;
        let outputs = agent.handle_line(server_event(kind, properties).to_string().as_bytes());
        agent.handle_line(session_idle().to_string().as_bytes());
        prop_assert!(kind != "thing.new" || matches!(&outputs[..], [AgentOutput::Unparsed { .. }]), "{:?}", outputs);
    }
}
