//! Snapshot of the wire format: a change here is a change of the protocol.

use super::frame::{DeniedCall, ServerFrame, WorkerCommand, WorkerFrame};
use super::*;
use atoll_core::agent::AcpLaunch;
use atoll_core::limit::Limit;
use atoll_core::sandbox::AgentLimits;
use serde_json::{Value, json};

fn uuid(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

fn time() -> Timestamp {
    Timestamp::from_micros(1_700_000_000_000_000)
}

fn message() -> LeasedMessage {
    LeasedMessage {
        id: MessageId::from_uuid(uuid(1)),
        session_id: SessionId::from_uuid(uuid(2)),
        message_type: MessageType::UserMessage,
        delivery: Delivery::Steer,
        content: "go on".into(),
        sender: Some("user:x".into()),
        position: 3,
        created_at: time(),
        lease: LeaseId::from_uuid(uuid(4)),
        lease_until: time(),
    }
}

fn ack() -> Ack {
    Ack { stream: uuid(5), lease: LeaseId::from_uuid(uuid(4)), how: DeliveryMethod::Injected, turn: Some(2) }
}

fn nack() -> Nack {
    Nack { stream: uuid(5), lease: LeaseId::from_uuid(uuid(4)), handed: true, reason: "gone".into(), retry: false }
}

fn heartbeat() -> Heartbeat {
    Heartbeat {
        stream: uuid(5),
        boot: Some(7),
        protocol: PROTOCOL_VERSION,
        at: time(),
        last_key: 9,
        activity: Activity::Working,
        cpu: Some(0.5),
        memory: Some(1024.0),
        disk: None,
    }
}

fn heartbeat_answer() -> HeartbeatAnswer {
    HeartbeatAnswer {
        state: SandboxState::Running,
        interval_s: 30,
        start: Some(Start {
            sandbox_id: SandboxId::from_uuid(uuid(6)),
            session_id: SessionId::from_uuid(uuid(2)),
            agent: Some("demo".into()),
            prompt: Some(message()),
            settings: Settings::default(),
            resume: Some(Resume { native_id: Some("abc".into()), ..Resume::default() }),
            program: Some("/opt/agents/demo".into()),
            gateway: Some(Gateway {
                base_url: "http://127.0.0.1:7709".into(),
                key: "placeholder".into(),
                apis: vec![ModelApi::OpenAi],
            }),
            acp: Some(AcpLaunch {
                arguments: vec!["acp".into()],
                environment: [("MODE".to_owned(), "quiet".to_owned())].into(),
                session_dir: Some(".agent/sessions".into()),
            }),
            project_id: Some(ProjectId::from_uuid(uuid(9))),
            callback_url: Some("http://127.0.0.1:7700".into()),
            files: vec![HomeFile { path: ".cargo/config.toml".into(), text: "x".into() }],
        }),
    }
}

fn login() -> LoginFile {
    LoginFile { path: ".codex/auth.json".into(), text: "{\"access\":\"hunter2\"}".into() }
}

fn to_json(value: impl Serialize) -> Value {
    serde_json::to_value(value).unwrap()
}

#[test]
fn the_wire_format_is_frozen() {
    let event =
        json!({"key": 1, "type": "agent.message", "source": "agent", "at": time(), "turn": 1, "data": {"text": "hi"}});
    let batch = Batch {
        stream: uuid(5),
        boot: Some(7),
        by: Some(uuid(8)),
        is_final: true,
        events: vec![atoll_core::json::to_raw_json(&event)],
    };
    let rejected = Rejected { key: 2, code: "bad_event".into(), detail: "no".into() };
    let answer =
        BatchAnswer { stored: 1, duplicates: 2, rejected: vec![rejected], dropped: 5, last_key: 3, last_seq: 4 };
    let lease = LeaseId::from_uuid(uuid(4));
    insta::assert_json_snapshot!(json!({
        "version": PROTOCOL_VERSION,
        "batch": to_json(batch),
        "batch_answer": to_json(answer),
        "heartbeat": to_json(heartbeat()),
        "heartbeat_answer": to_json(heartbeat_answer()),
        "lease": to_json(LeaseRequest { stream: uuid(5), boot: None, max: 2, wait_s: 20, renew: vec![lease] }),
        "lease_answer": to_json(LeaseAnswer { items: vec![message()], lost: vec![lease], state: Some(SandboxState::Completing) }),
        "ack": to_json(ack()),
        "nack": to_json(nack()),
        "logins": to_json(LoginsRequest { stream: uuid(5), boot: Some(7), known: Some("abc".into()) }),
        "logins_answer": to_json(LoginsAnswer { files: vec![login()], version: "abc".into() }),
        "server_frames": [
            to_json(ServerFrame::Message { message: message() }),
            to_json(ServerFrame::Command { id: 1, command: WorkerCommand::Stop { state: SandboxState::Completing } }),
            to_json(ServerFrame::Limits {
                limits: AgentLimits { turns: Some(3), ..AgentLimits::default() },
                held: Some(Limit::CostUsd),
            }),
            to_json(ServerFrame::Denials {
                calls: vec![DeniedCall { tool_use_id: "toolu_01".into(), reason: "it changes nothing".into() }],
            }),
            to_json(ServerFrame::Refused { lease, code: "not_your_lease".into(), detail: "no".into() }),
            to_json(ServerFrame::Ping { id: 1 }),
        ],
        "worker_frames": [
            to_json(WorkerFrame::Renew { leases: vec![lease] }),
            to_json(WorkerFrame::Live { after_key: 3, data: json!({"text": "a"}) }),
            to_json(WorkerFrame::Pong { id: 1 }),
        ],
    }));
}

#[test]
fn ignores_unknown_frames_and_fields_of_newer_peers() {
    let frame: ServerFrame = serde_json::from_str(r#"{"type":"teleport","where":"moon"}"#).unwrap();
    assert!(matches!(frame, ServerFrame::Unknown));
    let frame: ServerFrame =
        serde_json::from_str(r#"{"type":"command","id":1,"command":{"name":"dance","how":"well"}}"#).unwrap();
    assert!(matches!(frame, ServerFrame::Command { id: 1, command: WorkerCommand::Unknown }));
    let frame: WorkerFrame = serde_json::from_str(r#"{"type":"teleport"}"#).unwrap();
    assert!(matches!(frame, WorkerFrame::Unknown));
    let mut newer = to_json(heartbeat());
    newer["mood"] = "good".into();
    assert!(serde_json::from_value::<Heartbeat>(newer).is_ok());
}

#[test]
fn debug_output_hides_logins() {
    let printed = format!("{:?}", LoginsAnswer { files: vec![login()], version: "abc".into() });
    assert!(printed.contains(".codex/auth.json") && !printed.contains("hunter2"), "{printed}");
}
