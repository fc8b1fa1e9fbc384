use super::*;
use crate::driver::testing::{cases, hear, line, lines};
use crate::executor::tests::message;
use crate::heartbeat::Settings;
use atoll_core::message::Delivery;
use atoll_core::sandbox::Approvals;
use atoll_protocol::Gateway;
use proptest::prelude::*;
use std::path::Path;

fn notice(method: &str, mut params: Value) -> Value {
    params["threadId"] = "t".into();
    json!({"method": method, "params": params, "emittedAtMs": 1})
}

fn item(method: &str, item: Value) -> Value {
    notice(method, json!({"item": item, "turnId": "u"}))
}

fn seen(message: &LeasedMessage) -> Value {
    let words = json!([{"type": "text", "text": message.content}]);
    item("item/started", json!({"type": "userMessage", "id": "i", "clientId": message.id, "content": words}))
}

fn turn(method: &str, status: &str) -> Value {
    notice(method, json!({"turn": {"id": "u", "status": status, "error": null, "durationMs": 9}}))
}

fn opened() -> Codex {
    let mut codex = Codex::default();
    assert_eq!(line(&codex.greeting())["method"], "initialize");
    assert_eq!(hear(&mut codex, &json!({"id": 1, "result": {}})), ["reply initialized, thread/start"]);
    let thread = json!({"id": 2, "result": {"thread": {"id": "t", "cliVersion": "1"}, "model": "m"}});
    assert_eq!(hear(&mut codex, &thread), [r#"Native { id: "t" }"#, "reply "]);
    codex
}

/// In a turn that was begun with this.
fn begun(prompt: &LeasedMessage) -> Codex {
    let mut codex = opened();
    codex.tell(prompt, Standing::Idle);
    hear(&mut codex, &json!({"id": 3, "result": {"turn": {"id": "u"}}}));
    assert_eq!(hear(&mut codex, &turn("turn/started", "inProgress")), ["agent.started  [TurnBegins]"]);
    assert_eq!(hear(&mut codex, &seen(prompt)), ["receipt new_turn"]);
    codex
}

fn interrupt() -> LeasedMessage {
    LeasedMessage { message_type: MessageType::Interrupt, ..message("enough", Delivery::Steer) }
}

#[test]
fn a_turn_from_its_prompt_to_its_end() {
    let prompt = message("go", Delivery::Steer);
    let mut codex = begun(&prompt);
    let thought = json!({"type": "reasoning", "id": "r", "summary": ["What to do?"], "content": []});
    assert_eq!(hear(&mut codex, &item("item/completed", thought)), [r#"agent.thinking "What to do?""#]);
    let delta = notice("item/agentMessage/delta", json!({"delta": "I wi"}));
    assert_eq!(hear(&mut codex, &delta), [r#"live {"text":"I wi"}"#]);
    let words = json!({"type": "agentMessage", "id": "m", "text": "I will"});
    assert_eq!(hear(&mut codex, &item("item/completed", words)), [r#"agent.message "I will""#]);
    let change = json!({"type": "fileChange", "id": "c1", "status": "completed",
        "changes": [{"path": "/workspace/a", "kind": {"type": "add"}, "diff": "x\n"}]});
    assert_eq!(
        hear(&mut codex, &item("item/started", change.clone())),
        [r#"agent.tool_use "Write" [ToolBegins("c1")]"#]
    );
    let ended = hear(&mut codex, &item("item/completed", change));
    assert_eq!(ended, [r#"agent.tool_completed "Write" "" [ToolEnds("c1")]"#]);
    let run = json!({"type": "commandExecution", "id": "c2", "command": "/bin/bash -lc ls", "cwd": "/workspace",
        "status": "completed", "aggregatedOutput": "a\n", "exitCode": 0});
    let both = hear(&mut codex, &item("item/completed", run));
    assert_eq!(both[0], r#"agent.tool_use "Bash" [ToolBegins("c2")]"#, "its end is the first that is heard of it");
    assert_eq!(both[1], r#"agent.tool_completed "Bash" "a\n" [ToolEnds("c2")]"#);
    let plan = notice("turn/plan/updated", json!({"plan": [{"step": "look", "status": "inProgress"}]}));
    assert_eq!(hear(&mut codex, &plan), [r#"agent.plan [{"state":"in_progress","text":"look"}]"#]);
    let ended = hear(&mut codex, &turn("turn/completed", "completed"));
    assert_eq!(ended, [r#"agent.completed "end_turn" [TurnEnds]"#, "Idle"]);
}

#[test]
fn what_is_told_too_early_is_held_and_what_is_told_too_late_begins_a_turn() {
    let mut codex = Codex::default();
    codex.greeting();
    let (first, second) = (message("one", Delivery::Steer), message("two", Delivery::Steer));
    assert!(codex.tell(&first, Standing::Idle).is_empty());
    assert!(codex.tell(&second, Standing::InTurn).is_empty());
    hear(&mut codex, &json!({"id": 1, "result": {}}));
    let thread = json!({"id": 2, "result": {"thread": {"id": "t"}}});
    assert_eq!(hear(&mut codex, &thread)[1], "reply turn/start", "the second waits until the turn has a name");
    assert_eq!(hear(&mut codex, &json!({"id": 3, "result": {"turn": {"id": "u"}}})), ["reply turn/steer"]);
    hear(&mut codex, &turn("turn/started", "inProgress"));
    hear(&mut codex, &seen(&first));
    let refused = json!({"id": 4, "error": {"code": -32600, "message": "no active turn to steer"}});
    assert_eq!(hear(&mut codex, &refused), ["reply "], "it can't be steered now");
    let ended = hear(&mut codex, &turn("turn/completed", "completed"));
    assert_eq!(ended[1..], ["Idle", "reply turn/start"]);
    hear(&mut codex, &turn("turn/started", "inProgress"));
    assert_eq!(hear(&mut codex, &seen(&second)), ["receipt new_turn"]);
}

#[test]
fn it_is_steered_and_interrupted() {
    let mut codex = begun(&message("go", Delivery::Steer));
    let steer = message("and this", Delivery::Steer);
    let told = line(&codex.tell(&steer, Standing::InTurn));
    assert_eq!((&told["method"], &told["params"]["expectedTurnId"]), (&json!("turn/steer"), &json!("u")));
    assert_eq!(told["params"]["clientUserMessageId"], json!(steer.id));
    assert_eq!(hear(&mut codex, &seen(&steer)), ["agent.message_injected ", "receipt injected"]);
    assert_eq!(hear(&mut codex, &seen(&steer)), [""; 0], "once is enough");
    let late = message("unseen", Delivery::Steer);
    codex.tell(&late, Standing::InTurn);
    assert_eq!(line(&codex.tell(&interrupt(), Standing::InTurn))["method"], "turn/interrupt");
    let ended = hear(&mut codex, &turn("turn/completed", "interrupted"));
    let wanted = ["receipt injected", r#"agent.interrupted "enough" [TurnEnds]"#, "Idle", "reply turn/start"];
    assert_eq!(ended, wanted, "what it did not come to begins the next turn");
    let mut idle = opened();
    assert!(idle.tell(&interrupt(), Standing::InTurn).is_empty(), "there is nothing to break off");
    idle.tell(&message("go", Delivery::Steer), Standing::Idle);
    assert!(idle.tell(&interrupt(), Standing::InTurn).is_empty(), "it has no name");
    assert_eq!(hear(&mut idle, &json!({"id": 3, "result": {"turn": {"id": "u"}}})), ["reply turn/interrupt"]);
    hear(&mut idle, &turn("turn/started", "inProgress"));
    let ended = hear(&mut idle, &turn("turn/completed", "interrupted"));
    let wanted = ["receipt new_turn", "receipt injected", r#"agent.interrupted "enough" [TurnEnds]"#, "Idle"];
    assert_eq!(ended, wanted, "what began the turn is broken off with it, also before the model saw it");
}

#[test]
fn what_it_asks_is_answered_once_and_in_its_own_form() {
    let mut codex = begun(&message("go", Delivery::Steer));
    let change = json!({"type": "fileChange", "id": "c", "changes": [{"path": "/a", "kind": {"type": "update"}}]});
    hear(&mut codex, &item("item/started", change));
    let asks = |id: u64, method: &str, params: Value| json!({"id": id, "method": method, "params": params});
    let edit = asks(0, "item/fileChange/requestApproval", json!({"threadId": "t", "itemId": "c"}));
    let asked = hear(&mut codex, &edit);
    assert!(asked[0].starts_with("asks Permission Edit {\"changes\":[{"), "{asked:?}");
    let no = Answer::Deny { reason: "no".to_owned() };
    assert_eq!(
        line(&codex.answer("0", no.clone())),
        json!({"jsonrpc": "2.0", "id": 0, "result": {"decision": "decline"}})
    );
    assert!(codex.answer("0", no.clone()).is_empty());
    let run = asks(1, "item/commandExecution/requestApproval", json!({"itemId": "x", "command": "ls", "cwd": "/"}));
    assert!(hear(&mut codex, &run)[0].starts_with("asks Permission Bash"));
    let yes = Answer::Allow { input: None, context: None };
    assert_eq!(line(&codex.answer("1", yes.clone()))["result"], json!({"decision": "accept"}));
    let questions = json!([{"id": "q1", "header": "h", "question": "Which?"}]);
    hear(&mut codex, &asks(2, "item/tool/requestUserInput", json!({"itemId": "q", "questions": questions})));
    let words = line(&codex.answer("2", Answer::Words(json!({"Which?": "this"}))));
    assert_eq!(words["result"], json!({"answers": {"q1": {"answers": ["this"]}}}));
    let refused = hear(&mut codex, &asks(3, "item/tool/call", json!({})));
    assert!(refused[0].contains("not served here") || refused[0].contains("error"), "{refused:?}");
    hear(&mut codex, &run);
    hear(&mut codex, &notice("serverRequest/resolved", json!({"requestId": 1})));
    assert!(codex.answer("1", yes).is_empty(), "it does not wait any more");
    hear(&mut codex, &run);
    hear(&mut codex, &turn("turn/completed", "completed"));
    assert!(codex.answer("1", no).is_empty(), "the turn is over");
}

#[test]
fn tokens_are_what_came_since() {
    let mut codex = opened();
    let used = |input: i64, cached: i64, output: i64| {
        let total = json!({"inputTokens": input, "cachedInputTokens": cached, "outputTokens": output});
        notice("thread/tokenUsage/updated", json!({"tokenUsage": {"total": total}}))
    };
    let end = ["AnswerEnds { parent: None }"];
    assert_eq!(hear(&mut codex, &used(100, 0, 10)), end, "that was before");
    codex.tell(&message("go", Delivery::Steer), Standing::Idle);
    hear(&mut codex, &turn("turn/started", "inProgress"));
    let Said::Event(told) = &codex.line(used(150, 20, 15).to_string().as_bytes())[1] else { panic!() };
    let data: Value = serde_json::from_str(told.data.get()).unwrap();
    assert_eq!((&data["input_tokens"], &data["output_tokens"]), (&json!(30), &json!(5)));
    assert_eq!(data["cache_read_tokens"], 20);
    assert_eq!(hear(&mut codex, &used(150, 20, 15)), end, "it says the same again when it is interrupted");
}

#[test]
fn errors_are_told_once_and_end_it() {
    let mut codex = begun(&message("go", Delivery::Steer));
    let error = |retries: bool, info: Value| {
        notice("error", json!({"willRetry": retries, "error": {"message": "busy", "codexErrorInfo": info}}))
    };
    let limited = hear(&mut codex, &error(true, json!({"responseTooManyFailedAttempts": {"httpStatusCode": 429}})));
    assert_eq!(limited, [r#"agent.stream_error "busy""#, "RateLimited { wait: None }"]);
    assert_eq!(hear(&mut codex, &error(false, json!("other"))), [r#"agent.error "busy""#]);
    let failed =
        notice("turn/completed", json!({"turn": {"id": "u", "status": "failed", "error": {"message": "busy"}}}));
    assert_eq!(hear(&mut codex, &failed), [r#"Failed { error: "busy" }"#]);
    let mut codex = Codex { native_id: Some("x".to_owned()), ..Codex::default() };
    codex.greeting();
    assert_eq!(hear(&mut codex, &json!({"id": 1, "result": {}})), ["reply initialized, thread/resume"]);
    let lost = hear(&mut codex, &json!({"id": 2, "error": {"message": "no rollout found"}}));
    assert_eq!(lost, [r#"Failed { error: "it can't go on with the conversation x: no rollout found" }"#]);
}

#[test]
fn a_sub_agent_works_under_the_tool_that_began_it() {
    let mut codex = begun(&message("go", Delivery::Steer));
    let spawn = json!({"type": "collabAgentToolCall", "id": "s", "tool": "spawnAgent", "prompt": "look",
        "receiverThreadIds": ["other"]});
    let begun = hear(&mut codex, &item("item/started", spawn));
    assert_eq!(begun[1], "agent.subagent_invoked ");
    let mut of_other = item("item/started", json!({"type": "commandExecution", "id": "c", "command": "ls"}));
    of_other["params"]["threadId"] = "other".into();
    let Said::Event(told) = &codex.line(of_other.to_string().as_bytes())[0] else { panic!() };
    assert!(told.data.get().contains(r#""parent_tool_use_id":"s""#), "{}", told.data);
    let mut over = turn("turn/completed", "completed");
    over["params"]["threadId"] = "other".into();
    assert_eq!(hear(&mut codex, &over), [""; 0], "our turn goes on");
}

#[test]
fn it_is_started_with_what_was_asked_for_and_without_any_secret_in_a_file() {
    let mcp = json!({"docs": {"type": "stdio", "command": "docs", "args": ["-v"]}});
    let settings = Settings {
        model: Some("gpt".to_owned()),
        approvals: Some(Approvals::Full),
        system_prompt: Some("be brief".to_owned()),
        mcp: mcp.as_object().cloned(),
        ..Settings::default()
    };
    let gateway = Gateway { base_url: "http://127.0.0.1:7709".to_owned(), key: "placeholder".to_owned() };
    let launch = Launch { gateway: Some(&gateway), native_id: Some("n"), ..Launch::plain(Path::new("/w"), &settings) };
    let mut codex = Codex::default();
    let command = codex.command(&launch);
    assert_eq!(command.argv, ["codex", "app-server"]);
    assert!(command.env.contains(&("ATOLL_MODEL_KEY".to_owned(), "placeholder".to_owned())));
    let file = &command.files[0];
    assert_eq!(file.path, Path::new(".codex/config.toml"));
    assert!(file.text.contains("base_url = \"http://127.0.0.1:7709/openai/v1\"") && !file.text.contains("placeholder"));
    let provider = file.text.find("model_provider =").unwrap();
    assert!(provider < file.text.find('[').unwrap(), "it stands before all tables: {}", file.text);
    codex.greeting();
    let Said::Reply(reply) = &codex.line(br#"{"id":1,"result":{}}"#)[0] else { panic!() };
    let params = lines(reply)[1]["params"].clone();
    assert_eq!((&params["threadId"], &params["approvalPolicy"]), (&json!("n"), &json!("never")));
    assert_eq!((&params["developerInstructions"], &params["model"]), (&json!("be brief"), &json!("gpt")));
    assert_eq!(params["config"]["mcp_servers"], json!({"docs": {"command": "docs", "args": ["-v"]}}));
    let denied_tools = vec!["Edit".to_owned()];
    let settings = Settings { approvals: Some(Approvals::Full), denied_tools, ..Settings::default() };
    let launch = Launch::plain(Path::new("/w"), &settings);
    let params = start::thread(&launch);
    assert_eq!(params["approvalPolicy"], "untrusted", "it has to ask, so that it can be refused");
    assert!(!start::command(&launch).files[0].text.contains("model_provider"), "without a gateway it uses its own");
}

proptest! {
    #![proptest_config(cases(10_000))]

    /// Whatever it says is told on or named as not understood, and nothing breaks.
    #[test]
    fn no_line_is_dropped_silently(bytes in prop::collection::vec(any::<u8>(), 1..200)) {
        let said = Codex::default().line(&bytes);
        prop_assert!(matches!(&said[..], [Said::Unparsed { .. }]), "{:?}", said);
    }

    #[test]
    fn lines_with_something_else_in_them_break_nothing(
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
        let mut codex = begun(&message("go", Delivery::Steer));
        let line = json!({"id": id, "method": method, "params": {field: value}}).to_string();
        codex.line(line.as_bytes());
        codex.line(line.as_bytes());
        codex.answer("0", Answer::Words(json!({"a": 1})));
    }
}
