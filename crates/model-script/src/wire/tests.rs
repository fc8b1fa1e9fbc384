//! What each API says on the wire, word for word.

use super::*;
use crate::answer::{Block, Call, Input, Piece};
use crate::conversation::{Entry, Form};
use crate::script::Usage;

fn answer() -> Answer {
    let slow = ["I ", "begin"].map(|text| Piece { pause: Duration::from_millis(5), text: text.into() });
    Answer {
        id: "main_1_0".into(),
        blocks: vec![
            Block::Think("hm".into()),
            Block::Text(slow.to_vec()),
            Block::Call(Call {
                tool: "Write".into(),
                input: Input::Object(json!({"file_path": "/a", "content": "x\n"})),
            }),
            Block::Call(Call { tool: "apply_patch".into(), input: Input::Text("*** Begin Patch\n".into()) }),
        ],
        usage: Usage { input: 100, output: 20, cache_read: 7, cache_write: 3 },
        cut: None,
    }
}

fn ending() -> Answer {
    Answer { blocks: vec![Block::text("done")], ..answer() }
}

fn asked() -> Conversation {
    Conversation { model: "m-1".into(), stream: true, stream_usage: true, ..Conversation::default() }
}

fn stream(api: Api, answer: &Answer) -> String {
    api.events(&asked(), answer).iter().map(Event::encoded).collect()
}

#[test]
fn streams_are_as_each_api_has_them() {
    for api in Api::ALL {
        let name = format!("{api:?}").to_lowercase();
        let text = stream(api, &answer()) + "──── an end ────\n" + &stream(api, &ending());
        insta::assert_snapshot!(format!("stream_{name}"), text);
    }
}

#[test]
fn whole_answers_are_as_each_api_has_them() {
    for api in Api::ALL {
        let name = format!("{api:?}").to_lowercase();
        insta::assert_json_snapshot!(
            format!("whole_{name}"),
            [api.whole(&asked(), &answer()), api.whole(&asked(), &ending())]
        );
    }
}

#[test]
fn pauses_stand_before_the_pieces() {
    for api in Api::ALL {
        let paused = api.events(&asked(), &answer()).iter().filter(|event| !event.pause.is_zero()).count();
        assert_eq!(paused, 2, "{api:?}");
    }
}

/// The same conversation in four languages: a prompt, words and a call, its result, a message in between.
#[test]
fn conversations_are_read_from_each_api() {
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
        Entry::System("sys".into()),
        Entry::Told("go".into()),
        Entry::Said,
        Entry::Called,
        Entry::Result("out".into()),
        Entry::Told("and".into()),
    ];
    for (api, body) in Api::ALL.into_iter().zip([anthropic, chat, responses, gemini]) {
        let read = api.read(&body);
        assert_eq!(read.entries, expected, "{api:?}");
        assert_eq!(read.tools.len(), 1, "{api:?}");
        assert_eq!(read.tools[0].name, "Bash", "{api:?}");
        assert_eq!(read.tools[0].form, Form::Object(schema.clone()), "{api:?}");
        assert_eq!(read.course().marks.len(), 1, "{api:?}");
    }
}

#[test]
fn a_custom_tool_takes_text() {
    let body = json!({"tools": [{"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}}]});
    assert_eq!(Api::Responses.read(&body).tools[0].form, Form::Text);
}
