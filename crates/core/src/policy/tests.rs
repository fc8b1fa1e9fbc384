use super::*;
use proptest::prelude::*;
use serde_json::json;

const WORKSPACE: &str = "/workspace";

fn policy(rules: Value) -> ToolPolicy {
    let policy = ToolPolicy { rules: serde_json::from_value(rules).unwrap(), fail_closed: false };
    policy.check_bounds("policy").unwrap();
    policy
}

fn closed(rules: Value) -> ToolPolicy {
    ToolPolicy { fail_closed: true, ..policy(rules) }
}

fn bash(policy: &ToolPolicy, command: &str) -> PolicyVerdict {
    policy.decide_call("Bash", &json!({"command": command}), WORKSPACE, &[]).verdict
}

fn denied(verdict: &PolicyVerdict) -> bool {
    matches!(verdict, PolicyVerdict::Deny { .. })
}

#[test]
fn commands_match_by_their_first_words_anywhere_in_a_line() {
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
            matches!(&verdict, PolicyVerdict::Deny { rule, reason } if rule == "rules[0]" && reason == "pushing is not yours to do"),
            "{command}: {verdict:?}"
        );
    }
    for command in ["git pull", "echo git push", "git status # git push", "grep 'git push' README.md", "gitpush", ""] {
        assert_eq!(bash(&policy, command), PolicyVerdict::NoMatchingRule, "{command}");
    }
    assert_eq!(bash(&policy, "rm -rf build"), PolicyVerdict::Ask { rule: "rules[1]".into() });
}

#[test]
fn a_command_given_as_words_matches() {
    let policy = policy(json!([{"commands": ["git push"], "then": "deny"}]));
    let words = json!({"command": ["bash", "-lc", "git push"]});
    assert!(denied(&policy.decide_call("shell", &words, WORKSPACE, &[]).verdict));
}

#[test]
fn paths_are_normalised_to_the_workspace() {
    let policy = policy(json!([{"paths": ["migrations/**/*.sql", "/etc", "docs/*.md"], "then": "deny"}]));
    let of = |tool: &str, path: &str| policy.decide_call(tool, &json!({"file_path": path}), WORKSPACE, &[]).verdict;
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
        assert_eq!(of("Write", path), PolicyVerdict::NoMatchingRule, "{path}");
    }
    assert!(denied(&bash(&policy, "cat /etc/shadow")));
    assert!(denied(&bash(&policy, "cd migrations && cat 1.sql")));
}

#[test]
fn protected_paths_are_read_only() {
    let protected = ["Cargo.lock".to_owned(), "infra/prod".to_owned()];
    let policy = ToolPolicy::default();
    let of = |tool: &str, input: Value| policy.decide_call(tool, &input, WORKSPACE, &protected).verdict;
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
        assert_eq!(run(command), PolicyVerdict::NoMatchingRule, "{command}");
    }
    assert_eq!(of("Read", json!({"file_path": "Cargo.lock"})), PolicyVerdict::NoMatchingRule);
    for (tool, input) in [
        ("Edit", json!({"file_path": "/workspace/Cargo.lock"})),
        ("write_file", json!({"absolute_path": "/workspace/infra/prod/a"})),
        ("apply_patch", json!({"input": "*** Begin Patch\n*** Update File: Cargo.lock\n"})),
        ("apply_patch", json!({"changes": [{"path": "infra/prod/x", "kind": "add"}]})),
        ("apply_patch", json!({"changes": {"/workspace/Cargo.lock": {}}})),
    ] {
        let verdict = of(tool, input.clone());
        assert!(
            matches!(&verdict, PolicyVerdict::Deny { rule, .. } if rule == PROTECTED_PATHS_RULE),
            "{tool} {input}: {verdict:?}"
        );
    }
    // A rule cannot allow changes of protected paths.
    let lax = self::policy(json!([{"tools": ["*"], "then": "allow"}]));
    assert!(denied(&lax.decide_call("Edit", &json!({"file_path": "Cargo.lock"}), WORKSPACE, &protected).verdict));
}

#[test]
fn hosts_come_from_urls_and_network_programs() {
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
        assert_eq!(bash(&policy, command), PolicyVerdict::NoMatchingRule, "{command}");
    }
    let fetch = json!({"url": "https://evil.com./", "prompt": "read it"});
    assert!(denied(&policy.decide_call("WebFetch", &fetch, WORKSPACE, &[]).verdict));
}

#[test]
fn fail_closed_decides_about_unclear_calls() {
    let rules = json!([{"commands": ["git push"], "then": "deny"}]);
    for command in ["$CMD origin", "eval \"$X\"", "git pu\"", "echo ${X}", "source x.sh"] {
        assert_eq!(bash(&policy(rules.clone()), command), PolicyVerdict::NoMatchingRule, "{command}");
        let verdict = bash(&closed(rules.clone()), command);
        assert!(
            matches!(&verdict, PolicyVerdict::Deny { reason, .. } if reason.contains("cannot judge")),
            "{command}: {verdict:?}"
        );
    }
    assert_eq!(bash(&closed(rules.clone()), "git pull"), PolicyVerdict::NoMatchingRule);
    let closed = closed(rules);
    let unknown = json!({"target": "Cargo.lock"});
    let protected = ["Cargo.lock".to_owned()];
    assert!(denied(&closed.decide_call("mcp__x__save", &unknown, WORKSPACE, &protected).verdict));
    assert_eq!(
        ToolPolicy::default().decide_call("mcp__x__save", &unknown, WORKSPACE, &protected).verdict,
        PolicyVerdict::NoMatchingRule
    );
}

#[test]
fn the_first_match_decides_and_changes_continue() {
    let policy = policy(json!([
        {"tools": ["Bash"], "then": "change", "set": {"timeout": 1000}},
        {"tools": ["bash"], "commands": ["make *"], "then": "allow"},
        {"tools": ["Bash", "mcp__*"], "then": "ask"},
    ]));
    let decision = policy.decide_call("Bash", &json!({"command": "make test", "timeout": 9}), WORKSPACE, &[]);
    assert_eq!(decision.verdict, PolicyVerdict::Allow);
    assert_eq!(decision.input, Some(json!({"command": "make test", "timeout": 1000})));
    assert_eq!(bash(&policy, "ls"), PolicyVerdict::Ask { rule: "rules[2]".into() });
    assert_eq!(
        policy.decide_call("mcp__db__drop", &json!({}), WORKSPACE, &[]).verdict,
        PolicyVerdict::Ask { rule: "rules[2]".into() }
    );
    let read = policy.decide_call("Read", &json!({"file_path": "a"}), WORKSPACE, &[]);
    assert_eq!(read, PolicyDecision { verdict: PolicyVerdict::NoMatchingRule, input: None });
}

#[test]
fn rejects_rules_without_effect() {
    for (rules, why) in [
        (json!([{"then": "deny"}]), "matches nothing"),
        (json!([{"tools": ["Bash"], "then": "change"}]), "needs `set`"),
        (json!([{"tools": ["Bash"], "then": "deny", "set": {"a": 1}}]), "is for `then: change`"),
        (json!([{"paths": ["../x"], "then": "deny"}]), "must be plain"),
        (json!([{"tools": [" "], "then": "deny"}]), "must not be blank"),
    ] {
        let policy = ToolPolicy { rules: serde_json::from_value(rules).unwrap(), fail_closed: false };
        let error = policy.check_bounds("policy").unwrap_err().to_string();
        assert!(error.starts_with("policy.rules[0]") && error.contains(why), "{error}");
    }
}

proptest! {
    /// Any text is judged without a panic, and surrounding text never hides a plain command.
    #[test]
    fn any_text_is_judged_without_a_panic(text in "\\PC{0,200}") {
        let policy = policy(json!([{"commands": ["git push"], "hosts": [], "then": "deny"}]));
        drop(bash(&policy, &text));
        drop(policy.decide_call(&text, &json!({"file_path": text, "url": text}), WORKSPACE, &["a".to_owned()]));
    }

    #[test]
    fn a_prefix_does_not_hide_a_command(before in "[a-z0-9 ./=-]{0,30}", joint in prop::sample::select(vec![";", "&&", "||", "|", "\n", "&"])) {
        let policy = policy(json!([{"commands": ["git push"], "then": "deny"}]));
        let line = format!("{before}{joint} git push");
        prop_assert!(denied(&bash(&policy, &line)), "{}", line);
    }

    #[test]
    fn stars_match_anything(text in "[ab*]{0,20}", pattern in "[ab*]{0,8}") {
        let by_hand = by_parts(&pattern, &text);
        prop_assert_eq!(glob::matches_text(&pattern, &text), by_hand);
    }
}

/// Reference implementation by exhaustive search.
fn by_parts(pattern: &str, text: &str) -> bool {
    match pattern.chars().next() {
        None => text.is_empty(),
        Some('*') => (0..=text.len()).any(|at| by_parts(&pattern[1..], &text[at..])),
        Some(first) => text.starts_with(first) && by_parts(&pattern[1..], &text[1..]),
    }
}
