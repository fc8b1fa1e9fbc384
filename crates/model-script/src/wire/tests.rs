//! Snapshots of each API's wire format.

use super::*;
use crate::answer::{Block, CallInput, ScriptedCall, TextPiece};
use crate::conversation::{ConversationEntry, InputForm};
use crate::script::TokenUsage;

fn sample_answer() -> ModelAnswer {
    let slow = ["I ", "begin"].map(|text| TextPiece { pause: Duration::from_millis(5), text: text.into() });
    ModelAnswer {
        id: "main_1_0".into(),
        blocks: vec![
            Block::Think("hm".into()),
            Block::Text(slow.to_vec()),
            Block::Call(ScriptedCall {
                tool: "Write".into(),
                input: CallInput::Object(json!({"file_path": "/a", "content": "x\n"})),
            }),
            Block::Call(ScriptedCall {
                tool: "apply_patch".into(),
                input: CallInput::Text("*** Begin Patch\n".into()),
            }),
        ],
        usage: TokenUsage { input: 100, output: 20, cache_read: 7, cache_write: 3 },
        cut_after_events: None,
    }
}

fn final_answer() -> ModelAnswer {
    ModelAnswer { blocks: vec![Block::text("done")], ..sample_answer() }
}

fn sample_conversation() -> Conversation {
    Conversation { model: "m-1".into(), wants_stream: true, wants_stream_usage: true, ..Conversation::default() }
}

fn encode_stream(api: Api, answer: &ModelAnswer) -> String {
    api.stream_events(&sample_conversation(), answer).iter().map(SseEvent::encode_sse).collect()
}

#[test]
fn encodes_streams_for_each_api() {
    for api in Api::ALL {
        let name = format!("{api:?}").to_lowercase();
        let text = encode_stream(api, &sample_answer()) + "──── an end ────\n" + &encode_stream(api, &final_answer());
        insta::assert_snapshot!(format!("stream_{name}"), text);
    }
}

#[test]
fn encodes_whole_answers_for_each_api() {
    for api in Api::ALL {
        let name = format!("{api:?}").to_lowercase();
        insta::assert_json_snapshot!(
            format!("whole_{name}"),
            [
                api.whole_response(&sample_conversation(), &sample_answer()),
                api.whole_response(&sample_conversation(), &final_answer())
            ]
        );
    }
}

#[test]
fn pauses_precede_the_pieces() {
    for api in Api::ALL {
        let paused = api
            .stream_events(&sample_conversation(), &sample_answer())
            .iter()
            .filter(|event| !event.pause.is_zero())
            .count();
        assert_eq!(paused, 2, "{api:?}");
    }
}

/// The same conversation in four APIs: a prompt, text and a call, its result, a message during the turn.
#[test]
fn parses_conversations_of_each_api() {
    let schema = json!({"type": "object", "properties": {"a": {}}});
    let anthropic = json!({
        "model": "m", "stream": true, "system": [{"type": "text", "text": "sys"}],
        "tools": [{"name": "Bash", "input_schema": schema}],
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [{"type": "text", "text": "I"}, {"type": "tool_use", "id": "1", "name": "Bash", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "out"}]},
                {"type": "text", "text": "and"},
            ]},
        ],
    });
    let chat = json!({
        "model": "m", "stream": true, "stream_options": {"include_usage": true},
        "tools": [{"type": "function", "function": {"name": "Bash", "parameters": schema}}],
        "messages": [
            {"role": "system", "content": "sys"}, {"role": "user", "content": [{"type": "text", "text": "go"}]},
            {"role": "assistant", "content": "I", "tool_calls": [{"id": "1"}]},
            {"role": "tool", "content": "out"}, {"role": "user", "content": "and"},
        ],
    });
    let responses = json!({
        "model": "m", "stream": true, "instructions": "sys",
        "tools": [{"type": "function", "name": "Bash", "parameters": schema}, {"type": "web_search"}],
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
            {"type": "reasoning"}, {"type": "message", "role": "assistant", "content": []},
            {"type": "function_call", "name": "Bash"}, {"type": "function_call_output", "output": "out"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "and"}]},
        ],
    });
    let gemini = json!({
        "systemInstruction": {"parts": [{"text": "sys"}]},
        "tools": [{"functionDeclarations": [{"name": "Bash", "parametersJsonSchema": schema}]}],
        "contents": [
            {"role": "user", "parts": [{"text": "go"}]},
            {"role": "model", "parts": [{"text": "I"}, {"functionCall": {"name": "Bash"}}]},
            {"role": "user", "parts": [{"functionResponse": {"response": {"output": "out"}}}, {"text": "and"}]},
        ],
    });
    let expected = vec![
        ConversationEntry::System("sys".into()),
        ConversationEntry::UserText("go".into()),
        ConversationEntry::ModelText,
        ConversationEntry::ToolCall,
        ConversationEntry::ToolResult("out".into()),
        ConversationEntry::UserText("and".into()),
    ];
    for (api, body) in Api::ALL.into_iter().zip([anthropic, chat, responses, gemini]) {
        let read = api.parse_request(&body);
        assert_eq!(read.entries, expected, "{api:?}");
        assert_eq!(read.tools.len(), 1, "{api:?}");
        assert_eq!(read.tools[0].name, "Bash", "{api:?}");
        assert_eq!(read.tools[0].input_form, InputForm::Object(schema.clone()), "{api:?}");
        assert_eq!(read.script_progress().advances.len(), 1, "{api:?}");
    }
}

#[test]
fn a_custom_tool_takes_text() {
    let body = json!({"tools": [{"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}}]});
    assert_eq!(Api::Responses.parse_request(&body).tools[0].input_form, InputForm::Text);
}
