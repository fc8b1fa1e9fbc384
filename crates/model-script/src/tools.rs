//! From an abstract step to a call of a tool that the request offers.
//!
//! Agents differ in the names of their tools and of what these take. The names of tools are listed here; what a
//! tool takes is read from its schema, so that a new version with other words mostly works by itself.

use crate::answer::{Call, Input};
use crate::conversation::{Conversation, Form, Tool};
use crate::script::{Ask, Edit, PlanItem, Step, Write};
use crate::shell;
use serde_json::{Map, Value, json};

const WRITERS: &[&str] = &["Write", "write", "write_file", "create_file"];
const EDITORS: &[&str] = &["Edit", "edit", "replace", "edit_file", "str_replace"];
const PATCHERS: &[&str] = &["apply_patch"];
const SHELLS: &[&str] =
    &["Bash", "bash", "exec_command", "shell_command", "shell", "run_shell_command", "execute_command"];
const PLANNERS: &[&str] = &["TodoWrite", "todowrite", "update_plan", "write_todos"];
/// One call for each item.
const PLANNERS_BY_ITEM: &[&str] = &["TaskCreate"];
const ASKERS: &[&str] = &["AskUserQuestion", "question", "request_user_input", "ask_user"];

const FILE: &[&str] = &["file_path", "filePath", "path", "absolute_path", "file", "filename"];
const CONTENT: &[&str] = &["content", "contents", "text", "file_text"];
const OLD: &[&str] = &["old_string", "oldString", "old_str", "old"];
const NEW: &[&str] = &["new_string", "newString", "new_str", "new"];
const COMMAND: &[&str] = &["command", "cmd", "script"];
const PATCH: &[&str] = &["input", "patchText", "patch"];
const ITEMS: &[&str] = &["todos", "plan", "items"];

/// The calls of a step, or why there can be none.
pub(crate) fn calls(step: &Step, asked: &Conversation, cwd: Option<&str>) -> Result<Vec<Call>, String> {
    let offered = Offered { tools: &asked.tools, cwd };
    match step {
        Step::Write(write) => offered.write(write).map(|call| vec![call]),
        Step::Edit(edit) => offered.edit(edit).map(|call| vec![call]),
        Step::Run(command) => offered.run(command).map(|call| vec![call]),
        Step::Plan(items) => offered.plan(items),
        Step::Ask(ask) => offered.ask(ask).map(|call| vec![call]),
        Step::Use(used) => {
            let input = match (offered.find(&[&used.tool]).map(|tool| &tool.form), &used.input) {
                (Some(Form::Text), Value::String(text)) => Input::Text(text.clone()),
                (_, Value::Null) => Input::Object(json!({})),
                (_, input) => Input::Object(input.clone()),
            };
            // Also one that is not offered: to see what the agent does then.
            Ok(vec![Call { tool: used.tool.clone(), input }])
        }
        Step::Parallel(steps) => {
            let each = steps.iter().map(|step| calls(step, asked, cwd)).collect::<Result<Vec<_>, _>>()?;
            Ok(each.into_iter().flatten().collect())
        }
        Step::Say(_)
        | Step::Slow(_)
        | Step::Think(_)
        | Step::Expect(_)
        | Step::Fail(_)
        | Step::Cut(_)
        | Step::Delay(_)
        | Step::Usage(_)
        | Step::End => Ok(Vec::new()),
    }
}

struct Offered<'a> {
    tools: &'a [Tool],
    cwd: Option<&'a str>,
}

impl Offered<'_> {
    /// The first of these names that is offered.
    fn find(&self, names: &[&str]) -> Option<&Tool> {
        names.iter().find_map(|name| self.tools.iter().find(|tool| tool.name == *name))
    }

    fn none_of(&self, what: &str, names: &[&[&str]]) -> String {
        let known = names.concat().join(", ");
        let offered: Vec<_> = self.tools.iter().map(|tool| tool.name.as_str()).collect();
        format!("no tool to {what} is offered: known are {known}; offered are {}", offered.join(", "))
    }

    fn write(&self, write: &Write) -> Result<Call, String> {
        if let Some(tool) = self.find(WRITERS) {
            let file = self.absolute(&write.file);
            return Ok(filled(tool, &[(FILE, file.into()), (CONTENT, write.content.as_str().into())]));
        }
        if let Some(tool) = self.find(PATCHERS) {
            return Ok(patch(tool, shell::add(&write.file, &write.content)));
        }
        self.run(&shell::write(&write.file, &write.content))
            .map_err(|_| self.none_of("write a file", &[WRITERS, PATCHERS, SHELLS]))
    }

    fn edit(&self, edit: &Edit) -> Result<Call, String> {
        if let Some(tool) = self.find(EDITORS) {
            let file = self.absolute(&edit.file);
            let given = [(FILE, file.into()), (OLD, edit.old.as_str().into()), (NEW, edit.new.as_str().into())];
            return Ok(filled(tool, &given));
        }
        let text = shell::update(&edit.file, &edit.old, &edit.new);
        if let Some(tool) = self.find(PATCHERS) {
            return Ok(patch(tool, text));
        }
        // Codex without the tool still has the program.
        match self.find(&["exec_command", "shell_command", "shell"]) {
            Some(tool) => Ok(run_by(tool, &shell::apply(&text))),
            None => Err(self.none_of("edit a file", &[EDITORS, PATCHERS])),
        }
    }

    fn run(&self, command: &str) -> Result<Call, String> {
        let tool = self.find(SHELLS).ok_or_else(|| self.none_of("run a command", &[SHELLS]))?;
        Ok(run_by(tool, command))
    }

    fn plan(&self, items: &[PlanItem]) -> Result<Vec<Call>, String> {
        if let Some(tool) = self.find(PLANNERS) {
            let items: Vec<_> = items.iter().enumerate().map(|(index, item)| plan_item(tool, index, item)).collect();
            return Ok(vec![filled(tool, &[(ITEMS, items.into())])]);
        }
        // Claude Code offers most tools only to those who search for them, and takes their calls all the same.
        let hidden = Tool { name: "TaskCreate".into(), form: Form::Object(Value::Null) };
        let tool = match self.find(PLANNERS_BY_ITEM) {
            Some(tool) => tool,
            None if self.find(&["ToolSearch"]).is_some() => &hidden,
            None => return Err(self.none_of("make a plan", &[PLANNERS, PLANNERS_BY_ITEM])),
        };
        let one = |item: &PlanItem| {
            let step = Value::from(item.step.as_str());
            filled(tool, &[(&["subject"], step.clone()), (&["description"], step)])
        };
        Ok(items.iter().map(one).collect())
    }

    fn ask(&self, ask: &Ask) -> Result<Call, String> {
        let tool = self.find(ASKERS).ok_or_else(|| self.none_of("ask a question", &[ASKERS]))?;
        let options: Vec<_> = ask.options.iter().map(|label| json!({ "label": label, "description": label })).collect();
        let mut question = json!({
            "id": "question", "question": ask.question, "header": "Question", "options": options,
        });
        match tool.name.as_str() {
            "AskUserQuestion" => question["multiSelect"] = false.into(),
            "ask_user" => question["type"] = if ask.options.is_empty() { "text" } else { "choice" }.into(),
            _ => {}
        }
        Ok(filled(tool, &[(&["questions"], json!([question]))]))
    }

    fn absolute(&self, file: &str) -> String {
        match self.cwd {
            Some(cwd) if !file.starts_with('/') => format!("{}/{file}", cwd.trim_end_matches('/')),
            _ => file.to_owned(),
        }
    }
}

fn plan_item(tool: &Tool, index: usize, item: &PlanItem) -> Value {
    let status = item.status.as_str();
    match tool.name.as_str() {
        "update_plan" => json!({ "step": item.step, "status": status }),
        "write_todos" => json!({ "description": item.step, "status": status }),
        "todowrite" => {
            json!({ "id": (index + 1).to_string(), "content": item.step, "status": status, "priority": "medium" })
        }
        _ => json!({ "content": item.step, "status": status, "activeForm": item.step }),
    }
}

fn patch(tool: &Tool, text: String) -> Call {
    match &tool.form {
        Form::Text => Call { tool: tool.name.clone(), input: Input::Text(text) },
        Form::Object(_) => filled(tool, &[(PATCH, text.into())]),
    }
}

fn run_by(tool: &Tool, command: &str) -> Call {
    let Form::Object(schema) = &tool.form else {
        return Call { tool: tool.name.clone(), input: Input::Text(command.to_owned()) };
    };
    let name = chosen(schema, COMMAND);
    let as_words = schema["properties"][name]["type"] == "array";
    let value = if as_words { json!(["bash", "-lc", command]) } else { command.into() };
    if schema["properties"]["description"].is_null() {
        return filled(tool, &[(COMMAND, value)]);
    }
    let description = command.lines().next().unwrap_or_default();
    filled(tool, &[(COMMAND, value), (&["description"], description.into())])
}

/// The first of these names that the schema has; without a schema the first.
fn chosen<'a>(schema: &Value, names: &[&'a str]) -> &'a str {
    let known = names.iter().find(|name| !schema["properties"][**name].is_null());
    known.or(names.first()).copied().unwrap_or_default()
}

/// A call with these values under the tool's own names, and with something harmless for whatever else it requires.
fn filled(tool: &Tool, given: &[(&[&str], Value)]) -> Call {
    let Form::Object(schema) = &tool.form else {
        let text = given.iter().filter_map(|(_, value)| value.as_str()).collect::<Vec<_>>().join("\n");
        return Call { tool: tool.name.clone(), input: Input::Text(text) };
    };
    let mut input = Map::new();
    for (names, value) in given {
        input.insert(chosen(schema, names).to_owned(), value.clone());
    }
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !input.contains_key(name) {
            input.insert(name.to_owned(), harmless(&schema["properties"][name]));
        }
    }
    Call { tool: tool.name.clone(), input: Input::Object(input.into()) }
}

fn harmless(schema: &Value) -> Value {
    if let Some(first) = schema["enum"].get(0) {
        return first.clone();
    }
    // Gemini writes types in capitals.
    match schema["type"].as_str().unwrap_or("string").to_lowercase().as_str() {
        "boolean" => false.into(),
        "number" | "integer" => schema["minimum"].as_u64().unwrap_or(0).into(),
        "array" => json!([]),
        "object" => json!({}),
        _ => "scripted".into(),
    }
}

#[cfg(test)]
#[path = "tools_tests.rs"]
mod tests;
