use super::*;
use crate::settings::AgentSettings;
use crate::{AgentEvent, EventEffect};
use atoll_core::message::Delivery;
use atoll_core::sandbox::ApprovalMode;
use atoll_protocol::Gateway;
use proptest::prelude::*;
use std::path::Path;

fn written(bytes: &[u8]) -> Value {
    assert_eq!(bytes.last(), Some(&b'\n'));
    serde_json::from_slice(bytes).unwrap()
}

fn short(outputs: &[AgentOutput]) -> Vec<String> {
    let summarize = |output: &AgentOutput| match output {
        AgentOutput::Event(AgentEvent { event_type, data, effect: mark, .. }) => {
            let data: Value = serde_json::from_str(data.get()).unwrap();
            let words = ["text", "output", "tool", "stop_reason", "cost_usd"].map(|name| &data[name]);
            let words: Vec<String> = words.iter().filter(|word| !word.is_null()).map(|word| word.to_string()).collect();
            let mark = if *mark == EventEffect::None { String::new() } else { format!(" [{mark:?}]") };
            format!("{} {}{mark}", event_type.as_str(), words.join(" "))
        }
        AgentOutput::Acknowledged { how, .. } => format!("acknowledged {how}"),
        AgentOutput::Reply(bytes) => format!("reply {}", written(bytes)),
        AgentOutput::TextDelta(data) => format!("delta {}", data.get()),
        AgentOutput::Request(ask) => format!("request {:?} {} {}", ask.kind, ask.tool, ask.input),
        other => format!("{other:?}"),
    };
    outputs.iter().map(summarize).collect()
}

fn hear(claude: &mut ClaudeDriver, line: &Value) -> Vec<String> {
    short(&claude.handle_line(line.to_string().as_bytes()))
}

fn assistant(block: &Value) -> Value {
    json!({"type": "assistant", "message": {"role": "assistant", "content": [block]}, "parent_tool_use_id": null})
}

fn init() -> Value {
    json!({"type": "system", "subtype": "init", "session_id": "native", "model": "m", "cwd": "/workspace", "tools": []})
}

fn replay(message: &LeasedMessage) -> Value {
    json!({"type": "user", "isReplay": true, "uuid": message.id.uuid(), "message": {"role": "user", "content": []}})
}

fn done(cost: f64) -> Value {
    json!({"type": "result", "subtype": "success", "is_error": false, "stop_reason": "end_turn",
        "total_cost_usd": cost, "usage": {"input_tokens": 5, "output_tokens": 2}})
}

#[test]
fn a_turn_runs_from_prompt_to_end() {
    let mut claude = ClaudeDriver::default();
    let (prompt, more) =
        (LeasedMessage::example("go", Delivery::Steer), LeasedMessage::example("and this", Delivery::Steer));
    let line = written(&claude.encode_message(&prompt, AgentTurn::Idle));
    assert_eq!((line["uuid"].as_str(), &line["priority"]), (Some(&*prompt.id.uuid().to_string()), &Value::Null));
    assert_eq!(hear(&mut claude, &init())[1], "agent.started  [TurnStarted]");
    assert_eq!(hear(&mut claude, &replay(&prompt)), ["acknowledged new_turn"]);
    let delta = json!({"type": "stream_event", "event": {"type": "content_block_delta",
        "delta": {"type": "text_delta", "text": "I wi"}}, "parent_tool_use_id": null});
    assert_eq!(hear(&mut claude, &delta), [r#"delta {"text":"I wi"}"#]);
    let text = assistant(&json!({"type": "text", "text": "I will"}));
    assert_eq!(hear(&mut claude, &text), [r#"agent.message "I will""#]);
    let tool = assistant(&json!({"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}));
    assert_eq!(hear(&mut claude, &tool), [r#"agent.tool_use "Bash" [ToolStarted("t1")]"#]);
    assert_eq!(written(&claude.encode_message(&more, AgentTurn::InTurn))["priority"], "next");
    let result = json!({"type": "user", "message": {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "a.txt"}]}]}});
    assert_eq!(hear(&mut claude, &result), [r#"agent.tool_completed "a.txt" "Bash" [ToolEnded("t1")]"#]);
    assert_eq!(hear(&mut claude, &replay(&more)), ["agent.message_injected ", "acknowledged injected"]);
    assert_eq!(hear(&mut claude, &replay(&more)), [""; 0], "acknowledged only once");
    let ended = hear(&mut claude, &done(0.5));
    assert_eq!(ended, ["agent.usage 0.5", r#"agent.completed "end_turn" [TurnEnded]"#, "Idle"]);
    hear(&mut claude, &init());
    assert_eq!(hear(&mut claude, &done(0.75))[0], "agent.usage 0.25", "the agent reports totals");
    let settings = AgentSettings::default();
    let plain = LaunchContext::minimal(Path::new("/w"), &settings);
    claude.build_command(&LaunchContext { native_id: Some("native"), ..plain });
    assert_eq!(hear(&mut claude, &done(1.25))[0], "agent.usage 0.5", "the total continues");
    assert_eq!(hear(&mut claude, &done(0.125))[0], "agent.usage 0.125", "the total restarts");
    claude.build_command(&plain);
    assert_eq!(hear(&mut claude, &done(0.25))[0], "agent.usage 0.25");
}

#[test]
fn truncated_texts_and_outputs_carry_a_mark_and_their_size() {
    let mut claude = ClaudeDriver::default();
    let long = "x".repeat(40_000);
    let mut data_of = |line: &Value| match &claude.handle_line(line.to_string().as_bytes())[0] {
        AgentOutput::Event(event) => serde_json::from_str::<Value>(event.data.get()).unwrap(),
        other => panic!("{other:?}"),
    };
    let whole = data_of(&assistant(&json!({"type": "text", "text": "short"})));
    assert_eq!(whole, json!({"text": "short"}));
    let text = data_of(&assistant(&json!({"type": "text", "text": long})));
    assert_eq!((&text["truncated"], &text["text_bytes"]), (&json!(true), &json!(40_000)));
    data_of(&assistant(&json!({"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}})));
    let result = json!({"type": "user", "message": {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t1", "content": long}]}});
    let output = data_of(&result);
    assert_eq!((&output["truncated"], &output["output_bytes"]), (&json!(true), &json!(40_000)));
    assert!(output["output"].as_str().unwrap().len() < 40_000);
}

#[test]
fn hooks_wait_for_the_policy_and_the_scan() {
    let mut claude = ClaudeDriver::default();
    let hook = |request: &str, callback: &str| {
        json!({"type": "control_request", "request_id": request, "request": {"subtype": "hook_callback",
            "callback_id": callback, "input": {"tool_name": "Bash", "tool_input": {"command": "ls"}, "tool_use_id": "t1"}}})
    };
    assert_eq!(hear(&mut claude, &hook("r1", PRE_TOOL_HOOK)), [r#"request BeforeTool Bash {"command":"ls"}"#]);
    let denied = written(&claude.answer_request("r1", RequestAnswer::Deny { reason: "not here".to_owned() }));
    let output = &denied["response"]["response"]["hookSpecificOutput"];
    assert_eq!(
        (&output["permissionDecision"], &output["permissionDecisionReason"]),
        (&json!("deny"), &json!("not here"))
    );
    assert!(
        claude.answer_request("r1", RequestAnswer::Allow { input: None, context: None }).is_empty(),
        "already answered"
    );
    assert_eq!(hear(&mut claude, &hook("r2", POST_TOOL_HOOK)), [r#"AwaitingScan { tool_use_id: "t1" }"#]);
    assert_eq!(written(&claude.confirm_scan("t1").unwrap())["response"]["request_id"], "r2");
    assert!(claude.confirm_scan("t1").is_none());
    let unknown = json!({"type": "control_request", "request_id": "r3", "request": {"subtype": "dance"}});
    assert!(hear(&mut claude, &unknown)[0].contains("is not supported"));
}

#[test]
fn encodes_answers_to_permissions_and_questions() {
    let mut claude = ClaudeDriver::default();
    let asks = |request: &str, tool: &str| {
        json!({"type": "control_request", "request_id": request, "request": {"subtype": "can_use_tool",
            "tool_name": tool, "input": {"a": 1}, "tool_use_id": "t"}})
    };
    assert_eq!(hear(&mut claude, &asks("r1", "Bash")), [r#"request Permission Bash {"a":1}"#]);
    let allowed = written(&claude.answer_request("r1", RequestAnswer::Allow { input: None, context: None }));
    assert_eq!(allowed["response"]["response"], json!({"behavior": "allow", "updatedInput": {"a": 1}}));
    assert_eq!(hear(&mut claude, &asks("r2", "AskUserQuestion")), [r#"request Question AskUserQuestion {"a":1}"#]);
    let answered = written(&claude.answer_request("r2", RequestAnswer::Answers(json!({"Which?": "this"}))));
    assert_eq!(answered["response"]["response"]["updatedInput"]["answers"], json!({"Which?": "this"}));
    hear(&mut claude, &asks("r3", "Bash"));
    hear(&mut claude, &done(0.0));
    assert!(claude.answer_request("r3", RequestAnswer::Deny { reason: String::new() }).is_empty(), "the turn is over");
}

#[test]
fn an_interrupt_ends_the_turn_and_an_error_fails_the_agent() {
    let mut claude = ClaudeDriver::default();
    hear(&mut claude, &init());
    let mut stop = LeasedMessage::example("enough", Delivery::Steer);
    stop.message_type = MessageType::Interrupt;
    assert_eq!(written(&claude.encode_message(&stop, AgentTurn::InTurn))["request"]["subtype"], "interrupt");
    let ended = hear(&mut claude, &json!({"type": "result", "subtype": "error_during_execution", "is_error": true}));
    assert_eq!(ended, ["acknowledged injected", r#"agent.interrupted "enough" [TurnEnded]"#, "Idle"]);
    let failed = json!({"type": "result", "subtype": "success", "is_error": true, "result": "API Error: 401"});
    assert_eq!(hear(&mut claude, &failed)[1], r#"Failed { error: "API Error: 401" }"#);
    let retry =
        json!({"type": "system", "subtype": "api_retry", "attempt": 1, "error_status": 429, "retry_delay_ms": 500});
    assert_eq!(hear(&mut claude, &retry)[1], "RateLimited { wait: Some(500ms) }");
}

#[test]
fn the_command_follows_the_settings() {
    let settings = AgentSettings {
        model: Some("opus".to_owned()),
        approvals: Some(ApprovalMode::Full),
        system_prompt: Some("be brief".to_owned()),
        ..AgentSettings::default()
    };
    let gateway =
        Gateway { base_url: "http://127.0.0.1:7709".to_owned(), key: "placeholder".to_owned(), apis: Vec::new() };
    let launch = LaunchContext {
        gateway: Some(&gateway),
        native_id: Some("native"),
        agent_program: Some(Path::new("/opt/claude")),
        ..LaunchContext::minimal(Path::new("/w"), &settings)
    };
    let mut claude = ClaudeDriver::default();
    let command = claude.build_command(&launch);
    let argv = command.argv.join(" ");
    for words in ["/opt/claude -p", "--model opus", "--resume native", "--permission-mode bypassPermissions"] {
        assert!(argv.contains(words), "{argv}");
    }
    let base = ("ANTHROPIC_BASE_URL".to_owned(), "http://127.0.0.1:7709/anthropic".to_owned());
    assert!(command.env.contains(&base));
    assert_eq!(written(&claude.handshake())["request"]["appendSystemPrompt"], "be brief");
}

proptest! {
    /// Every line yields output, at least `Unparsed`, and nothing panics.
    #[test]
    fn random_bytes_are_unparsed(bytes in prop::collection::vec(any::<u8>(), 1..200)) {
        let outputs = ClaudeDriver::default().handle_line(&bytes);
        prop_assert!(matches!(&outputs[..], [AgentOutput::Unparsed { .. }]), "{:?}", outputs);
    }

    #[test]
    fn unexpected_values_do_not_panic(
        kind in prop::sample::select(vec!["assistant", "user", "system", "result", "stream_event", "control_request",
            "control_response", "control_cancel_request", "command_lifecycle", "new_thing"]),
        field in prop::sample::select(vec!["message", "request", "response", "subtype", "usage", "event", "uuid"]),
        value in prop::sample::select(vec![json!(null), json!(1), json!("x"), json!([1]), json!({"content": [1, {"type": 2}]}),
            json!({"content": [{"type": "tool_use"}]}), json!({"subtype": "hook_callback", "callback_id": "before"})]),
    ) {
        let line = json!({"type": kind, "request_id": "r", field: value}).to_string();
        ClaudeDriver::default().handle_line(line.as_bytes());
    }
}

fn system(subtype: &str, mut data: Value) -> Value {
    (data["type"], data["subtype"]) = ("system".into(), subtype.into());
    data
}

/// The lines of Claude Code 2.1.325 around a subagent, which it runs in the background by default.
#[test]
fn a_turn_lasts_until_background_agents_have_ended() {
    let mut claude = ClaudeDriver::default();
    let prompt = LeasedMessage::example("go", Delivery::Steer);
    claude.encode_message(&prompt, AgentTurn::Idle);
    hear(&mut claude, &system("session_state_changed", json!({"state": "running"})));
    hear(&mut claude, &init());
    hear(&mut claude, &replay(&prompt));
    let task = json!({"type": "tool_use", "id": "t1", "name": "Task", "input": {"description": "count"}});
    hear(&mut claude, &assistant(&task));
    let started = json!({"task_id": "a1", "tool_use_id": "t1", "is_backgrounded": true, "task_type": "local_agent"});
    assert!(hear(&mut claude, &system("background_tasks_changed", json!({"tasks": [{}]}))).is_empty());
    assert!(hear(&mut claude, &system("task_started", started)).is_empty());
    let launched = json!({"type": "user", "message": {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t1", "content": "Async agent launched"}]}});
    let outputs = hear(&mut claude, &launched);
    assert!(outputs.len() == 1 && outputs[0].starts_with("agent.tool_completed"), "{outputs:?}");
    let outputs = hear(&mut claude, &done(0.1));
    assert!(outputs.iter().all(|output| output.starts_with("agent.usage")), "the turn continues: {outputs:?}");
    let ended = json!({"task_id": "a1", "tool_use_id": "t1", "status": "completed", "summary": "one file"});
    let outputs = hear(&mut claude, &system("task_notification", ended));
    assert!(outputs.len() == 1 && outputs[0].starts_with("agent.subagent_completed \"one file\""), "{outputs:?}");
    let outputs = hear(&mut claude, &init());
    assert!(!outputs.iter().any(|output| output.contains("agent.started")), "it is the same turn: {outputs:?}");
    hear(&mut claude, &done(0.2));
    let outputs = hear(&mut claude, &system("session_state_changed", json!({"state": "idle"})));
    assert_eq!(outputs, ["agent.completed \"end_turn\" [TurnEnded]", "Idle"]);
    assert!(hear(&mut claude, &system("session_state_changed", json!({"state": "idle"}))).is_empty());
}

#[test]
fn an_interrupt_ends_a_turn_that_waits_for_a_background_agent() {
    let mut claude = ClaudeDriver::default();
    hear(&mut claude, &system("session_state_changed", json!({"state": "running"})));
    hear(&mut claude, &init());
    let started = json!({"task_id": "a1", "tool_use_id": "t1", "is_backgrounded": true, "task_type": "local_agent"});
    hear(&mut claude, &system("task_started", started));
    hear(&mut claude, &done(0.1));
    let stop =
        LeasedMessage { message_type: MessageType::Interrupt, ..LeasedMessage::example("stop", Delivery::Steer) };
    claude.encode_message(&stop, AgentTurn::InTurn);
    let stopped = json!({"tool_use_id": "t1", "status": "stopped", "summary": "count"});
    hear(&mut claude, &system("task_notification", stopped));
    let outputs = hear(&mut claude, &system("session_state_changed", json!({"state": "idle"})));
    assert_eq!(outputs, ["acknowledged injected", "agent.interrupted \"stop\" [TurnEnded]", "Idle"]);
}

/// A command in the background, such as a server, may run without end.
#[test]
fn a_background_command_does_not_prolong_the_turn() {
    let mut claude = ClaudeDriver::default();
    hear(&mut claude, &system("session_state_changed", json!({"state": "running"})));
    hear(&mut claude, &init());
    let started = json!({"task_id": "b1", "tool_use_id": "t1", "is_backgrounded": true, "task_type": "local_bash"});
    hear(&mut claude, &system("task_started", started));
    assert!(hear(&mut claude, &done(0.1)).contains(&"Idle".to_owned()));
}
