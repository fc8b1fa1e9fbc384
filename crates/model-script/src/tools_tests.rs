use super::*;
use crate::script::Scripts;

fn tool(name: &str, properties: &[&str], required: &[&str]) -> Tool {
    let properties: Map<_, _> = properties.iter().map(|name| ((*name).to_owned(), json!({"type": "string"}))).collect();
    let schema = json!({ "type": "object", "properties": properties, "required": required });
    Tool { name: name.into(), form: Form::Object(schema) }
}

fn claude() -> Vec<Tool> {
    vec![
        tool("Bash", &["command", "description", "timeout"], &["command"]),
        tool("Edit", &["file_path", "old_string", "new_string", "replace_all"], &["file_path"]),
        tool("Write", &["file_path", "content"], &["file_path", "content"]),
        tool("TaskCreate", &["subject", "description", "activeForm"], &["subject", "description"]),
        tool("AskUserQuestion", &["questions"], &["questions"]),
    ]
}

fn opencode() -> Vec<Tool> {
    vec![
        tool("bash", &["command", "description"], &["command", "description"]),
        tool("edit", &["filePath", "oldString", "newString"], &["filePath"]),
        tool("write", &["filePath", "content"], &["filePath"]),
        tool("todowrite", &["todos"], &["todos"]),
        tool("question", &["questions"], &["questions"]),
    ]
}

fn codex() -> Vec<Tool> {
    vec![
        tool("exec_command", &["cmd", "workdir", "yield_time_ms"], &["cmd"]),
        Tool { name: "apply_patch".into(), form: Form::Text },
        tool("update_plan", &["plan", "explanation"], &["plan"]),
        tool("request_user_input", &["questions"], &["questions"]),
    ]
}

fn gemini() -> Vec<Tool> {
    vec![
        tool("run_shell_command", &["command", "description"], &["command"]),
        tool("replace", &["file_path", "instruction", "old_string", "new_string"], &["file_path", "instruction"]),
        tool("write_file", &["file_path", "content"], &["file_path", "content"]),
        tool("write_todos", &["todos"], &["todos"]),
        tool("ask_user", &["questions"], &["questions"]),
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

fn shown(tools: Vec<Tool>) -> String {
    let scripts = Scripts::parse(STEPS).unwrap();
    let asked = Conversation { tools, ..Conversation::default() };
    let lines = scripts.first().unwrap().steps.iter().flat_map(|step| match calls(step, &asked, Some("/w/")) {
        Ok(calls) => calls
            .into_iter()
            .map(|call| match call.input {
                Input::Object(input) => format!("{} {input}", call.tool),
                Input::Text(text) => format!("{} {text:?}", call.tool),
            })
            .collect(),
        Err(why) => vec![format!("! {why}")],
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn each_agent_is_called_in_its_own_words() {
    insta::assert_snapshot!("claude", shown(claude()));
    insta::assert_snapshot!("opencode", shown(opencode()));
    insta::assert_snapshot!("codex", shown(codex()));
    insta::assert_snapshot!("gemini", shown(gemini()));
}

#[test]
fn a_shell_stands_in_for_what_is_missing() {
    insta::assert_snapshot!("codex_without_patches", shown(codex().into_iter().take(1).collect()));
    insta::assert_snapshot!("only_bash", shown(claude().into_iter().take(1).collect()));
    insta::assert_snapshot!("nothing", shown(Vec::new()));
}

#[test]
fn a_command_may_be_a_list_of_words() {
    let schema = json!({"properties": {"command": {"type": "array"}}, "required": ["command"]});
    let call = run_by(&Tool { name: "shell".into(), form: Form::Object(schema) }, "ls");
    assert_eq!(call.input, Input::Object(json!({"command": ["bash", "-lc", "ls"]})));
}
