//! Codex' code mode: one tool runs JavaScript, which calls the other tools. They appear only in that tool's description,
//! as TypeScript declarations.

use crate::answer::{CallInput, ScriptedCall};
use crate::conversation::{InputForm, Tool};
use serde_json::{Map, Value, json};

const DECLARATION_START: &str = "declare const tools: { ";

/// Lists the tools that the description of `caller` declares.
pub(crate) fn list_nested_tools(caller: &str, description: &str) -> Vec<Tool> {
    let declarations = description.split(DECLARATION_START).skip(1);
    declarations
        .filter_map(|declaration| {
            let (name, rest) = declaration.split_once('(')?;
            let form = if rest.starts_with("args: {") { InputForm::Object(read_schema(rest)) } else { InputForm::Text };
            Some(Tool { caller: Some(caller.to_owned()), ..Tool::new(name, form) })
        })
        .collect()
}

/// Reads the fields of the argument, one per line: `name: type;` or `name?: type;`.
fn read_schema(declaration: &str) -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for line in declaration.lines().skip(1).map(str::trim).take_while(|line| !line.starts_with('}')) {
        let Some((name, kind)) = line.split_once(": ").filter(|_| !line.starts_with("//")) else { continue };
        if !name.ends_with('?') {
            required.push(Value::from(name));
        }
        let kind = kind.trim_end_matches(';');
        let kind = if kind.starts_with("Array<") { "array" } else { kind };
        properties.insert(name.trim_end_matches('?').to_owned(), json!({ "type": kind }));
    }
    json!({ "type": "object", "properties": properties, "required": required })
}

/// Turns the call of a nested tool into a call of the tool that runs JavaScript.
pub(crate) fn call_from_script(caller: &str, call: &ScriptedCall) -> ScriptedCall {
    // JSON is valid JavaScript.
    let input = match &call.input {
        CallInput::Object(input) => input.to_string(),
        CallInput::Text(text) => Value::from(text.as_str()).to_string(),
    };
    let script = format!("const result = await tools.{}({input});\ntext(result?.output ?? result);\n", call.tool);
    ScriptedCall { tool: caller.to_owned(), input: CallInput::Text(script) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DESCRIPTION: &str = "Run JavaScript code.

### `apply_patch`
```ts
declare const tools: { apply_patch(input: string): Promise<unknown>; };
```

### `exec_command`
```ts
declare const tools: { exec_command(args: {
  // Shell command: to execute.
  cmd: string;
  prefix_rule?: Array<string>;
  tty?: boolean;
}): Promise<{
  output: string;
}>; };
```
";

    #[test]
    fn reads_the_declarations() {
        let tools = list_nested_tools("exec", DESCRIPTION);
        let schema = json!({"type": "object", "properties": {"cmd": {"type": "string"},
            "prefix_rule": {"type": "array"}, "tty": {"type": "boolean"}}, "required": ["cmd"]});
        let nested = |name, form| Tool { caller: Some("exec".to_owned()), ..Tool::new(name, form) };
        let expected = [nested("apply_patch", InputForm::Text), nested("exec_command", InputForm::Object(schema))];
        assert_eq!(tools, expected);
        assert_eq!(list_nested_tools("exec", "Runs a command."), []);
    }

    #[test]
    fn a_nested_call_is_a_script() {
        let call = |tool: &str, input| call_from_script("exec", &ScriptedCall { tool: tool.to_owned(), input });
        let run = call("exec_command", CallInput::Object(json!({"cmd": "echo \"a\""})));
        let CallInput::Text(script) = run.input else { panic!("not a script") };
        assert!(script.starts_with(r#"const result = await tools.exec_command({"cmd":"echo \"a\""});"#), "{script}");
        let patch = call("apply_patch", CallInput::Text("*** Begin\n".to_owned()));
        let CallInput::Text(script) = patch.input else { panic!("not a script") };
        assert!(script.starts_with(r#"const result = await tools.apply_patch("*** Begin\n");"#), "{script}");
        assert_eq!(patch.tool, "exec");
    }
}
