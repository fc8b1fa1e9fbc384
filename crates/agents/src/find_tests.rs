use super::*;
use crate::known::Machine;
use std::os::unix::fs::symlink;

/// A machine with nothing on it but what is put there.
struct Ground {
    _base: tempfile::TempDir,
    base: PathBuf,
    places: Places,
}

impl Ground {
    fn new() -> Self {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().canonicalize().unwrap();
        let places = Places { data_dir: path.join("data"), path: vec![path.join("bin")], ..Places::default() };
        Self { _base: base, base: path, places }
    }

    fn put(&self, path: &str, text: &str) -> PathBuf {
        let path = self.base.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn link(&self, at: &str, to: &Path) {
        let path = self.base.join(at);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(to, path).unwrap();
    }

    fn package(agent: Agent) -> Package {
        agent.package(Machine::here().unwrap()).unwrap()
    }

    /// As npm has it: the agent's own package with a script, and the one for this kind of machine beside it.
    fn npm(&self, agent: Agent, root: &str) -> PathBuf {
        let package = Self::package(agent);
        let modules = format!("{root}/lib/node_modules");
        let script = self.put(&format!("{modules}/{agent}-of-npm/cli.js"), "#!/usr/bin/env node\n");
        self.link(&format!("bin/{agent}"), &script);
        let version = format!("{{\"version\": \"{}{}\"}}", package.version, package.suffix);
        self.put(&format!("{modules}/{}/package.json", package.module), &version);
        self.put(&format!("{modules}/{}/{}", package.module, package.program), "\x7fELF")
    }
}

#[test]
fn a_script_of_npm_leads_to_the_program_itself() {
    for agent in [Agent::Claude, Agent::Codex, Agent::Opencode] {
        let ground = Ground::new();
        let program = ground.npm(agent, "home/.npm-global");
        let found = ground.places.find(agent).unwrap();
        assert_eq!((&found.program, found.origin), (&program, Origin::Path), "{agent}");
        let version = found.version().unwrap();
        assert!(agent.is_tested(&version), "{agent} {version}");
        let shown = found.shown().unwrap();
        let inside = below_place(agent.as_str());
        match Ground::package(agent).extent {
            Extent::File => assert_eq!(shown, [Shown { from: program, at: inside }]),
            Extent::Above => {
                // All that it brings along, at the same place under its own name.
                let above = program.parent().unwrap().parent().unwrap().to_path_buf();
                assert_eq!(shown, [Shown { from: above, at: agent.to_string() }]);
                assert!(program.ends_with(inside.strip_prefix(&format!("{agent}/")).unwrap()));
            }
            Extent::Node => unreachable!(),
        }
    }
}

#[test]
fn a_script_whose_program_is_not_there_is_said_and_hides_nothing() {
    let mut ground = Ground::new();
    let script = ground.put("lib/node_modules/@anthropic-ai/claude-code/cli.js", "#!/usr/bin/env node\n");
    ground.link("bin/claude", &script);
    let missing = ground.places.find(Agent::Claude).unwrap_err();
    assert!(missing.what.contains("a script of npm's"), "{missing}");
    assert!(missing.remedy.contains("`atoll agents install claude`"), "{missing}");
    let whole = ground.put("elsewhere/claude", "\x7fELF");
    ground.places.path.push(ground.base.join("elsewhere"));
    assert_eq!(ground.places.find(Agent::Claude).unwrap().program, whole);
}

#[test]
fn what_is_named_goes_first_then_what_is_installed_then_path() {
    let mut ground = Ground::new();
    let package = Ground::package(Agent::Claude);
    let missing = ground.places.find(Agent::Claude).unwrap_err();
    assert_eq!(
        missing.to_string(),
        "Claude Code is not on this machine: install it with `atoll agents install claude`"
    );
    let in_path = ground.put("bin/claude", "\x7fELF");
    assert_eq!(ground.places.find(Agent::Claude).unwrap().program, in_path);

    let install = |version: &str| ground.put(&format!("data/agents/claude/{version}/package/claude"), "x");
    let old = install("1.9.0");
    assert_eq!(ground.places.find(Agent::Claude).unwrap().program, old);
    let newer = install("1.10.0");
    ground.put("data/agents/claude/.new-1/package/claude", "half");
    ground.put("data/agents/claude/9.9.9/package/README", "no program");
    let found = ground.places.find(Agent::Claude).unwrap();
    assert_eq!((found.program, found.version.as_deref()), (newer, Some("1.10.0")));
    let tested = install(package.version);
    ground.put("data/agents/claude/99.0.0/package/claude", "x");
    assert_eq!(
        ground.places.find(Agent::Claude).unwrap().program,
        tested,
        "the one that was tried goes before newer ones"
    );

    let named = ground.put("opt/own", "#!/bin/sh\n");
    ground.link("opt/link", &named);
    ground.places.configured.insert(Agent::Claude, ground.base.join("opt/link"));
    let found = ground.places.find(Agent::Claude).unwrap();
    assert_eq!((found.program, found.origin), (named, Origin::Configured));
    ground.places.configured.insert(Agent::Claude, ground.base.join("opt/none"));
    let missing = ground.places.find(Agent::Claude).unwrap_err();
    assert!(missing.what.contains("agents.claude.path names"), "what is named is not replaced silently: {missing}");
}

#[test]
fn an_agent_for_node_needs_node_and_all_of_its_package() {
    let ground = Ground::new();
    let program = ground.npm(Agent::Gemini, "usr");
    let missing = ground.places.find(Agent::Gemini).unwrap_err();
    assert!(missing.what.contains("not node"), "{missing}");
    let node = ground.put("bin/node", "\x7fELF");
    let found = ground.places.find(Agent::Gemini).unwrap();
    assert_eq!(found.node(), Some(node.as_path()));
    let shown = found.shown().unwrap();
    let places: Vec<&str> = shown.iter().map(|one| one.at.as_str()).collect();
    assert_eq!(places, ["gemini/bin/gemini", "gemini/bin/node", "gemini/package"]);
    assert_eq!((&shown[1].from, &shown[2].from), (&node, &program.parent().unwrap().parent().unwrap().to_path_buf()));
    assert_eq!(fs::read_to_string(&shown[0].from).unwrap(), NODE_SCRIPT);
    assert!(is_executable(&shown[0].from));
}

#[test]
fn what_others_may_not_run_is_said() {
    let ground = Ground::new();
    let program = ground.put("bin/claude", "\x7fELF");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    let missing = ground.places.find(Agent::Claude).unwrap().shown().unwrap_err();
    assert!(missing.remedy.contains("chmod o+rx"), "{missing}");
}

#[test]
fn a_program_that_only_the_configuration_knows() {
    let mut ground = Ground::new();
    ground.put("bin/acp", "\x7fELF");
    let missing = ground.places.find(Agent::Acp).unwrap_err();
    assert!(missing.remedy.contains("agents.acp.path"), "{missing}");
    let named = ground.put("opt/goose", "\x7fELF");
    ground.places.configured.insert(Agent::Acp, named.clone());
    let shown = ground.places.find(Agent::Acp).unwrap().shown().unwrap();
    assert_eq!(shown, [Shown { from: named, at: "acp/bin/acp".into() }]);
}
