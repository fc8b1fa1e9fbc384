use super::*;
use crate::known_agents::Platform;
use std::os::unix::fs::symlink;

/// An empty machine in a temporary directory.
struct TestMachine {
    _base: tempfile::TempDir,
    base: PathBuf,
    locations: AgentLocations,
}

impl TestMachine {
    fn new() -> Self {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().canonicalize().unwrap();
        let locations =
            AgentLocations { data_dir: path.join("data"), path: vec![path.join("bin")], ..AgentLocations::default() };
        Self { _base: base, base: path, locations }
    }

    fn write_file(&self, path: &str, text: &str) -> PathBuf {
        let path = self.base.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn create_symlink(&self, at: &str, to: &Path) {
        let path = self.base.join(at);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(to, path).unwrap();
    }

    fn package_of(agent: Agent) -> Package {
        agent.package_for(Platform::current().unwrap()).unwrap()
    }

    /// Lays out files as npm does: the agent's package with a script, and the platform package beside it.
    fn install_with_npm(&self, agent: Agent, root: &str) -> PathBuf {
        let package = Self::package_of(agent);
        let modules = format!("{root}/lib/node_modules");
        let script = self.write_file(&format!("{modules}/{agent}-of-npm/cli.js"), "#!/usr/bin/env node\n");
        self.create_symlink(&format!("bin/{agent}"), &script);
        let version = format!("{{\"version\": \"{}{}\"}}", package.version, package.suffix);
        self.write_file(&format!("{modules}/{}/package.json", package.module), &version);
        self.write_file(&format!("{modules}/{}/{}", package.module, package.program), "\x7fELF")
    }
}

#[test]
fn resolves_an_npm_script_to_its_program() {
    for agent in [Agent::Claude, Agent::Codex, Agent::Opencode] {
        let ground = TestMachine::new();
        let program = ground.install_with_npm(agent, "home/.npm-global");
        let found = ground.locations.find_agent(agent).unwrap();
        assert_eq!((&found.program, found.origin), (&program, Origin::Path), "{agent}");
        let version = found.detect_version().unwrap();
        assert!(agent.is_tested(&version), "{agent} {version}");
        let mounts = found.list_mounts().unwrap();
        let inside = relative_program_path(agent.as_str());
        match TestMachine::package_of(agent).extent {
            MountExtent::File => assert_eq!(mounts, [ReadOnlyMount { host_path: program, relative_path: inside }]),
            MountExtent::ParentDir => {
                // The whole package is mounted under the agent's name.
                let above = program.parent().unwrap().parent().unwrap().to_path_buf();
                assert_eq!(mounts, [ReadOnlyMount { host_path: above, relative_path: agent.to_string() }]);
                assert!(program.ends_with(inside.strip_prefix(&format!("{agent}/")).unwrap()));
            }
            MountExtent::Node => unreachable!(),
        }
    }
}

#[test]
fn reports_a_broken_npm_script_and_continues_the_search() {
    let mut ground = TestMachine::new();
    let script = ground.write_file("lib/node_modules/@anthropic-ai/claude-code/cli.js", "#!/usr/bin/env node\n");
    ground.create_symlink("bin/claude", &script);
    let missing = ground.locations.find_agent(Agent::Claude).unwrap_err();
    assert!(missing.problem.contains("an npm script"), "{missing}");
    assert!(missing.remedy.contains("`atoll agents install claude`"), "{missing}");
    let whole = ground.write_file("elsewhere/claude", "\x7fELF");
    ground.locations.path.push(ground.base.join("elsewhere"));
    assert_eq!(ground.locations.find_agent(Agent::Claude).unwrap().program, whole);
}

#[test]
fn prefers_the_configured_then_the_installed_then_path() {
    let mut ground = TestMachine::new();
    let package = TestMachine::package_of(Agent::Claude);
    let missing = ground.locations.find_agent(Agent::Claude).unwrap_err();
    assert_eq!(
        missing.to_string(),
        "Claude Code is not installed on this machine: install it with `atoll agents install claude`"
    );
    let in_path = ground.write_file("bin/claude", "\x7fELF");
    assert_eq!(ground.locations.find_agent(Agent::Claude).unwrap().program, in_path);

    let install = |version: &str| ground.write_file(&format!("data/agents/claude/{version}/package/claude"), "x");
    let old = install("1.9.0");
    assert_eq!(ground.locations.find_agent(Agent::Claude).unwrap().program, old);
    let newer = install("1.10.0");
    ground.write_file("data/agents/claude/.new-1/package/claude", "half");
    ground.write_file("data/agents/claude/9.9.9/package/README", "no program");
    let found = ground.locations.find_agent(Agent::Claude).unwrap();
    assert_eq!((found.program, found.version.as_deref()), (newer, Some("1.10.0")));
    let tested = install(package.version);
    ground.write_file("data/agents/claude/99.0.0/package/claude", "x");
    assert_eq!(
        ground.locations.find_agent(Agent::Claude).unwrap().program,
        tested,
        "the tested version precedes newer ones"
    );

    let named = ground.write_file("opt/own", "#!/bin/sh\n");
    ground.create_symlink("opt/link", &named);
    ground.locations.configured.insert(Agent::Claude, ground.base.join("opt/link"));
    let found = ground.locations.find_agent(Agent::Claude).unwrap();
    assert_eq!((found.program, found.origin), (named, Origin::Configured));
    ground.locations.configured.insert(Agent::Claude, ground.base.join("opt/none"));
    let missing = ground.locations.find_agent(Agent::Claude).unwrap_err();
    assert!(missing.problem.contains("agents.claude.path names"), "what is named is not replaced silently: {missing}");
}

#[test]
fn a_node_agent_needs_node_and_its_whole_package() {
    let ground = TestMachine::new();
    let program = ground.install_with_npm(Agent::Gemini, "usr");
    let missing = ground.locations.find_agent(Agent::Gemini).unwrap_err();
    assert!(missing.problem.contains("node, which it needs"), "{missing}");
    let node = ground.write_file("bin/node", "\x7fELF");
    let found = ground.locations.find_agent(Agent::Gemini).unwrap();
    assert_eq!(found.node_path(), Some(node.as_path()));
    let mounts = found.list_mounts().unwrap();
    let places: Vec<&str> = mounts.iter().map(|one| one.relative_path.as_str()).collect();
    assert_eq!(places, ["gemini/bin/gemini", "gemini/bin/node", "gemini/package"]);
    assert_eq!(
        (&mounts[1].host_path, &mounts[2].host_path),
        (&node, &program.parent().unwrap().parent().unwrap().to_path_buf())
    );
    assert_eq!(fs::read_to_string(&mounts[0].host_path).unwrap(), NODE_SCRIPT);
    assert!(is_executable(&mounts[0].host_path));
}

#[test]
fn reports_a_program_that_only_its_owner_may_execute() {
    let ground = TestMachine::new();
    let program = ground.write_file("bin/claude", "\x7fELF");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    let missing = ground.locations.find_agent(Agent::Claude).unwrap().list_mounts().unwrap_err();
    assert!(missing.remedy.contains("chmod o+rx"), "{missing}");
}

#[test]
fn finds_a_program_named_only_in_the_configuration() {
    let mut ground = TestMachine::new();
    ground.write_file("bin/acp", "\x7fELF");
    let missing = ground.locations.find_agent(Agent::Acp).unwrap_err();
    assert!(missing.remedy.contains("agents.acp.path"), "{missing}");
    let named = ground.write_file("opt/goose", "\x7fELF");
    ground.locations.configured.insert(Agent::Acp, named.clone());
    let mounts = ground.locations.find_agent(Agent::Acp).unwrap().list_mounts().unwrap();
    assert_eq!(mounts, [ReadOnlyMount { host_path: named, relative_path: "acp/bin/acp".into() }]);
}
