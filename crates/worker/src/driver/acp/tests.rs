use super::*;
use crate::driver::testing::{cases, hear, line, lines};
use crate::executor::tests::message;
use crate::heartbeat::Settings;
use atoll_core::message::Delivery;
use atoll_core::sandbox::Approvals;
use atoll_protocol::Gateway;
use proptest::prelude::*;
use std::path::Path;

fn update(update: Value) -> Value {
    json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": update}})
}

fn words(text: &str) -> Value {
    update(json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}))
}

fn greeted(capabilities: &Value) -> Acp {
    let mut acp = Acp::new(Program::Gemini);
    assert_eq!(line(&acp.greeting())["params"]["protocolVersion"], 1);
    assert_eq!(hear(&mut acp, &json!({"jsonrpc": "2.0", "id": 1, "result": capabilities})), ["reply session/new"]);
    acp
}

/// In a turn that was begun with this, by request 3.
fn begun(capabilities: &Value) -> Acp {
    let mut acp = greeted(capabilities);
    let opened = hear(&mut acp, &json!({"id": 2, "result": {"sessionId": "s"}}));
    assert_eq!(opened, [r#"Native { id: "s" }"#, "reply "]);
    let told = line(&acp.tell(&message("go", Delivery::Steer), Standing::Idle));
    assert_eq!((&told["method"], &told["params"]["prompt"]), (&json!("session/prompt"), &json!([text("go")])));
    acp
}

fn interrupt() -> LeasedMessage {
    LeasedMessage { message_type: MessageType::Interrupt, ..message("enough", Delivery::Steer) }
}

fn over(id: u64, reason: &str) -> Value {
    json!({"id": id, "result": {"stopReason": reason}})
}

#[test]
fn a_turn_from_its_prompt_to_its_end() {
    let mut acp = begun(&json!({}));
    assert_eq!(hear(&mut acp, &update(json!({"sessionUpdate": "available_commands_update"}))), [""; 0]);
    let thought = json!({"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": "Hm."}});
    assert_eq!(hear(&mut acp, &update(thought)), ["agent.started  [TurnBegins]", "receipt new_turn"]);
    let first = hear(&mut acp, &words("I "));
    assert_eq!(first, [r#"agent.thinking "Hm.""#, r#"live {"text":"I "}"#]);
    assert_eq!(hear(&mut acp, &words("will")), [r#"live {"text":"will"}"#]);
    let call = json!({"sessionUpdate": "tool_call", "toolCallId": "c", "title": "ls", "kind": "execute",
        "status": "pending", "rawInput": {}});
    assert_eq!(hear(&mut acp, &update(call)), [r#"agent.message "I will""#], "it has not begun");
    let runs = json!({"sessionUpdate": "tool_call_update", "toolCallId": "c", "rawInput": {"command": "ls"}});
    assert_eq!(hear(&mut acp, &update(runs)), [r#"agent.tool_use "Bash" [ToolBegins("c")]"#]);
    let done = json!({"sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "completed",
        "content": [{"type": "content", "content": {"type": "text", "text": "a.txt"}}]});
    assert_eq!(hear(&mut acp, &update(done)), [r#"agent.tool_completed "Bash" "a.txt" [ToolEnds("c")]"#]);
    let plan = json!({"sessionUpdate": "plan", "entries": [{"content": "look", "status": "pending"}]});
    assert_eq!(hear(&mut acp, &update(plan)), [r#"agent.plan [{"state":"pending","text":"look"}]"#]);
    let cost = json!({"sessionUpdate": "usage_update", "used": 1, "cost": {"amount": 0.5, "currency": "USD"}});
    hear(&mut acp, &update(cost));
    hear(&mut acp, &words("done"));
    let ended = json!({"id": 3, "result": {"stopReason": "end_turn", "usage": {"inputTokens": 5, "outputTokens": 2}}});
    let wanted = [r#"agent.message "done""#, "agent.usage 0.5", r#"agent.completed "end_turn" [TurnEnds]"#, "Idle"];
    assert_eq!(hear(&mut acp, &ended), wanted);
    let late = [r#"Unparsed { reason: "work outside of a turn" }"#];
    assert_eq!(hear(&mut acp, &words("more")), late, "nobody asked");
}

#[test]
fn who_can_be_steered_is() {
    let mut acp = begun(&json!({"_meta": {"steering": {"supported": true}}}));
    hear(&mut acp, &words("I "));
    let told = line(&acp.tell(&message("and this", Delivery::Steer), Standing::InTurn));
    assert_eq!(told["method"], "_session/steering");
    let injected = hear(&mut acp, &json!({"id": 4, "result": {"outcome": "injected"}}));
    assert_eq!(injected, ["agent.message_injected ", "receipt injected"]);
    acp.tell(&message("too late", Delivery::Steer), Standing::InTurn);
    assert_eq!(hear(&mut acp, &over(3, "end_turn")).last().unwrap(), "Idle");
    assert_eq!(hear(&mut acp, &json!({"id": 5, "error": {"message": "no turn"}})), ["reply session/prompt"]);
    assert_eq!(hear(&mut acp, &words("x"))[..2], ["agent.started  [TurnBegins]", "receipt new_turn"]);
}

#[test]
fn who_can_t_is_stopped_and_prompted_again_in_the_same_turn() {
    let mut acp = begun(&json!({}));
    hear(
        &mut acp,
        &update(json!({"sessionUpdate": "tool_call", "toolCallId": "c", "kind": "execute", "status": "in_progress"})),
    );
    assert_eq!(line(&acp.tell(&message("this", Delivery::Steer), Standing::InTurn))["method"], "session/cancel");
    assert!(acp.tell(&message("and that", Delivery::Steer), Standing::InTurn).is_empty(), "it is being stopped");
    let said = acp.line(over(3, "cancelled").to_string().as_bytes());
    let [.., Said::Reply(prompt)] = &said[..] else { panic!("{said:?}") };
    let blocks = line(prompt)["params"]["prompt"].clone();
    assert_eq!(blocks, json!([text("this"), text("and that"), text(GO_ON)]));
    assert!(!said.iter().any(|said| matches!(said, Said::Idle)), "{said:?}");
    let broken = crate::driver::testing::short(&said[0]);
    assert_eq!(broken, r#"agent.tool_completed "Bash" "broken off" [ToolEnds("c")]"#);
    let injected = hear(&mut acp, &words("ok"));
    assert_eq!(injected[..2], ["agent.message_injected ", "receipt restarted"]);
    assert_eq!(injected[2..4], ["agent.message_injected ", "receipt restarted"]);
    assert_eq!(hear(&mut acp, &over(4, "end_turn"))[1..], [r#"agent.completed "end_turn" [TurnEnds]"#, "Idle"]);
}

#[test]
fn one_that_is_done_before_it_is_stopped_begins_another_turn() {
    let mut acp = begun(&json!({}));
    acp.tell(&message("this", Delivery::Steer), Standing::InTurn);
    let ended = hear(&mut acp, &over(3, "end_turn"));
    let wanted = [
        "agent.started  [TurnBegins]",
        "receipt new_turn",
        r#"agent.completed "end_turn" [TurnEnds]"#,
        "Idle",
        "reply session/prompt",
    ];
    assert_eq!(ended, wanted);
    assert_eq!(hear(&mut acp, &words("ok"))[..2], ["agent.started  [TurnBegins]", "receipt new_turn"]);
}

#[test]
fn an_interrupt_ends_the_turn_and_answers_what_it_asked() {
    let mut acp = begun(&json!({}));
    hear(&mut acp, &asks(7, "c"));
    let told = lines(&acp.tell(&interrupt(), Standing::InTurn));
    assert_eq!(told[0]["method"], "session/cancel");
    assert_eq!(told[1], json!({"jsonrpc": "2.0", "id": 7, "result": {"outcome": {"outcome": "cancelled"}}}));
    let ended = hear(&mut acp, &json!({"id": 3, "error": {"message": "aborted"}}));
    let wanted = ["receipt injected", r#"agent.interrupted "enough" [TurnEnds]"#, "Idle"];
    assert_eq!(ended[1..], wanted, "some call it an error");
    assert!(acp.tell(&interrupt(), Standing::InTurn).is_empty(), "there is nothing to break off");
}

fn asks(id: u64, call: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": {"sessionId": "s",
        "options": [{"optionId": "always", "kind": "allow_always"}, {"optionId": "once", "kind": "allow_once"},
            {"optionId": "no", "kind": "reject_once"}],
        "toolCall": {"toolCallId": call, "title": "python3 hello.py", "kind": "execute", "status": "pending",
            "content": []}}})
}

#[test]
fn permissions_are_answered_once_and_a_steer_waits_for_them() {
    let mut acp = begun(&json!({}));
    let asked = hear(&mut acp, &asks(0, "c"));
    assert_eq!(asked[2], r#"agent.tool_use "Bash" [ToolBegins("c")]"#, "it is the first that is heard of it");
    assert!(asked[3].starts_with("asks Permission Bash {\"command\":\"python3 hello.py\""), "{asked:?}");
    assert!(acp.tell(&message("this", Delivery::Steer), Standing::InTurn).is_empty());
    let answered = lines(&acp.answer("0", Answer::Allow { input: None, context: None }));
    assert_eq!(answered[0]["result"]["outcome"], json!({"outcome": "selected", "optionId": "once"}));
    assert_eq!(answered[1]["method"], "session/cancel");
    assert!(acp.answer("0", Answer::Deny { reason: String::new() }).is_empty());
    hear(&mut acp, &asks(1, "d"));
    let denied = line(&acp.answer("1", Answer::Deny { reason: "no".to_owned() }));
    assert_eq!(denied["result"]["outcome"]["optionId"], "no");
    let files = json!({"jsonrpc": "2.0", "id": 9, "method": "fs/read_text_file", "params": {"path": "/etc/passwd"}});
    assert_eq!(
        hear(&mut acp, &files),
        [
            r#"reply {"error":{"code":-32601,"message":"`fs/read_text_file` is not served here"},"id":9,"jsonrpc":"2.0"}"#
        ]
    );
}

#[test]
fn it_goes_on_with_a_session_or_says_that_it_can_t() {
    let loads = json!({"id": 1, "result": {"agentCapabilities": {"loadSession": true}}});
    let mut acp = Acp { native_id: Some("s".to_owned()), ..Acp::new(Program::Other) };
    acp.greeting();
    assert_eq!(hear(&mut acp, &loads), ["reply session/load"]);
    assert_eq!(hear(&mut acp, &words("from before")), [""; 0]);
    assert_eq!(hear(&mut acp, &json!({"id": 2, "result": {}})), [r#"Native { id: "s" }"#, "reply "]);
    let mut acp = Acp { native_id: Some("s".to_owned()), ..Acp::new(Program::Other) };
    acp.greeting();
    hear(&mut acp, &loads);
    let lost = hear(&mut acp, &json!({"id": 2, "error": {"message": "unknown"}}));
    assert_eq!(lost, [r#"agent.system_message "unknown""#, "reply session/new"]);
    let none = hear(&mut acp, &json!({"id": 3, "error": {"message": "Authentication required"}}));
    assert_eq!(none, [r#"Failed { error: "it could not begin a session: Authentication required" }"#]);
}

#[test]
fn a_long_text_is_told_in_parts() {
    let mut acp = begun(&json!({}));
    let mut told = String::new();
    for _ in 0..60 {
        for said in acp.line(words(&"ä".repeat(500)).to_string().as_bytes()) {
            if let Said::Event(event) = said {
                let data: Value = serde_json::from_str(event.data.get()).unwrap();
                told.push_str(data["text"].as_str().unwrap_or_default());
            }
        }
    }
    for said in acp.line(over(3, "end_turn").to_string().as_bytes()) {
        if let Said::Event(event) = said {
            let data: Value = serde_json::from_str(event.data.get()).unwrap();
            told.push_str(data["text"].as_str().unwrap_or_default());
        }
    }
    assert_eq!(told, "ä".repeat(30_000));
}

#[test]
fn they_are_started_with_what_was_asked_for() {
    let mcp = json!({"docs": {"command": "docs", "env": {"A": "1"}}, "far": {"url": "https://far"}});
    let settings = Settings {
        model: Some("pro".to_owned()),
        approvals: Some(Approvals::Full),
        system_prompt: Some("be brief".to_owned()),
        mcp: mcp.as_object().cloned(),
        ..Settings::default()
    };
    let gateway = Gateway { base_url: "http://127.0.0.1:7709".to_owned(), key: "placeholder".to_owned() };
    let launch = Launch { gateway: Some(&gateway), ..Launch::plain(Path::new("/w"), &settings) };
    let mut gemini = Acp::new(Program::Gemini);
    let command = gemini.command(&launch);
    assert_eq!(command.argv, ["gemini", "--acp", "--approval-mode", "yolo", "--model", "pro"]);
    let url = ("GOOGLE_GEMINI_BASE_URL".to_owned(), "http://127.0.0.1:7709/gemini".to_owned());
    assert!(command.env.contains(&url) && !command.files[0].text.contains("placeholder"));
    gemini.greeting();
    let said = gemini.line(br#"{"id":1,"result":{}}"#);
    let Said::Reply(reply) = &said[0] else { panic!("{said:?}") };
    let servers = line(reply)["params"]["mcpServers"].clone();
    assert_eq!(
        servers[0],
        json!({"name": "docs", "command": "docs", "args": [], "env": [{"name": "A", "value": "1"}]})
    );
    assert_eq!(servers[1], json!({"type": "http", "name": "far", "url": "https://far", "headers": []}));
    gemini.line(br#"{"id":2,"result":{"sessionId":"s"}}"#);
    let first = line(&gemini.tell(&message("go", Delivery::Steer), Standing::Idle));
    assert_eq!(first["params"]["prompt"], json!([text("go")]), "it reads the rest from a file of its home");
    let launch = Launch { program: Some(Path::new("/opt/goose")), ..launch };
    let mut other = Acp::new(Program::Other);
    let command = other.command(&launch);
    assert_eq!(command.argv, ["/opt/goose"]);
    assert!(command.env.iter().any(|(name, _)| name == "OPENAI_BASE_URL"));
    other.greeting();
    let said = other.line(br#"{"id":1,"result":{"agentCapabilities":{"sessionCapabilities":{"systemPrompt":{}}}}}"#);
    let Said::Reply(reply) = &said[0] else { panic!("{said:?}") };
    assert_eq!(line(reply)["params"]["_meta"]["systemPrompt"]["append"], "be brief");
}

proptest! {
    #![proptest_config(cases(10_000))]

    /// Whatever it says is told on or named as not understood, and nothing breaks.
    #[test]
    fn no_line_is_dropped_silently(bytes in prop::collection::vec(any::<u8>(), 1..200)) {
        let said = Acp::new(Program::Other).line(&bytes);
        prop_assert!(matches!(&said[..], [Said::Unparsed { .. }]), "{:?}", said);
    }

    #[test]
    fn updates_with_something_else_in_them_break_nothing(
        kind in prop::sample::select(vec!["agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update",
            "plan", "usage_update", "session_info_update", "new_thing"]),
        field in prop::sample::select(vec!["content", "toolCallId", "rawInput", "status", "entries", "cost", "_meta"]),
        value in prop::sample::select(vec![json!(null), json!(1), json!("completed"), json!([1]), json!({"text": 1}),
            json!({"text": "x"}), json!({"amount": 1e300}), json!([{"content": {"text": "y"}}, null])]),
        id in prop::sample::select(vec![json!(null), json!("c"), json!(3)]),
    ) {
        let mut acp = begun(&json!({}));
        let mut it = json!({"sessionUpdate": kind, "toolCallId": id});
        it[field] = value;
        let said = acp.line(update(it).to_string().as_bytes());
        acp.line(over(3, "end_turn").to_string().as_bytes());
        prop_assert!(kind != "new_thing" || matches!(&said[..], [Said::Unparsed { .. }]), "{:?}", said);
    }
}
