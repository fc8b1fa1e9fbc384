use super::*;
use serde_json::json;

const ALL_STEPS: &str = r#"
scripts:
  - name: main
    cwd: /srv/work
    steps:
      - think: "what to do?"
      - say: I begin
      - write: {file: a.txt, content: "one\n"}
      - expect: {text: a.txt, new: true}
      - edit: {file: a.txt, old: one, new: two}
      - fail: {status: 429, retry_after: 2, times: 3}
      - run: cat a.txt
      - plan: [read, {step: write, status: completed}]
      - ask: {question: "Which?", options: [a, b]}
      - use: {tool: Glob, input: {pattern: "*"}}
      - parallel: [{run: "true"}, {write: {file: b, content: ""}}]
      - fail: 529
      - cut: 2
      - cut: {after: 4, times: always}
      - delay: 0.5
      - usage: {input: 10, cache_read: 5}
      - slow: {pieces: [a, b], pause: 0.1}
      - end
  - {"name": "other", "steps": []}
"#;

#[test]
fn parses_every_step() {
    let scripts = Scripts::parse(ALL_STEPS).unwrap();
    assert_eq!(scripts.names().collect::<Vec<_>>(), ["main", "other"]);
    let main = scripts.first().unwrap();
    assert_eq!(main.cwd.as_deref(), Some("/srv/work"));
    assert_eq!(main.steps.len(), 18);
    assert_eq!(main.steps[3], ScriptStep::Expect(ExpectStep { text: "a.txt".into(), only_new: true }));
    let ScriptStep::Fail(fail) = &main.steps[5] else { panic!() };
    assert_eq!((fail.status, fail.retry_after, fail.times), (429, Some(2), FailureCount::Count(3)));
    assert_eq!(main.steps[13], ScriptStep::Cut(CutStep { after_events: 4, times: FailureCount::Always }));
    let ScriptStep::Use(used) = &main.steps[9] else { panic!() };
    assert_eq!(used.input, json!({"pattern": "*"}));
}

#[test]
fn a_list_is_one_script() {
    let scripts = Scripts::parse("- say: hello\n- end\n").unwrap();
    assert_eq!(scripts.first().unwrap().steps, [ScriptStep::Say("hello".into()), ScriptStep::End]);
}

#[test]
fn errors_name_the_script_and_step() {
    let refused = |text: &str| Scripts::parse(text).unwrap_err().to_string();
    assert!(refused("").contains("has no script"));
    assert!(refused("- say: [").contains("not valid YAML"));
    assert!(refused("- shout: hello").contains("step 1: unknown variant `shout`"), "{}", refused("- shout: hello"));
    assert!(refused("- end\n- fail: 200").contains("step 2: 200 is not"));
    assert!(refused("- delay: -1").contains("is not between 0 and"));
    assert!(refused("- parallel: [{say: x}]").contains("takes only"));
    assert!(refused("- parallel: []").contains("at least one"));
    assert!(refused("scripts: [{name: a, steps: []}, {name: a, steps: []}]").contains("two scripts"));
    assert!(refused("scripts: [{name: a b, steps: []}]").contains("not a valid script name"));
    assert!(refused("scripts: [{name: a, steps: [], then: 1}]").contains("unknown key `then`"));
    assert!(refused("- write: {file: a}").contains("missing field `content`"));
}

#[test]
fn the_documented_script_is_valid() {
    let page = include_str!("../../../docs/model-script.md");
    let (_, script) = page.split_once("```yaml\n").unwrap();
    let (script, _) = script.split_once("```").unwrap();
    assert_eq!(Scripts::parse(script).unwrap().first().unwrap().steps.len(), 7);
}
