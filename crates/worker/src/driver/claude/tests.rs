use super::*;
use crate::driver::{Mark, Told};
use crate::executor::tests::message;
use crate::heartbeat::Settings;
use atoll_core::message::Delivery;
use atoll_core::sandbox::Approvals;
use atoll_protocol::Gateway;
use proptest::prelude::*;
use std::path::Path;

fn written(bytes: &[u8]) -> Value {
    assert_eq!(bytes.last(), Some(&b'\n'));
    serde_json::from_slice(bytes).unwrap()
}

fn short(said: &[Said]) -> Vec<String> {
    let one = |said: &Said| match said {
        Said::Event(Told { event_type, data, mark, .. }) => {
            let data: Value = serde_json::from_str(data.get()).unwrap();
            let words = ["text", "output", "tool", "stop_reason", "cost_usd"].map(|name| &data[name]);
            let words: Vec<String> = words.iter().filter(|word| !word.is_null()).map(|word| word.to_string()).collect();
            let mark = if *mark == Mark::Plain { String::new() } else { format!(" [{mark:?}]") };
            format!("{} {}{mark}", event_type.as_str(), words.join(" "))
        }
        Said::Receipt { how, .. } => format!("receipt {how}"),
        Said::Reply(bytes) => format!("reply {}", written(bytes)),
        Said::Live(data) => format!("live {}", data.get()),
        Said::Asks(ask) => format!("asks {:?} {} {}", ask.kind, ask.tool, ask.input),
        other => format!("{other:?}"),
    };
    said.iter().map(one).collect()
}

fn hear(claude: &mut Claude, line: &Value) -> Vec<String> {
    short(&claude.line(line.to_string().as_bytes()))
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
fn a_turn_from_its_prompt_to_its_end() {
    let mut claude = Claude::default();
    let (prompt, more) = (message("go", Delivery::Steer), message("and this", Delivery::Steer));
    let line = written(&claude.tell(&prompt, Standing::Idle));
    assert_eq!((line["uuid"].as_str(), &line["priority"]), (Some(&*prompt.id.uuid().to_string()), &Value::Null));
    assert_eq!(hear(&mut claude, &init())[1], "agent.started  [TurnBegins]");
    assert_eq!(hear(&mut claude, &replay(&prompt)), ["receipt new_turn"]);
    let delta = json!({"type": "stream_event", "event": {"type": "content_block_delta",
        "delta": {"type": "text_delta", "text": "I wi"}}, "parent_tool_use_id": null});
    assert_eq!(hear(&mut claude, &delta), [r#"live {"text":"I wi"}"#]);
    let text = assistant(&json!({"type": "text", "text": "I will"}));
    assert_eq!(hear(&mut claude, &text), [r#"agent.message "I will""#]);
    let tool = assistant(&json!({"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}));
    assert_eq!(hear(&mut claude, &tool), [r#"agent.tool_use "Bash" [ToolBegins("t1")]"#]);
    assert_eq!(written(&claude.tell(&more, Standing::InTurn))["priority"], "next");
    let result = json!({"type": "user", "message": {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "a.txt"}]}]}});
    assert_eq!(hear(&mut claude, &result), [r#"agent.tool_completed "a.txt" "Bash" [ToolEnds("t1")]"#]);
    assert_eq!(hear(&mut claude, &replay(&more)), ["agent.message_injected ", "receipt injected"]);
    assert_eq!(hear(&mut claude, &replay(&more)), [""; 0], "once is enough");
    let ended = hear(&mut claude, &done(0.5));
    assert_eq!(ended, ["agent.usage 0.5", r#"agent.completed "end_turn" [TurnEnds]"#, "Idle"]);
    hear(&mut claude, &init());
    assert_eq!(hear(&mut claude, &done(0.75))[0], "agent.usage 0.25", "what it says is the sum");
    let settings = Settings::default();
    let plain = Launch::plain(Path::new("/w"), &settings);
    claude.command(&Launch { native_id: Some("native"), ..plain });
    assert_eq!(hear(&mut claude, &done(1.25))[0], "agent.usage 0.5", "it goes on counting");
    assert_eq!(hear(&mut claude, &done(0.125))[0], "agent.usage 0.125", "it counts anew");
    claude.command(&plain);
    assert_eq!(hear(&mut claude, &done(0.25))[0], "agent.usage 0.25");
}

#[test]
fn hooks_wait_for_rules_and_for_the_files_to_be_looked_at() {
    let mut claude = Claude::default();
    let hook = |request: &str, callback: &str| {
        json!({"type": "control_request", "request_id": request, "request": {"subtype": "hook_callback",
            "callback_id": callback, "input": {"tool_name": "Bash", "tool_input": {"command": "ls"}, "tool_use_id": "t1"}}})
    };
    assert_eq!(hear(&mut claude, &hook("r1", BEFORE)), [r#"asks BeforeTool Bash {"command":"ls"}"#]);
    let denied = written(&claude.answer("r1", Answer::Deny { reason: "not here".to_owned() }));
    let output = &denied["response"]["response"]["hookSpecificOutput"];
    assert_eq!(
        (&output["permissionDecision"], &output["permissionDecisionReason"]),
        (&json!("deny"), &json!("not here"))
    );
    assert!(claude.answer("r1", Answer::Allow { input: None, context: None }).is_empty(), "it is answered already");
    assert_eq!(hear(&mut claude, &hook("r2", AFTER)), [r#"ToolRan { tool_use_id: "t1" }"#]);
    assert_eq!(written(&claude.tool_seen("t1").unwrap())["response"]["request_id"], "r2");
    assert!(claude.tool_seen("t1").is_none());
    let unknown = json!({"type": "control_request", "request_id": "r3", "request": {"subtype": "dance"}});
    assert!(hear(&mut claude, &unknown)[0].contains("not served here"));
}

#[test]
fn permissions_and_questions_are_answered_in_its_own_form() {
    let mut claude = Claude::default();
    let asks = |request: &str, tool: &str| {
        json!({"type": "control_request", "request_id": request, "request": {"subtype": "can_use_tool",
            "tool_name": tool, "input": {"a": 1}, "tool_use_id": "t"}})
    };
    assert_eq!(hear(&mut claude, &asks("r1", "Bash")), [r#"asks Permission Bash {"a":1}"#]);
    let allowed = written(&claude.answer("r1", Answer::Allow { input: None, context: None }));
    assert_eq!(allowed["response"]["response"], json!({"behavior": "allow", "updatedInput": {"a": 1}}));
    assert_eq!(hear(&mut claude, &asks("r2", "AskUserQuestion")), [r#"asks Question AskUserQuestion {"a":1}"#]);
    let answered = written(&claude.answer("r2", Answer::Words(json!({"Which?": "this"}))));
    assert_eq!(answered["response"]["response"]["updatedInput"]["answers"], json!({"Which?": "this"}));
    hear(&mut claude, &asks("r3", "Bash"));
    hear(&mut claude, &done(0.0));
    assert!(claude.answer("r3", Answer::Deny { reason: String::new() }).is_empty(), "the turn is over");
}

#[test]
fn an_interrupt_ends_the_turn_and_an_error_the_agent() {
    let mut claude = Claude::default();
    hear(&mut claude, &init());
    let mut stop = message("enough", Delivery::Steer);
    stop.message_type = MessageType::Interrupt;
    assert_eq!(written(&claude.tell(&stop, Standing::InTurn))["request"]["subtype"], "interrupt");
    let ended = hear(&mut claude, &json!({"type": "result", "subtype": "error_during_execution", "is_error": true}));
    assert_eq!(ended, ["receipt injected", r#"agent.interrupted "enough" [TurnEnds]"#, "Idle"]);
    let failed = json!({"type": "result", "subtype": "success", "is_error": true, "result": "API Error: 401"});
    assert_eq!(hear(&mut claude, &failed)[1], r#"Failed { error: "API Error: 401" }"#);
    let retry =
        json!({"type": "system", "subtype": "api_retry", "attempt": 1, "error_status": 429, "retry_delay_ms": 500});
    assert_eq!(hear(&mut claude, &retry)[1], "RateLimited { wait: Some(500ms) }");
}

#[test]
fn it_is_started_with_what_was_asked_for_and_without_any_secret() {
    let settings = Settings {
        model: Some("opus".to_owned()),
        approvals: Some(Approvals::Full),
        system_prompt: Some("be brief".to_owned()),
        ..Settings::default()
    };
    let gateway = Gateway { base_url: "http://127.0.0.1:7709".to_owned(), key: "placeholder".to_owned() };
    let launch = Launch {
        gateway: Some(&gateway),
        native_id: Some("native"),
        program: Some(Path::new("/opt/claude")),
        ..Launch::plain(Path::new("/w"), &settings)
    };
    let mut claude = Claude::default();
    let command = claude.command(&launch);
    let argv = command.argv.join(" ");
    for words in ["/opt/claude -p", "--model opus", "--resume native", "--permission-mode bypassPermissions"] {
        assert!(argv.contains(words), "{argv}");
    }
    let base = ("ANTHROPIC_BASE_URL".to_owned(), "http://127.0.0.1:7709/anthropic".to_owned());
    assert!(command.env.contains(&base));
    assert_eq!(written(&claude.greeting())["request"]["appendSystemPrompt"], "be brief");
}

proptest! {
    /// Whatever it says is told on or named as not understood, and nothing breaks.
    #[test]
    fn no_line_is_dropped_silently(bytes in prop::collection::vec(any::<u8>(), 1..200)) {
        let said = Claude::default().line(&bytes);
        prop_assert!(matches!(&said[..], [Said::Unparsed { .. }]), "{:?}", said);
    }

    #[test]
    fn lines_with_something_else_in_them_break_nothing(
        kind in prop::sample::select(vec!["assistant", "user", "system", "result", "stream_event", "control_request",
            "control_response", "control_cancel_request", "command_lifecycle", "new_thing"]),
        field in prop::sample::select(vec!["message", "request", "response", "subtype", "usage", "event", "uuid"]),
        value in prop::sample::select(vec![json!(null), json!(1), json!("x"), json!([1]), json!({"content": [1, {"type": 2}]}),
            json!({"content": [{"type": "tool_use"}]}), json!({"subtype": "hook_callback", "callback_id": "before"})]),
    ) {
        let line = json!({"type": kind, "request_id": "r", field: value}).to_string();
        Claude::default().line(line.as_bytes());
    }
}
