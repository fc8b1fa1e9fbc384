use super::*;
use crate::script::Scripts;

fn make_tool(name: &str, properties: &[&str], required: &[&str]) -> Tool {
    let properties: Map<_, _> = properties.iter().map(|name| ((*name).to_owned(), json!({"type": "string"}))).collect();
    let schema = json!({ "type": "object", "properties": properties, "required": required });
    Tool::new(name, InputForm::Object(schema))
}

fn claude_tools() -> Vec<Tool> {
    vec![
        make_tool("Bash", &["command", "description", "timeout"], &["command"]),
        make_tool("Edit", &["file_path", "old_string", "new_string", "replace_all"], &["file_path"]),
        make_tool("Write", &["file_path", "content"], &["file_path", "content"]),
        make_tool("TaskCreate", &["subject", "description", "activeForm"], &["subject", "description"]),
        make_tool("AskUserQuestion", &["questions"], &["questions"]),
    ]
}

fn opencode_tools() -> Vec<Tool> {
    vec![
        make_tool("bash", &["command", "description"], &["command", "description"]),
        make_tool("edit", &["filePath", "oldString", "newString"], &["filePath"]),
        make_tool("write", &["filePath", "content"], &["filePath"]),
        make_tool("todowrite", &["todos"], &["todos"]),
        make_tool("question", &["questions"], &["questions"]),
    ]
}

fn codex_tools() -> Vec<Tool> {
    vec![
        make_tool("exec_command", &["cmd", "workdir", "yield_time_ms"], &["cmd"]),
        Tool::new("apply_patch", InputForm::Text),
        make_tool("update_plan", &["plan", "explanation"], &["plan"]),
        make_tool("request_user_input", &["questions"], &["questions"]),
    ]
}

fn gemini_tools() -> Vec<Tool> {
    vec![
        make_tool("run_shell_command", &["command", "description"], &["command"]),
        make_tool("replace", &["file_path", "instruction", "old_string", "new_string"], &["file_path", "instruction"]),
        make_tool("write_file", &["file_path", "content"], &["file_path", "content"]),
        make_tool("write_todos", &["todos"], &["todos"]),
        make_tool("ask_user", &["questions"], &["questions"]),
    ]
}

const STEPS: &str = "
- write: {file: a/b.txt, content: \"one\\n\"}
- edit: {file: a/b.txt, old: one, new: two}
- run: cat a/b.txt
- plan: [look, {step: write, status: completed}]
- ask: {question: Which?, options: [x]}
- use: {tool: Glob, input: {pattern: '*'}}
- parallel: [{run: 'true'}, {run: 'false'}]
";

fn render_calls(tools: Vec<Tool>) -> String {
    let scripts = Scripts::parse(STEPS).unwrap();
    let conversation = Conversation { tools, ..Conversation::default() };
    let lines =
        scripts.first().unwrap().steps.iter().flat_map(|step| match calls_for_step(step, &conversation, Some("/w/")) {
            Ok(calls) => calls
                .into_iter()
                .map(|call| match call.input {
                    CallInput::Object(input) => format!("{} {input}", call.tool),
                    CallInput::Text(text) => format!("{} {text:?}", call.tool),
                })
                .collect(),
            Err(why) => vec![format!("! {why}")],
        });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn uses_the_tools_of_each_agent() {
    insta::assert_snapshot!("claude", render_calls(claude_tools()));
    insta::assert_snapshot!("opencode", render_calls(opencode_tools()));
    insta::assert_snapshot!("codex", render_calls(codex_tools()));
    insta::assert_snapshot!("gemini", render_calls(gemini_tools()));
}

#[test]
fn a_shell_replaces_missing_tools() {
    insta::assert_snapshot!("codex_without_patches", render_calls(codex_tools().into_iter().take(1).collect()));
    insta::assert_snapshot!("only_bash", render_calls(claude_tools().into_iter().take(1).collect()));
    insta::assert_snapshot!("nothing", render_calls(Vec::new()));
}

#[test]
fn a_command_may_be_a_list_of_words() {
    let schema = json!({"properties": {"command": {"type": "array"}}, "required": ["command"]});
    let call = shell_call(&Tool::new("shell", InputForm::Object(schema)), "ls");
    assert_eq!(call.input, CallInput::Object(json!({"command": ["bash", "-lc", "ls"]})));
}
