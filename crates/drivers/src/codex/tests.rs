use super::*;
use crate::settings::AgentSettings;
use crate::testing::{feed_line, parse_line, parse_lines, proptest_config};
use atoll_core::message::Delivery;
use atoll_core::sandbox::ApprovalMode;
use atoll_protocol::Gateway;
use proptest::prelude::*;
use std::path::Path;

fn notification(method: &str, mut params: Value) -> Value {
    params["threadId"] = "t".into();
    json!({"method": method, "params": params, "emittedAtMs": 1})
}

fn item_notification(method: &str, item: Value) -> Value {
    notification(method, json!({"item": item, "turnId": "u"}))
}

fn user_message_item(message: &LeasedMessage) -> Value {
    let words = json!([{"type": "text", "text": message.content}]);
    item_notification(
        "item/started",
        json!({"type": "userMessage", "id": "i", "clientId": message.id, "content": words}),
    )
}

fn turn_notification(method: &str, status: &str) -> Value {
    notification(method, json!({"turn": {"id": "u", "status": status, "error": null, "durationMs": 9}}))
}

fn driver_with_thread() -> CodexDriver {
    let mut codex = CodexDriver::default();
    assert_eq!(parse_line(&codex.handshake())["method"], "initialize");
    assert_eq!(feed_line(&mut codex, &json!({"id": 1, "result": {}})), ["reply initialized, thread/start"]);
    let thread = json!({"id": 2, "result": {"thread": {"id": "t", "cliVersion": "1"}, "model": "m"}});
    assert_eq!(feed_line(&mut codex, &thread), [r#"NativeId { id: "t" }"#, "reply "]);
    codex
}

/// A driver in a turn that this prompt started.
fn driver_in_turn(prompt: &LeasedMessage) -> CodexDriver {
    let mut codex = driver_with_thread();
    codex.encode_message(prompt, AgentTurn::Idle);
    feed_line(&mut codex, &json!({"id": 3, "result": {"turn": {"id": "u"}}}));
    assert_eq!(
        feed_line(&mut codex, &turn_notification("turn/started", "inProgress")),
        ["agent.started  [TurnStarted]"]
    );
    assert_eq!(feed_line(&mut codex, &user_message_item(prompt)), ["acknowledged new_turn"]);
    codex
}

fn interrupt_message() -> LeasedMessage {
    LeasedMessage { message_type: MessageType::Interrupt, ..LeasedMessage::example("enough", Delivery::Steer) }
}

#[test]
fn a_turn_runs_from_prompt_to_end() {
    let prompt = LeasedMessage::example("go", Delivery::Steer);
    let mut codex = driver_in_turn(&prompt);
    let thought = json!({"type": "reasoning", "id": "r", "summary": ["What to do?"], "content": []});
    assert_eq!(
        feed_line(&mut codex, &item_notification("item/completed", thought)),
        [r#"agent.thinking "What to do?""#]
    );
    let delta = notification("item/agentMessage/delta", json!({"delta": "I wi"}));
    assert_eq!(feed_line(&mut codex, &delta), [r#"delta {"text":"I wi"}"#]);
    let words = json!({"type": "agentMessage", "id": "m", "text": "I will"});
    assert_eq!(feed_line(&mut codex, &item_notification("item/completed", words)), [r#"agent.message "I will""#]);
    let without_text = item_notification("item/completed", json!({"type": "agentMessage", "id": "m"}));
    let outputs = codex.handle_line(without_text.to_string().as_bytes());
    assert!(matches!(&outputs[..], [AgentOutput::Unparsed { .. }]), "{outputs:?}");
    let change = json!({"type": "fileChange", "id": "c1", "status": "completed",
        "changes": [{"path": "/workspace/a", "kind": {"type": "add"}, "diff": "x\n"}]});
    assert_eq!(
        feed_line(&mut codex, &item_notification("item/started", change.clone())),
        [r#"agent.tool_use "Write" [ToolStarted("c1")]"#]
    );
    let ended = feed_line(&mut codex, &item_notification("item/completed", change));
    assert_eq!(ended, [r#"agent.tool_completed "Write" "" [ToolEnded("c1")]"#]);
    let run = json!({"type": "commandExecution", "id": "c2", "command": "/bin/bash -lc ls", "cwd": "/workspace",
        "status": "completed", "aggregatedOutput": "a\n", "exitCode": 0});
    let both = feed_line(&mut codex, &item_notification("item/completed", run));
    assert_eq!(both[0], r#"agent.tool_use "Bash" [ToolStarted("c2")]"#, "the end also reports the start");
    assert_eq!(both[1], r#"agent.tool_completed "Bash" "a\n" [ToolEnded("c2")]"#);
    let plan = notification("turn/plan/updated", json!({"plan": [{"step": "look", "status": "inProgress"}]}));
    assert_eq!(feed_line(&mut codex, &plan), [r#"agent.plan [{"state":"in_progress","text":"look"}]"#]);
    let ended = feed_line(&mut codex, &turn_notification("turn/completed", "completed"));
    assert_eq!(ended, [r#"agent.completed "end_turn" [TurnEnded]"#, "Idle"]);
}

#[test]
fn early_messages_are_queued_and_late_ones_start_a_turn() {
    let mut codex = CodexDriver::default();
    codex.handshake();
    let (first, second) =
        (LeasedMessage::example("one", Delivery::Steer), LeasedMessage::example("two", Delivery::Steer));
    assert!(codex.encode_message(&first, AgentTurn::Idle).is_empty());
    assert!(codex.encode_message(&second, AgentTurn::InTurn).is_empty());
    feed_line(&mut codex, &json!({"id": 1, "result": {}}));
    let thread = json!({"id": 2, "result": {"thread": {"id": "t"}}});
    assert_eq!(feed_line(&mut codex, &thread)[1], "reply turn/start", "the second waits for the turn id");
    assert_eq!(feed_line(&mut codex, &json!({"id": 3, "result": {"turn": {"id": "u"}}})), ["reply turn/steer"]);
    feed_line(&mut codex, &turn_notification("turn/started", "inProgress"));
    feed_line(&mut codex, &user_message_item(&first));
    let refused = json!({"id": 4, "error": {"code": -32600, "message": "no active turn to steer"}});
    assert_eq!(feed_line(&mut codex, &refused), ["reply "], "steer rejected");
    let ended = feed_line(&mut codex, &turn_notification("turn/completed", "completed"));
    assert_eq!(ended[1..], ["Idle", "reply turn/start"]);
    feed_line(&mut codex, &turn_notification("turn/started", "inProgress"));
    assert_eq!(feed_line(&mut codex, &user_message_item(&second)), ["acknowledged new_turn"]);
}

#[test]
fn accepts_steers_and_interrupts() {
    let mut codex = driver_in_turn(&LeasedMessage::example("go", Delivery::Steer));
    let steer = LeasedMessage::example("and this", Delivery::Steer);
    let request = parse_line(&codex.encode_message(&steer, AgentTurn::InTurn));
    assert_eq!((&request["method"], &request["params"]["expectedTurnId"]), (&json!("turn/steer"), &json!("u")));
    assert_eq!(request["params"]["clientUserMessageId"], json!(steer.id));
    assert_eq!(feed_line(&mut codex, &user_message_item(&steer)), ["agent.message_injected ", "acknowledged injected"]);
    assert_eq!(feed_line(&mut codex, &user_message_item(&steer)), [""; 0], "acknowledged only once");
    let late = LeasedMessage::example("unseen", Delivery::Steer);
    codex.encode_message(&late, AgentTurn::InTurn);
    assert_eq!(parse_line(&codex.encode_message(&interrupt_message(), AgentTurn::InTurn))["method"], "turn/interrupt");
    let ended = feed_line(&mut codex, &turn_notification("turn/completed", "interrupted"));
    let expected = ["acknowledged injected", r#"agent.interrupted "enough" [TurnEnded]"#, "Idle", "reply turn/start"];
    assert_eq!(ended, expected, "the unread message starts the next turn");
    let mut idle = driver_with_thread();
    assert!(idle.encode_message(&interrupt_message(), AgentTurn::InTurn).is_empty(), "no turn is running");
    idle.encode_message(&LeasedMessage::example("go", Delivery::Steer), AgentTurn::Idle);
    assert!(idle.encode_message(&interrupt_message(), AgentTurn::InTurn).is_empty(), "the turn has no id");
    assert_eq!(feed_line(&mut idle, &json!({"id": 3, "result": {"turn": {"id": "u"}}})), ["reply turn/interrupt"]);
    feed_line(&mut idle, &turn_notification("turn/started", "inProgress"));
    let ended = feed_line(&mut idle, &turn_notification("turn/completed", "interrupted"));
    let expected =
        ["acknowledged new_turn", "acknowledged injected", r#"agent.interrupted "enough" [TurnEnded]"#, "Idle"];
    assert_eq!(ended, expected, "the interrupt also ends the unread prompt");
}

#[test]
fn encodes_each_answer_once() {
    let mut codex = driver_in_turn(&LeasedMessage::example("go", Delivery::Steer));
    let change = json!({"type": "fileChange", "id": "c", "changes": [{"path": "/a", "kind": {"type": "update"}}]});
    feed_line(&mut codex, &item_notification("item/started", change));
    let asks = |id: u64, method: &str, params: Value| json!({"id": id, "method": method, "params": params});
    let edit = asks(0, "item/fileChange/requestApproval", json!({"threadId": "t", "itemId": "c"}));
    let outputs = feed_line(&mut codex, &edit);
    assert!(outputs[0].starts_with("request Permission Edit {\"changes\":[{"), "{outputs:?}");
    let no = RequestAnswer::Deny { reason: "no".to_owned() };
    assert_eq!(
        parse_line(&codex.answer_request("0", no.clone())),
        json!({"jsonrpc": "2.0", "id": 0, "result": {"decision": "decline"}})
    );
    assert!(codex.answer_request("0", no.clone()).is_empty());
    let run = asks(1, "item/commandExecution/requestApproval", json!({"itemId": "x", "command": "ls", "cwd": "/"}));
    assert!(feed_line(&mut codex, &run)[0].starts_with("request Permission Bash"));
    let yes = RequestAnswer::Allow { input: None, context: None };
    assert_eq!(parse_line(&codex.answer_request("1", yes.clone()))["result"], json!({"decision": "accept"}));
    let questions = json!([{"id": "q1", "header": "h", "question": "Which?"}]);
    feed_line(&mut codex, &asks(2, "item/tool/requestUserInput", json!({"itemId": "q", "questions": questions})));
    let words = parse_line(&codex.answer_request("2", RequestAnswer::Answers(json!({"Which?": "this"}))));
    assert_eq!(words["result"], json!({"answers": {"q1": {"answers": ["this"]}}}));
    let refused = feed_line(&mut codex, &asks(3, "item/tool/call", json!({})));
    assert!(refused[0].contains("is not supported") || refused[0].contains("error"), "{refused:?}");
    feed_line(&mut codex, &run);
    feed_line(&mut codex, &notification("serverRequest/resolved", json!({"requestId": 1})));
    assert!(codex.answer_request("1", yes).is_empty(), "no longer open");
    feed_line(&mut codex, &run);
    feed_line(&mut codex, &turn_notification("turn/completed", "completed"));
    assert!(codex.answer_request("1", no).is_empty(), "the turn is over");
}

#[test]
fn reports_tokens_since_the_last_report() {
    let mut codex = driver_with_thread();
    let used = |input: i64, cached: i64, output: i64| {
        let total = json!({"inputTokens": input, "cachedInputTokens": cached, "outputTokens": output});
        notification("thread/tokenUsage/updated", json!({"tokenUsage": {"total": total}}))
    };
    let end = ["ResponseEnded { parent: None }"];
    assert_eq!(feed_line(&mut codex, &used(100, 0, 10)), end, "tokens of an earlier process");
    codex.encode_message(&LeasedMessage::example("go", Delivery::Steer), AgentTurn::Idle);
    feed_line(&mut codex, &turn_notification("turn/started", "inProgress"));
    let AgentOutput::Event(event) = &codex.handle_line(used(150, 20, 15).to_string().as_bytes())[1] else { panic!() };
    let data: Value = serde_json::from_str(event.data.get()).unwrap();
    assert_eq!((&data["input_tokens"], &data["output_tokens"]), (&json!(30), &json!(5)));
    assert_eq!(data["cache_read_tokens"], 20);
    assert_eq!(feed_line(&mut codex, &used(150, 20, 15)), end, "no new tokens");
}

#[test]
fn reports_an_error_once_and_fails() {
    let mut codex = driver_in_turn(&LeasedMessage::example("go", Delivery::Steer));
    let error = |retries: bool, info: Value| {
        notification("error", json!({"willRetry": retries, "error": {"message": "busy", "codexErrorInfo": info}}))
    };
    let limited =
        feed_line(&mut codex, &error(true, json!({"responseTooManyFailedAttempts": {"httpStatusCode": 429}})));
    assert_eq!(limited, [r#"agent.stream_error "busy""#, "RateLimited { wait: None }"]);
    assert_eq!(feed_line(&mut codex, &error(false, json!("other"))), [r#"agent.error "busy""#]);
    let failed =
        notification("turn/completed", json!({"turn": {"id": "u", "status": "failed", "error": {"message": "busy"}}}));
    assert_eq!(feed_line(&mut codex, &failed), [r#"Failed { error: "busy" }"#]);
    let mut codex = CodexDriver { native_id: Some("x".to_owned()), ..CodexDriver::default() };
    codex.handshake();
    assert_eq!(feed_line(&mut codex, &json!({"id": 1, "result": {}})), ["reply initialized, thread/resume"]);
    let lost = feed_line(&mut codex, &json!({"id": 2, "error": {"message": "no rollout found"}}));
    assert_eq!(lost, [r#"Failed { error: "failed to resume conversation x: no rollout found" }"#]);
}

#[test]
fn a_subagent_s_events_name_its_tool_call() {
    let mut codex = driver_in_turn(&LeasedMessage::example("go", Delivery::Steer));
    let spawn = json!({"type": "collabAgentToolCall", "id": "s", "tool": "spawnAgent", "prompt": "look",
        "receiverThreadIds": ["other"]});
    let started = feed_line(&mut codex, &item_notification("item/started", spawn));
    assert_eq!(started[1], "agent.subagent_invoked ");
    let mut of_other =
        item_notification("item/started", json!({"type": "commandExecution", "id": "c", "command": "ls"}));
    of_other["params"]["threadId"] = "other".into();
    let AgentOutput::Event(event) = &codex.handle_line(of_other.to_string().as_bytes())[0] else { panic!() };
    assert!(event.data.get().contains(r#""parent_tool_use_id":"s""#), "{}", event.data);
    let mut completed = turn_notification("turn/completed", "completed");
    completed["params"]["threadId"] = "other".into();
    assert_eq!(feed_line(&mut codex, &completed), [""; 0], "our turn continues");
}

#[test]
fn the_command_follows_the_settings_and_files_contain_no_secret() {
    let mcp = json!({"docs": {"type": "stdio", "command": "docs", "args": ["-v"]}});
    let settings = AgentSettings {
        model: Some("gpt".to_owned()),
        approvals: Some(ApprovalMode::Full),
        system_prompt: Some("be brief".to_owned()),
        mcp: mcp.as_object().cloned(),
        ..AgentSettings::default()
    };
    let gateway =
        Gateway { base_url: "http://127.0.0.1:7709".to_owned(), key: "placeholder".to_owned(), apis: Vec::new() };
    let launch = LaunchContext {
        gateway: Some(&gateway),
        native_id: Some("n"),
        ..LaunchContext::minimal(Path::new("/w"), &settings)
    };
    let mut codex = CodexDriver::default();
    let command = codex.build_command(&launch);
    assert_eq!(command.argv, ["codex", "app-server"]);
    assert!(command.env.contains(&("ATOLL_MODEL_KEY".to_owned(), "placeholder".to_owned())));
    let file = &command.files[0];
    assert_eq!(file.path, Path::new(".codex/config.toml"));
    assert!(file.text.contains("base_url = \"http://127.0.0.1:7709/openai/v1\"") && !file.text.contains("placeholder"));
    let provider = file.text.find("model_provider =").unwrap();
    assert!(provider < file.text.find('[').unwrap(), "must precede all tables: {}", file.text);
    codex.handshake();
    let AgentOutput::Reply(reply) = &codex.handle_line(br#"{"id":1,"result":{}}"#)[0] else { panic!() };
    let params = parse_lines(reply)[1]["params"].clone();
    assert_eq!((&params["threadId"], &params["approvalPolicy"]), (&json!("n"), &json!("never")));
    assert_eq!((&params["developerInstructions"], &params["model"]), (&json!("be brief"), &json!("gpt")));
    assert_eq!(params["config"]["mcp_servers"], json!({"docs": {"command": "docs", "args": ["-v"]}}));
    let denied_tools = vec!["Edit".to_owned()];
    let settings = AgentSettings { approvals: Some(ApprovalMode::Full), denied_tools, ..AgentSettings::default() };
    let launch = LaunchContext::minimal(Path::new("/w"), &settings);
    let params = codex_launch::thread_params(&launch);
    assert_eq!(params["approvalPolicy"], "untrusted", "must ask, so that Atoll can deny it");
    assert!(!codex_launch::build_command(&launch).files[0].text.contains("model_provider"), "no gateway, no provider");
}

proptest! {
    #![proptest_config(proptest_config(10_000))]

    /// Every line yields output, at least `Unparsed`, and nothing panics.
    #[test]
    fn random_bytes_are_unparsed(bytes in prop::collection::vec(any::<u8>(), 1..200)) {
        let outputs = CodexDriver::default().handle_line(&bytes);
        prop_assert!(matches!(&outputs[..], [AgentOutput::Unparsed { .. }]), "{:?}", outputs);
    }

    #[test]
    fn unexpected_values_do_not_panic(
        method in prop::sample::select(vec!["item/started", "item/completed", "turn/started", "turn/completed", "error",
            "turn/plan/updated", "thread/tokenUsage/updated", "item/agentMessage/delta", "serverRequest/resolved",
            "item/fileChange/requestApproval", "item/tool/requestUserInput", "new/thing"]),
        id in prop::sample::select(vec![json!(null), json!(0), json!("x"), json!([])]),
        field in prop::sample::select(vec!["item", "turn", "error", "plan", "tokenUsage", "delta", "questions", "threadId"]),
        value in prop::sample::select(vec![json!(null), json!(1), json!("t"), json!([1]), json!({"type": "userMessage"}),
            json!({"type": "commandExecution", "id": "c"}), json!({"type": "fileChange", "id": 1, "changes": 3}),
            json!({"id": "u", "status": "completed"}), json!({"total": {"inputTokens": i64::MAX}}),
            json!([{"id": "q"}, 2])]),
    ) {
        let mut codex = driver_in_turn(&LeasedMessage::example("go", Delivery::Steer));
        let line = json!({"id": id, "method": method, "params": {field: value}}).to_string();
        codex.handle_line(line.as_bytes());
        codex.handle_line(line.as_bytes());
        codex.answer_request("0", RequestAnswer::Answers(json!({"a": 1})));
    }
}
