use super::*;
use serde_json::json;

const EVERYTHING: &str = r#"
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
fn every_step_is_read() {
    let scripts = Scripts::parse(EVERYTHING).unwrap();
    assert_eq!(scripts.names().collect::<Vec<_>>(), ["main", "other"]);
    let main = scripts.first().unwrap();
    assert_eq!(main.cwd.as_deref(), Some("/srv/work"));
    assert_eq!(main.steps.len(), 18);
    assert_eq!(main.steps[3], Step::Expect(Expect { text: "a.txt".into(), new: true }));
    let Step::Fail(fail) = &main.steps[5] else { panic!() };
    assert_eq!((fail.status, fail.retry_after, fail.times), (429, Some(2), Times::Count(3)));
    assert_eq!(main.steps[13], Step::Cut(Cut { after: 4, times: Times::Always }));
    let Step::Use(used) = &main.steps[9] else { panic!() };
    assert_eq!(used.input, json!({"pattern": "*"}));
}

#[test]
fn a_list_is_one_script() {
    let scripts = Scripts::parse("- say: hello\n- end\n").unwrap();
    assert_eq!(scripts.first().unwrap().steps, [Step::Say("hello".into()), Step::End]);
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    let refused = |text: &str| Scripts::parse(text).unwrap_err().to_string();
    assert!(refused("").contains("no script in it"));
    assert!(refused("- say: [").contains("not YAML"));
    assert!(refused("- shout: hello").contains("step 1: unknown variant `shout`"), "{}", refused("- shout: hello"));
    assert!(refused("- end\n- fail: 200").contains("step 2: 200 is not"));
    assert!(refused("- delay: -1").contains("no number of seconds"));
    assert!(refused("- parallel: [{say: x}]").contains("takes only"));
    assert!(refused("- parallel: []").contains("at least one"));
    assert!(refused("scripts: [{name: a, steps: []}, {name: a, steps: []}]").contains("two scripts"));
    assert!(refused("scripts: [{name: a b, steps: []}]").contains("no name"));
    assert!(refused("scripts: [{name: a, steps: [], then: 1}]").contains("no `then`"));
    assert!(refused("- write: {file: a}").contains("missing field `content`"));
}

#[test]
fn the_script_in_the_documentation_is_one() {
    let page = include_str!("../../../docs/model-script.md");
    let (_, script) = page.split_once("```yaml\n").unwrap();
    let (script, _) = script.split_once("```").unwrap();
    assert_eq!(Scripts::parse(script).unwrap().first().unwrap().steps.len(), 7);
}
