//! Translates an abstract step into calls of tools that the request offers.
//!
//! Agents differ in the names of tools and inputs. This module lists tool names and reads input names from the schema,
//! so that most new versions work unchanged.

use crate::answer::{CallInput, ScriptedCall};
use crate::code_mode;
use crate::conversation::{Conversation, InputForm, Tool};
use crate::file_commands;
use crate::script::{AskStep, EditStep, PlanItem, ScriptStep, WriteStep};
use serde_json::{Map, Value, json};

const WRITE_TOOLS: &[&str] = &["Write", "write", "write_file", "create_file"];
const EDIT_TOOLS: &[&str] = &["Edit", "edit", "replace", "edit_file", "str_replace"];
const PATCH_TOOLS: &[&str] = &["apply_patch"];
const SHELL_TOOLS: &[&str] =
    &["Bash", "bash", "exec_command", "shell_command", "shell", "run_shell_command", "execute_command"];
const PLAN_TOOLS: &[&str] = &["TodoWrite", "todowrite", "update_plan", "write_todos"];
/// Tools that take one item per call.
const PLAN_ITEM_TOOLS: &[&str] = &["TaskCreate"];
const QUESTION_TOOLS: &[&str] = &["AskUserQuestion", "question", "request_user_input", "ask_user"];

const FILE_FIELDS: &[&str] = &["file_path", "filePath", "path", "absolute_path", "file", "filename"];
const CONTENT_FIELDS: &[&str] = &["content", "contents", "text", "file_text"];
const OLD_TEXT_FIELDS: &[&str] = &["old_string", "oldString", "old_str", "old"];
const NEW_TEXT_FIELDS: &[&str] = &["new_string", "newString", "new_str", "new"];
const COMMAND_FIELDS: &[&str] = &["command", "cmd", "script"];
const PATCH_FIELDS: &[&str] = &["input", "patchText", "patch"];
const ITEMS_FIELDS: &[&str] = &["todos", "plan", "items"];

/// Returns the calls of a step, or the reason why there are none.
pub(crate) fn calls_for_step(
    step: &ScriptStep,
    conversation: &Conversation,
    cwd: Option<&str>,
) -> Result<Vec<ScriptedCall>, String> {
    let offered = OfferedTools { tools: &conversation.tools, cwd };
    let one = |call: ScriptedCall| vec![offered.make_callable(call)];
    match step {
        ScriptStep::Write(write) => offered.write_call(write).map(one),
        ScriptStep::Edit(edit) => offered.edit_call(edit).map(one),
        ScriptStep::Run(command) => offered.run_call(command).map(one),
        ScriptStep::Plan(items) => {
            offered.plan_calls(items).map(|calls| calls.into_iter().map(|call| offered.make_callable(call)).collect())
        }
        ScriptStep::Ask(ask) => offered.ask_call(ask).map(one),
        ScriptStep::Use(used) => {
            let input = match (offered.find_tool(&[&used.tool]).map(|tool| &tool.input_form), &used.input) {
                (Some(InputForm::Text), Value::String(text)) => CallInput::Text(text.clone()),
                (_, Value::Null) => CallInput::Object(json!({})),
                (_, input) => CallInput::Object(input.clone()),
            };
            // Also an unknown tool, to test the agent's reaction.
            Ok(one(ScriptedCall { tool: used.tool.clone(), input }))
        }
        ScriptStep::Parallel(steps) => {
            let each =
                steps.iter().map(|step| calls_for_step(step, conversation, cwd)).collect::<Result<Vec<_>, _>>()?;
            Ok(each.into_iter().flatten().collect())
        }
        ScriptStep::Say(_)
        | ScriptStep::Slow(_)
        | ScriptStep::Think(_)
        | ScriptStep::Expect(_)
        | ScriptStep::Fail(_)
        | ScriptStep::Cut(_)
        | ScriptStep::Delay(_)
        | ScriptStep::Usage(_)
        | ScriptStep::End => Ok(Vec::new()),
    }
}

struct OfferedTools<'a> {
    tools: &'a [Tool],
    cwd: Option<&'a str>,
}

impl OfferedTools<'_> {
    /// Returns the first offered tool of these names.
    fn find_tool(&self, names: &[&str]) -> Option<&Tool> {
        names.iter().find_map(|name| self.tools.iter().find(|tool| tool.name == *name))
    }

    /// Wraps the call in a script if only a script can call the tool.
    fn make_callable(&self, call: ScriptedCall) -> ScriptedCall {
        match self.find_tool(&[&call.tool]).and_then(|tool| tool.caller.as_deref()) {
            Some(caller) => code_mode::call_from_script(caller, &call),
            None => call,
        }
    }

    fn missing_tool_message(&self, what: &str, names: &[&[&str]]) -> String {
        let known = names.concat().join(", ");
        let offered: Vec<_> = self.tools.iter().map(|tool| tool.name.as_str()).collect();
        format!("no tool to {what} is offered: known are {known}; offered are {}", offered.join(", "))
    }

    fn write_call(&self, write: &WriteStep) -> Result<ScriptedCall, String> {
        if let Some(tool) = self.find_tool(WRITE_TOOLS) {
            let file = self.absolute_path(&write.file);
            return Ok(build_call(
                tool,
                &[(FILE_FIELDS, file.into()), (CONTENT_FIELDS, write.content.as_str().into())],
            ));
        }
        if let Some(tool) = self.find_tool(PATCH_TOOLS) {
            return Ok(patch_call(tool, file_commands::add_file_patch(&write.file, &write.content)));
        }
        self.run_call(&file_commands::write_command(&write.file, &write.content))
            .map_err(|_| self.missing_tool_message("write a file", &[WRITE_TOOLS, PATCH_TOOLS, SHELL_TOOLS]))
    }

    fn edit_call(&self, edit: &EditStep) -> Result<ScriptedCall, String> {
        if let Some(tool) = self.find_tool(EDIT_TOOLS) {
            let file = self.absolute_path(&edit.file);
            let arguments = [
                (FILE_FIELDS, file.into()),
                (OLD_TEXT_FIELDS, edit.old.as_str().into()),
                (NEW_TEXT_FIELDS, edit.new.as_str().into()),
            ];
            return Ok(build_call(tool, &arguments));
        }
        let text = file_commands::update_file_patch(&edit.file, &edit.old, &edit.new);
        if let Some(tool) = self.find_tool(PATCH_TOOLS) {
            return Ok(patch_call(tool, text));
        }
        // Without the tool, Codex still has the program.
        match self.find_tool(&["exec_command", "shell_command", "shell"]) {
            Some(tool) => Ok(shell_call(tool, &file_commands::apply_patch_command(&text))),
            None => Err(self.missing_tool_message("edit a file", &[EDIT_TOOLS, PATCH_TOOLS])),
        }
    }

    fn run_call(&self, command: &str) -> Result<ScriptedCall, String> {
        let tool =
            self.find_tool(SHELL_TOOLS).ok_or_else(|| self.missing_tool_message("run a command", &[SHELL_TOOLS]))?;
        Ok(shell_call(tool, command))
    }

    fn plan_calls(&self, items: &[PlanItem]) -> Result<Vec<ScriptedCall>, String> {
        if let Some(tool) = self.find_tool(PLAN_TOOLS) {
            let items: Vec<_> =
                items.iter().enumerate().map(|(index, item)| plan_item_json(tool, index, item)).collect();
            return Ok(vec![build_call(tool, &[(ITEMS_FIELDS, items.into())])]);
        }
        // Claude Code lists most tools only after a search, but accepts their calls.
        let hidden = Tool::new("TaskCreate", InputForm::Object(Value::Null));
        let tool = match self.find_tool(PLAN_ITEM_TOOLS) {
            Some(tool) => tool,
            None if self.find_tool(&["ToolSearch"]).is_some() => &hidden,
            None => return Err(self.missing_tool_message("make a plan", &[PLAN_TOOLS, PLAN_ITEM_TOOLS])),
        };
        let one = |item: &PlanItem| {
            let step = Value::from(item.step.as_str());
            build_call(tool, &[(&["subject"], step.clone()), (&["description"], step)])
        };
        Ok(items.iter().map(one).collect())
    }

    fn ask_call(&self, ask: &AskStep) -> Result<ScriptedCall, String> {
        let tool = self
            .find_tool(QUESTION_TOOLS)
            .ok_or_else(|| self.missing_tool_message("ask a question", &[QUESTION_TOOLS]))?;
        let options: Vec<_> = ask.options.iter().map(|label| json!({ "label": label, "description": label })).collect();
        let mut question = json!({
            "id": "question", "question": ask.question, "header": "Question", "options": options,
        });
        match tool.name.as_str() {
            "AskUserQuestion" => question["multiSelect"] = false.into(),
            "ask_user" => question["type"] = if ask.options.is_empty() { "text" } else { "choice" }.into(),
            _ => {}
        }
        Ok(build_call(tool, &[(&["questions"], json!([question]))]))
    }

    fn absolute_path(&self, file: &str) -> String {
        match self.cwd {
            Some(cwd) if !file.starts_with('/') => format!("{}/{file}", cwd.trim_end_matches('/')),
            _ => file.to_owned(),
        }
    }
}

fn plan_item_json(tool: &Tool, index: usize, item: &PlanItem) -> Value {
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

fn patch_call(tool: &Tool, text: String) -> ScriptedCall {
    match &tool.input_form {
        InputForm::Text => ScriptedCall { tool: tool.name.clone(), input: CallInput::Text(text) },
        InputForm::Object(_) => build_call(tool, &[(PATCH_FIELDS, text.into())]),
    }
}

fn shell_call(tool: &Tool, command: &str) -> ScriptedCall {
    let InputForm::Object(schema) = &tool.input_form else {
        return ScriptedCall { tool: tool.name.clone(), input: CallInput::Text(command.to_owned()) };
    };
    let name = choose_field(schema, COMMAND_FIELDS);
    let as_words = schema["properties"][name]["type"] == "array";
    let value = if as_words { json!(["bash", "-lc", command]) } else { command.into() };
    if schema["properties"]["description"].is_null() {
        return build_call(tool, &[(COMMAND_FIELDS, value)]);
    }
    let description = command.lines().next().unwrap_or_default();
    build_call(tool, &[(COMMAND_FIELDS, value), (&["description"], description.into())])
}

/// Returns the first of these names in the schema; without a schema, the first.
fn choose_field<'a>(schema: &Value, names: &[&'a str]) -> &'a str {
    let known = names.iter().find(|name| !schema["properties"][**name].is_null());
    known.or(names.first()).copied().unwrap_or_default()
}

/// Builds a call with these values under the tool's field names, and default values for other required fields.
fn build_call(tool: &Tool, arguments: &[(&[&str], Value)]) -> ScriptedCall {
    let InputForm::Object(schema) = &tool.input_form else {
        let text = arguments.iter().filter_map(|(_, value)| value.as_str()).collect::<Vec<_>>().join("\n");
        return ScriptedCall { tool: tool.name.clone(), input: CallInput::Text(text) };
    };
    let mut input = Map::new();
    for (names, value) in arguments {
        input.insert(choose_field(schema, names).to_owned(), value.clone());
    }
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !input.contains_key(name) {
            input.insert(name.to_owned(), default_value(&schema["properties"][name]));
        }
    }
    ScriptedCall { tool: tool.name.clone(), input: CallInput::Object(input.into()) }
}

fn default_value(schema: &Value) -> Value {
    if let Some(first) = schema["enum"].get(0) {
        return first.clone();
    }
    // Gemini's types are upper case.
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
