use super::*;
use crate::settings::AgentSettings;
use crate::testing::{feed_line, parse_line, parse_lines, proptest_config};
use crate::transcript::TranscriptStorage;
use atoll_core::agent::AcpLaunch;
use atoll_core::message::Delivery;
use atoll_core::sandbox::ApprovalMode;
use atoll_protocol::Gateway;
use proptest::prelude::*;
use std::path::Path;

fn session_update(update: Value) -> Value {
    json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": update}})
}

fn text_chunk(text: &str) -> Value {
    session_update(json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}))
}

fn initialized_driver(capabilities: &Value) -> AcpDriver {
    let mut acp = AcpDriver::new(AcpAgent::Gemini);
    assert_eq!(parse_line(&acp.handshake())["params"]["protocolVersion"], 1);
    assert_eq!(feed_line(&mut acp, &json!({"jsonrpc": "2.0", "id": 1, "result": capabilities})), ["reply session/new"]);
    acp
}

/// A driver in a turn; the prompt is request 3.
fn driver_in_turn(capabilities: &Value) -> AcpDriver {
    let mut acp = initialized_driver(capabilities);
    let opened = feed_line(&mut acp, &json!({"id": 2, "result": {"sessionId": "s"}}));
    assert_eq!(opened, [r#"NativeId { id: "s" }"#, "reply "]);
    let request = parse_line(&acp.encode_message(&LeasedMessage::example("go", Delivery::Steer), AgentTurn::Idle));
    assert_eq!(
        (&request["method"], &request["params"]["prompt"]),
        (&json!("session/prompt"), &json!([text_block("go")]))
    );
    acp
}

fn interrupt_message() -> LeasedMessage {
    LeasedMessage { message_type: MessageType::Interrupt, ..LeasedMessage::example("enough", Delivery::Steer) }
}

fn prompt_result(id: u64, reason: &str) -> Value {
    json!({"id": id, "result": {"stopReason": reason}})
}

#[test]
fn a_turn_runs_from_prompt_to_end() {
    let mut acp = driver_in_turn(&json!({}));
    assert_eq!(feed_line(&mut acp, &session_update(json!({"sessionUpdate": "available_commands_update"}))), [""; 0]);
    let thought = json!({"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": "Hm."}});
    assert_eq!(
        feed_line(&mut acp, &session_update(thought)),
        ["agent.started  [TurnStarted]", "acknowledged new_turn"]
    );
    let first = feed_line(&mut acp, &text_chunk("I "));
    assert_eq!(first, [r#"agent.thinking "Hm.""#, r#"delta {"text":"I "}"#]);
    assert_eq!(feed_line(&mut acp, &text_chunk("will")), [r#"delta {"text":"will"}"#]);
    let call = json!({"sessionUpdate": "tool_call", "toolCallId": "c", "title": "ls", "kind": "execute",
        "status": "pending", "rawInput": {}});
    assert_eq!(feed_line(&mut acp, &session_update(call)), [r#"agent.message "I will""#], "the call has not started");
    let runs = json!({"sessionUpdate": "tool_call_update", "toolCallId": "c", "rawInput": {"command": "ls"}});
    assert_eq!(feed_line(&mut acp, &session_update(runs)), [r#"agent.tool_use "Bash" [ToolStarted("c")]"#]);
    let done = json!({"sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "completed",
        "content": [{"type": "content", "content": {"type": "text", "text": "a.txt"}}]});
    assert_eq!(feed_line(&mut acp, &session_update(done)), [r#"agent.tool_completed "Bash" "a.txt" [ToolEnded("c")]"#]);
    let plan = json!({"sessionUpdate": "plan", "entries": [{"content": "look", "status": "pending"}]});
    assert_eq!(feed_line(&mut acp, &session_update(plan)), [r#"agent.plan [{"state":"pending","text":"look"}]"#]);
    let cost = json!({"sessionUpdate": "usage_update", "used": 1, "cost": {"amount": 0.5, "currency": "USD"}});
    feed_line(&mut acp, &session_update(cost));
    feed_line(&mut acp, &text_chunk("done"));
    let ended = json!({"id": 3, "result": {"stopReason": "end_turn", "usage": {"inputTokens": 5, "outputTokens": 2}}});
    let expected = [r#"agent.message "done""#, "agent.usage 0.5", r#"agent.completed "end_turn" [TurnEnded]"#, "Idle"];
    assert_eq!(feed_line(&mut acp, &ended), expected);
    let late = [r#"Unparsed { reason: "work update outside a turn" }"#];
    assert_eq!(feed_line(&mut acp, &text_chunk("more")), late, "no prompt is running");
}

#[test]
fn steers_agents_that_support_it() {
    let mut acp = driver_in_turn(&json!({"_meta": {"steering": {"supported": true}}}));
    feed_line(&mut acp, &text_chunk("I "));
    let request =
        parse_line(&acp.encode_message(&LeasedMessage::example("and this", Delivery::Steer), AgentTurn::InTurn));
    assert_eq!(request["method"], "_session/steering");
    let injected = feed_line(&mut acp, &json!({"id": 4, "result": {"outcome": "injected"}}));
    assert_eq!(injected, ["agent.message_injected ", "acknowledged injected"]);
    acp.encode_message(&LeasedMessage::example("too late", Delivery::Steer), AgentTurn::InTurn);
    assert_eq!(feed_line(&mut acp, &prompt_result(3, "end_turn")).last().unwrap(), "Idle");
    assert_eq!(feed_line(&mut acp, &json!({"id": 5, "error": {"message": "no turn"}})), ["reply session/prompt"]);
    assert_eq!(feed_line(&mut acp, &text_chunk("x"))[..2], ["agent.started  [TurnStarted]", "acknowledged new_turn"]);
}

#[test]
fn cancels_and_prompts_again_in_the_same_turn() {
    let mut acp = driver_in_turn(&json!({}));
    feed_line(
        &mut acp,
        &session_update(
            json!({"sessionUpdate": "tool_call", "toolCallId": "c", "kind": "execute", "status": "in_progress"}),
        ),
    );
    assert_eq!(
        parse_line(&acp.encode_message(&LeasedMessage::example("this", Delivery::Steer), AgentTurn::InTurn))["method"],
        "session/cancel"
    );
    assert!(
        acp.encode_message(&LeasedMessage::example("and that", Delivery::Steer), AgentTurn::InTurn).is_empty(),
        "already cancelling"
    );
    let outputs = acp.handle_line(prompt_result(3, "cancelled").to_string().as_bytes());
    let [.., AgentOutput::Reply(prompt)] = &outputs[..] else { panic!("{outputs:?}") };
    let blocks = parse_line(prompt)["params"]["prompt"].clone();
    assert_eq!(blocks, json!([text_block("this"), text_block("and that"), text_block(RESTART_NOTE)]));
    assert!(!outputs.iter().any(|output| matches!(output, AgentOutput::Idle)), "{outputs:?}");
    let broken = crate::testing::summarize_output(&outputs[0]);
    assert_eq!(broken, r#"agent.tool_completed "Bash" "the turn ended before the tool" [ToolEnded("c")]"#);
    let injected = feed_line(&mut acp, &text_chunk("ok"));
    assert_eq!(injected[..2], ["agent.message_injected ", "acknowledged restarted"]);
    assert_eq!(injected[2..4], ["agent.message_injected ", "acknowledged restarted"]);
    assert_eq!(
        feed_line(&mut acp, &prompt_result(4, "end_turn"))[1..],
        [r#"agent.completed "end_turn" [TurnEnded]"#, "Idle"]
    );
}

#[test]
fn a_prompt_that_ends_before_the_cancel_starts_another_turn() {
    let mut acp = driver_in_turn(&json!({}));
    acp.encode_message(&LeasedMessage::example("this", Delivery::Steer), AgentTurn::InTurn);
    let ended = feed_line(&mut acp, &prompt_result(3, "end_turn"));
    let expected = [
        "agent.started  [TurnStarted]",
        "acknowledged new_turn",
        r#"agent.completed "end_turn" [TurnEnded]"#,
        "Idle",
        "reply session/prompt",
    ];
    assert_eq!(ended, expected);
    assert_eq!(feed_line(&mut acp, &text_chunk("ok"))[..2], ["agent.started  [TurnStarted]", "acknowledged new_turn"]);
}

#[test]
fn an_interrupt_ends_the_turn_and_cancels_open_requests() {
    let mut acp = driver_in_turn(&json!({}));
    feed_line(&mut acp, &permission_request(7, "c"));
    let lines = parse_lines(&acp.encode_message(&interrupt_message(), AgentTurn::InTurn));
    assert_eq!(lines[0]["method"], "session/cancel");
    assert_eq!(lines[1], json!({"jsonrpc": "2.0", "id": 7, "result": {"outcome": {"outcome": "cancelled"}}}));
    let ended = feed_line(&mut acp, &json!({"id": 3, "error": {"message": "aborted"}}));
    let expected = ["acknowledged injected", r#"agent.interrupted "enough" [TurnEnded]"#, "Idle"];
    assert_eq!(ended[1..], expected, "some agents report an error");
    assert!(acp.encode_message(&interrupt_message(), AgentTurn::InTurn).is_empty(), "no turn is running");
}

fn permission_request(id: u64, call: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": {"sessionId": "s",
        "options": [{"optionId": "always", "kind": "allow_always"}, {"optionId": "once", "kind": "allow_once"},
            {"optionId": "no", "kind": "reject_once"}],
        "toolCall": {"toolCallId": call, "title": "python3 hello.py", "kind": "execute", "status": "pending",
            "content": []}}})
}

#[test]
fn answers_permissions_once_and_delays_steers_until_then() {
    let mut acp = driver_in_turn(&json!({}));
    let outputs = feed_line(&mut acp, &permission_request(0, "c"));
    assert_eq!(outputs[2], r#"agent.tool_use "Bash" [ToolStarted("c")]"#, "the request also reports the start");
    assert!(outputs[3].starts_with("request Permission Bash {\"command\":\"python3 hello.py\""), "{outputs:?}");
    assert!(acp.encode_message(&LeasedMessage::example("this", Delivery::Steer), AgentTurn::InTurn).is_empty());
    let answered = parse_lines(&acp.answer_request("0", RequestAnswer::Allow { input: None, context: None }));
    assert_eq!(answered[0]["result"]["outcome"], json!({"outcome": "selected", "optionId": "once"}));
    assert_eq!(answered[1]["method"], "session/cancel");
    assert!(acp.answer_request("0", RequestAnswer::Deny { reason: String::new() }).is_empty());
    feed_line(&mut acp, &permission_request(1, "d"));
    let denied = parse_line(&acp.answer_request("1", RequestAnswer::Deny { reason: "no".to_owned() }));
    assert_eq!(denied["result"]["outcome"]["optionId"], "no");
    let files = json!({"jsonrpc": "2.0", "id": 9, "method": "fs/read_text_file", "params": {"path": "/etc/passwd"}});
    assert_eq!(
        feed_line(&mut acp, &files),
        [r#"reply {"error":{"code":-32601,"message":"`fs/read_text_file` is not supported"},"id":9,"jsonrpc":"2.0"}"#]
    );
}

#[test]
fn resumes_a_session_or_reports_the_failure() {
    let loads = json!({"id": 1, "result": {"agentCapabilities": {"loadSession": true}}});
    let mut acp = AcpDriver { native_id: Some("s".to_owned()), ..AcpDriver::new(AcpAgent::generic()) };
    acp.handshake();
    assert_eq!(feed_line(&mut acp, &loads), ["reply session/load"]);
    assert_eq!(feed_line(&mut acp, &text_chunk("from before")), [""; 0]);
    assert_eq!(feed_line(&mut acp, &json!({"id": 2, "result": {}})), [r#"NativeId { id: "s" }"#, "reply "]);
    let mut acp = AcpDriver { native_id: Some("s".to_owned()), ..AcpDriver::new(AcpAgent::generic()) };
    acp.handshake();
    feed_line(&mut acp, &loads);
    let lost = feed_line(&mut acp, &json!({"id": 2, "error": {"message": "unknown"}}));
    assert_eq!(lost, [r#"agent.system_message "unknown""#, "reply session/new"]);
    let none = feed_line(&mut acp, &json!({"id": 3, "error": {"message": "Authentication required"}}));
    assert_eq!(none, [r#"Failed { error: "failed to start a session: Authentication required" }"#]);
}

#[test]
fn a_long_text_is_split() {
    let mut acp = driver_in_turn(&json!({}));
    let mut text = String::new();
    for _ in 0..60 {
        for output in acp.handle_line(text_chunk(&"ä".repeat(500)).to_string().as_bytes()) {
            if let AgentOutput::Event(event) = output {
                let data: Value = serde_json::from_str(event.data.get()).unwrap();
                text.push_str(data["text"].as_str().unwrap_or_default());
            }
        }
    }
    for output in acp.handle_line(prompt_result(3, "end_turn").to_string().as_bytes()) {
        if let AgentOutput::Event(event) = output {
            let data: Value = serde_json::from_str(event.data.get()).unwrap();
            text.push_str(data["text"].as_str().unwrap_or_default());
        }
    }
    assert_eq!(text, "ä".repeat(30_000));
}

#[test]
fn the_command_follows_the_settings() {
    let mcp = json!({"docs": {"command": "docs", "env": {"A": "1"}}, "far": {"url": "https://far"}});
    let settings = AgentSettings {
        model: Some("pro".to_owned()),
        approvals: Some(ApprovalMode::Full),
        system_prompt: Some("be brief".to_owned()),
        mcp: mcp.as_object().cloned(),
        ..AgentSettings::default()
    };
    let gateway =
        Gateway { base_url: "http://127.0.0.1:7709".to_owned(), key: "placeholder".to_owned(), apis: Vec::new() };
    let launch = LaunchContext { gateway: Some(&gateway), ..LaunchContext::minimal(Path::new("/w"), &settings) };
    let mut gemini = AcpDriver::new(AcpAgent::Gemini);
    let command = gemini.build_command(&launch);
    assert_eq!(command.argv, ["gemini", "--acp", "--approval-mode", "yolo", "--model", "pro"]);
    let url = ("GOOGLE_GEMINI_BASE_URL".to_owned(), "http://127.0.0.1:7709/gemini".to_owned());
    assert!(command.env.contains(&url) && !command.files[0].text.contains("placeholder"));
    gemini.handshake();
    let outputs = gemini.handle_line(br#"{"id":1,"result":{}}"#);
    let AgentOutput::Reply(reply) = &outputs[0] else { panic!("{outputs:?}") };
    let servers = parse_line(reply)["params"]["mcpServers"].clone();
    assert_eq!(
        servers[0],
        json!({"name": "docs", "command": "docs", "args": [], "env": [{"name": "A", "value": "1"}]})
    );
    assert_eq!(servers[1], json!({"type": "http", "name": "far", "url": "https://far", "headers": []}));
    gemini.handle_line(br#"{"id":2,"result":{"sessionId":"s"}}"#);
    let first = parse_line(&gemini.encode_message(&LeasedMessage::example("go", Delivery::Steer), AgentTurn::Idle));
    assert_eq!(first["params"]["prompt"], json!([text_block("go")]), "the system prompt is in a file");
    let launch = LaunchContext { agent_program: Some(Path::new("/opt/goose")), ..launch };
    let mut other = AcpDriver::new(AcpAgent::generic());
    let command = other.build_command(&launch);
    assert_eq!(command.argv, ["/opt/goose"]);
    assert!(command.env.iter().any(|(name, _)| name == "OPENAI_BASE_URL"));
    other.handshake();
    let outputs =
        other.handle_line(br#"{"id":1,"result":{"agentCapabilities":{"sessionCapabilities":{"systemPrompt":{}}}}}"#);
    let AgentOutput::Reply(reply) = &outputs[0] else { panic!("{outputs:?}") };
    assert_eq!(parse_line(reply)["params"]["_meta"]["systemPrompt"]["append"], "be brief");
}

proptest! {
    #![proptest_config(proptest_config(10_000))]

    /// Every line yields output, at least `Unparsed`, and nothing panics.
    #[test]
    fn random_bytes_are_unparsed(bytes in prop::collection::vec(any::<u8>(), 1..200)) {
        let outputs = AcpDriver::new(AcpAgent::generic()).handle_line(&bytes);
        prop_assert!(matches!(&outputs[..], [AgentOutput::Unparsed { .. }]), "{:?}", outputs);
    }

    #[test]
    fn unexpected_values_do_not_panic(
        kind in prop::sample::select(vec!["agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update",
            "plan", "usage_update", "session_info_update", "new_thing"]),
        field in prop::sample::select(vec!["content", "toolCallId", "rawInput", "status", "entries", "cost", "_meta"]),
        value in prop::sample::select(vec![json!(null), json!(1), json!("completed"), json!([1]), json!({"text": 1}),
            json!({"text": "x"}), json!({"amount": 1e300}), json!([{"content": {"text": "y"}}, null])]),
        id in prop::sample::select(vec![json!(null), json!("c"), json!(3)]),
    ) {
        let mut acp = driver_in_turn(&json!({}));
        let mut it = json!({"sessionUpdate": kind, "toolCallId": id});
        it[field] = value;
        let outputs = acp.handle_line(session_update(it).to_string().as_bytes());
        acp.handle_line(prompt_result(3, "end_turn").to_string().as_bytes());
        prop_assert!(kind != "new_thing" || matches!(&outputs[..], [AgentOutput::Unparsed { .. }]), "{:?}", outputs);
    }
}

#[test]
fn a_named_agent_gets_its_arguments_and_environment() {
    let settings = AgentSettings::default();
    let launch = AcpLaunch {
        arguments: vec!["acp".to_owned(), "--quiet".to_owned()],
        environment: [("OPENAI_API_KEY".to_owned(), "own".to_owned())].into(),
        session_dir: Some(".goose".to_owned()),
    };
    let mut goose = AcpDriver::new(AcpAgent::Named { name: "goose".to_owned(), launch });
    let gateway = Gateway { base_url: "http://gateway".to_owned(), key: "placeholder".to_owned(), apis: Vec::new() };
    let context = LaunchContext { gateway: Some(&gateway), ..LaunchContext::minimal(Path::new("/worker"), &settings) };
    let command = goose.build_command(&context);
    assert_eq!(command.argv, ["goose", "acp", "--quiet"]);
    let key = command.env.iter().rfind(|(name, _)| name == "OPENAI_API_KEY");
    assert_eq!(key.map(|(_, value)| value.as_str()), Some("own"), "the configuration comes last");
    let support = goose.transcript_support().unwrap();
    assert_eq!(support.agent, "goose");
    assert!(matches!(support.storage, TranscriptStorage::Directory(path) if path == ".goose"));
    assert!(AcpDriver::new(AcpAgent::generic()).transcript_support().is_none());
}
