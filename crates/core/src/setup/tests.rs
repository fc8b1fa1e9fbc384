//! Tests of planning: each ecosystem, the order of the sources, hostile input.

use super::*;
use proptest::prelude::*;

fn files(pairs: &[(&str, &str)]) -> RepositoryFiles {
    pairs.iter().copied().collect()
}

fn detect(pairs: &[(&str, &str)]) -> SetupPlan {
    plan_setup(None, None, &files(pairs)).unwrap().unwrap()
}

/// The steps of a plan as `directory: command (reason)`.
fn shown(plan: &SetupPlan) -> Vec<String> {
    plan.steps.iter().map(|step| format!("{}: {} ({})", step.directory, step.command, step.reason)).collect()
}

#[test]
fn each_package_manager_has_a_frozen_command() {
    let package = r#"{"dependencies": {"a": "1"}}"#;
    for (pairs, expected, tools) in [
        (
            vec![("package.json", package), ("package-lock.json", "{}")],
            ".: npm ci (package-lock.json)",
            vec!["node", "npm"],
        ),
        (
            vec![("package.json", package), ("npm-shrinkwrap.json", "{}")],
            ".: npm ci (npm-shrinkwrap.json)",
            vec!["node", "npm"],
        ),
        (
            vec![("package.json", package), ("pnpm-lock.yaml", "")],
            ".: pnpm install --frozen-lockfile (pnpm-lock.yaml)",
            vec!["node", "pnpm"],
        ),
        (
            vec![("package.json", package), ("yarn.lock", "# yarn lockfile v1")],
            ".: yarn install --frozen-lockfile (yarn.lock)",
            vec!["node", "yarn"],
        ),
        (
            vec![("package.json", package), ("yarn.lock", "__metadata:\n  version: 8")],
            ".: yarn install --immutable (yarn.lock)",
            vec!["node", "yarn"],
        ),
        (
            vec![("package.json", package), ("yarn.lock", ""), (".yarnrc.yml", "")],
            ".: yarn install --immutable (yarn.lock)",
            vec!["node", "yarn"],
        ),
        (
            vec![("package.json", package), ("bun.lockb", "")],
            ".: bun install --frozen-lockfile (bun.lockb)",
            vec!["bun"],
        ),
        (vec![("pyproject.toml", ""), ("uv.lock", "")], ".: uv sync --frozen (uv.lock)", vec!["python3", "uv"]),
        (vec![("poetry.lock", "")], ".: poetry install (poetry.lock)", vec!["poetry", "python3"]),
        (vec![("Pipfile.lock", "")], ".: pipenv sync --dev (Pipfile.lock)", vec!["pipenv", "python3"]),
        (vec![("Cargo.toml", ""), ("Cargo.lock", "")], ".: cargo fetch --locked (Cargo.lock)", vec!["cargo", "rustc"]),
        (vec![("go.mod", ""), ("go.sum", "")], ".: go mod download (go.sum)", vec!["go"]),
        (vec![("Gemfile", ""), ("Gemfile.lock", "")], ".: bundle install (Gemfile.lock)", vec!["bundle", "ruby"]),
        (
            vec![("composer.json", ""), ("composer.lock", "")],
            ".: composer install -n (composer.lock)",
            vec!["composer", "php"],
        ),
        (vec![("pom.xml", "")], ".: mvn -B -DskipTests verify (pom.xml)", vec!["java", "mvn"]),
        (vec![("pom.xml", ""), ("mvnw", "")], ".: sh ./mvnw -B -DskipTests verify (pom.xml)", vec!["java"]),
        (
            vec![("build.gradle.kts", "")],
            ".: gradle --no-daemon testClasses (build.gradle.kts)",
            vec!["gradle", "java"],
        ),
        (
            vec![("settings.gradle", ""), ("gradlew", "")],
            ".: sh ./gradlew --no-daemon testClasses (settings.gradle)",
            vec!["java"],
        ),
    ] {
        let plan = detect(&pairs);
        assert_eq!((shown(&plan), plan.tools()), (vec![expected.to_owned()], tools), "{pairs:?}");
        assert!(plan.locked && plan.notes.is_empty(), "{pairs:?}: {:?}", plan.notes);
        let mut paths: Vec<_> = pairs.iter().map(|(path, _)| *path).collect();
        paths.sort_unstable();
        assert_eq!(
            (plan.source, plan.key_files),
            (SetupSource::Detected, paths.iter().map(|it| (*it).to_owned()).collect())
        );
    }
}

#[test]
fn requirements_are_installed_into_a_virtual_environment() {
    let plan = detect(&[
        ("requirements.txt", "# pinned\nflask==3.0 \\\n    --hash=sha256:00\n-r other.txt\n"),
        ("requirements-dev.txt", "pytest == 8.0\n"),
        ("requirements-docs.txt", "sphinx\n"),
    ]);
    assert_eq!(
        shown(&plan),
        [
            ".: python3 -m venv .venv (requirements.txt)",
            ".: .venv/bin/pip install -r requirements.txt -r requirements-dev.txt (requirements.txt, requirements-dev.txt)",
        ]
    );
    assert!(plan.locked);
    assert_eq!(plan.notes, ["Set-up does not install requirements-docs.txt: requirements.txt is the default."]);
    let plan = detect(&[("requirements.txt", "flask>=3\n")]);
    assert!(!plan.locked && plan.notes[0].contains("does not pin"), "{:?}", plan.notes);
}

#[test]
fn package_manager_in_package_json_wins_over_lock_files() {
    for (field, expected) in [
        ("pnpm@9.1.0+sha512.abc", "pnpm install --frozen-lockfile"),
        ("yarn@1.22.22", "yarn install --frozen-lockfile"),
        ("yarn@4.5.0", "yarn install --immutable"),
        ("bun@1.2", "bun install --frozen-lockfile"),
        ("npm@10", "npm ci"),
        ("unknown@1", "pnpm install --frozen-lockfile"),
        ("pnpm@9; touch /tmp/x", "pnpm install --frozen-lockfile"),
    ] {
        let package = format!(r#"{{"packageManager": "{field}"}}"#);
        let locks = ["package-lock.json", "pnpm-lock.yaml", "yarn.lock", "bun.lock"].map(|lock| (lock, ""));
        let plan = detect(&[[("package.json", &*package)].as_slice(), &locks].concat());
        assert_eq!(plan.steps.iter().map(|step| step.command.to_string()).collect::<Vec<_>>(), [expected], "{field}");
    }
}

#[test]
fn a_project_without_a_lock_file_says_so() {
    let dependencies = r#"{"devDependencies": {"vitest": "^3"}}"#;
    for (pairs, command, note) in [
        (vec![("package.json", dependencies)], Some("npm install --no-package-lock"), "has no lock file of npm"),
        (vec![("Cargo.toml", "")], Some("cargo fetch"), "has no Cargo.lock"),
        (vec![("pyproject.toml", "[project]\nname = \"x\"")], None, "has no uv.lock, poetry.lock"),
        (vec![("Gemfile", "")], None, "has no Gemfile.lock"),
        (vec![("composer.json", "")], None, "has no composer.lock"),
        (
            vec![("package.json", dependencies), (".npmrc", ""), ("web/package.json", dependencies)],
            Some("npm install --no-package-lock"),
            "has no lock file",
        ),
    ] {
        let plan = detect(&pairs);
        let commands: Vec<_> = plan.steps.iter().map(|step| step.command.to_string()).collect();
        assert_eq!(commands, command.into_iter().collect::<Vec<_>>(), "{pairs:?}");
        assert!(plan.notes[0].contains(note) && plan.notes.len() == 1, "{:?}", plan.notes);
        assert_eq!(plan.locked, command.is_none(), "{pairs:?}");
    }
    for pairs in [vec![("package.json", "{}")], vec![("pyproject.toml", "[tool.ruff]")], vec![("go.mod", "")], vec![]] {
        assert_eq!(plan_setup(None, None, &files(&pairs)).unwrap(), None, "{pairs:?}");
    }
}

#[test]
fn a_monorepo_has_one_step_per_lock_file() {
    let plan = detect(&[
        ("Cargo.lock", ""),
        ("Cargo.toml", ""),
        ("crates/a/Cargo.toml", ""),
        ("fuzz/Cargo.lock", ""),
        ("fuzz/Cargo.toml", ""),
        ("(web)/package.json", "{}"),
        ("(web)/package-lock.json", ""),
        ("(web)/packages/b/package.json", r#"{"dependencies": {"c": "1"}}"#),
        ("tools/lint/package.json", r#"{"dependencies": {"c": "1"}}"#),
        ("a/b/c/uv.lock", ""),
        (".hidden/uv.lock", ""),
        ("node_modules/x/package-lock.json", ""),
    ]);
    assert_eq!(
        shown(&plan),
        [
            ".: cargo fetch --locked (Cargo.lock)",
            "(web): npm ci ((web)/package-lock.json)",
            "fuzz: cargo fetch --locked (fuzz/Cargo.lock)",
        ]
    );
    assert_eq!(plan.notes, ["tools/lint has a project without a lock file, which set-up does not install."]);
    assert!(
        plan.key_files.contains(&"crates/a/Cargo.toml".to_owned())
            && !plan.key_files.contains(&"a/b/c/uv.lock".to_owned())
    );
}

#[test]
fn detection_is_bounded() {
    let many: RepositoryFiles =
        (0..3000).flat_map(|n| [(format!("p{n}/go.mod"), ""), (format!("p{n}/go.sum"), "")]).collect();
    assert_eq!(many.paths().count(), MAX_SETUP_FILES);
    let plan = plan_setup(None, None, &many).unwrap().unwrap();
    assert_eq!((plan.steps.len(), plan.notes.len()), (8, 1));
    assert!(plan.notes[0].contains("more projects"), "{:?}", plan.notes);
    let mut large = RepositoryFiles::default();
    large.insert("package.json".to_owned(), Some(vec![b' '; 17 << 20]));
    assert!(large.contains("package.json") && large.content("package.json").is_none());
    large.insert("src/main.rs".to_owned(), Some(Vec::new()));
    assert!(!large.contains("src/main.rs"));
}

#[test]
fn the_first_source_wins() {
    let request = SetupRequest { commands: Some(vec!["make deps".to_owned()]), ..SetupRequest::default() };
    let project = SetupRequest { commands: Some(vec!["./bootstrap".to_owned()]), ..SetupRequest::default() };
    let all = files(&[
        (".atoll/setup", "#!/usr/bin/env bash\nnpm ci\n"),
        (".devcontainer/devcontainer.json", r#"{"postCreateCommand": "npm ci"}"#),
        ("package.json", "{}"),
        ("package-lock.json", ""),
    ]);
    let source = |request: Option<&SetupRequest>, project: Option<&SetupRequest>, files: &RepositoryFiles| {
        let plan = plan_setup(request, project, files).unwrap().unwrap();
        assert_eq!(plan.steps.len(), 1);
        (plan.source, plan.steps[0].command.to_string())
    };
    assert_eq!(source(Some(&request), Some(&project), &all), (SetupSource::Request, "make deps".to_owned()));
    assert_eq!(source(None, Some(&project), &all), (SetupSource::Project, "./bootstrap".to_owned()));
    let only_network = SetupRequest { timeout_s: Some(5), ..SetupRequest::default() };
    assert_eq!(source(Some(&only_network), Some(&project), &all).0, SetupSource::Project);
    assert_eq!(source(None, None, &all), (SetupSource::Repository, "/usr/bin/env bash .atoll/setup".to_owned()));
    let without = |path: &str| all.paths().filter(|it| *it != path).map(|it| (it, all.content(it).unwrap())).collect();
    let without_script: RepositoryFiles = without(".atoll/setup");
    assert_eq!(source(None, None, &without_script).0, SetupSource::Devcontainer);
    let off = SetupRequest::disabled();
    assert_eq!(plan_setup(Some(&off), Some(&project), &all), Ok(None));
    assert_eq!(plan_setup(None, Some(&off), &all), Ok(None));
    let on = SetupRequest { enabled: Some(true), ..SetupRequest::default() };
    assert!(plan_setup(Some(&on), Some(&off), &all).unwrap().is_some());
    let none = SetupRequest { commands: Some(Vec::new()), ..SetupRequest::default() };
    assert_eq!(plan_setup(Some(&none), None, &all), Ok(None));
    let blank = SetupRequest { commands: Some(vec![" ".to_owned()]), ..SetupRequest::default() };
    assert!(matches!(plan_setup(Some(&blank), None, &all), Err(SetupError::OutOfBounds(_))));
}

#[test]
fn a_script_runs_by_its_interpreter() {
    for (text, argv, tool) in [
        ("echo hi\n", vec!["/bin/sh"], "sh"),
        ("", vec!["/bin/sh"], "sh"),
        ("#!/bin/bash -e\nx", vec!["/bin/bash", "-e"], "bash"),
        ("#! /usr/bin/env -S python3 -u\nx", vec!["/usr/bin/env", "-S python3 -u"], "python3"),
        ("#!/usr/bin/env node", vec!["/usr/bin/env", "node"], "node"),
        ("#!relative\n", vec!["/bin/sh"], "sh"),
        ("#!\n", vec!["/bin/sh"], "sh"),
    ] {
        let plan = detect(&[(".atoll/setup", text), ("uv.lock", "")]);
        let step = &plan.steps[0];
        let expected: Vec<String> = argv.into_iter().chain([".atoll/setup"]).map(str::to_owned).collect();
        assert_eq!(
            (&step.command, step.tools.as_slice()),
            (&SetupCommand::Argv(expected), [tool.to_owned()].as_slice())
        );
        assert_eq!((plan.key_files, plan.locked), (vec![".atoll/setup".to_owned(), "uv.lock".to_owned()], true));
    }
}

#[test]
fn reads_devcontainer_json() {
    let text = r#"{
        // The image is not used.
        "image": "mcr.example/typescript", "features": {}, "initializeCommand": "rm -rf ~",
        "onCreateCommand": ["npm", "ci", "$(id)"],
        "updateContentCommand": "npm run build && true",
        "postCreateCommand": { "db": "make db", "bad": 3 },
        "containerEnv": { "APP_ENV": "test", "PATH": "/x", "lower": "x", "ROOT": "${containerWorkspaceFolder}/a", "H": "${localEnv:HOME}" },
        "remoteEnv": { "APP_ENV": "remote" },
        "forwardPorts": [3000, "localhost:5432", "db:5432", 0, 3000],
    }"#;
    let plan = detect(&[(".devcontainer/devcontainer.json", text)]);
    let place = "in .devcontainer/devcontainer.json";
    assert_eq!(
        shown(&plan),
        [
            format!(".: npm ci '$(id)' (onCreateCommand {place})"),
            format!(".: npm run build && true (updateContentCommand {place})"),
            format!(".: make db (postCreateCommand `db` {place})"),
        ]
    );
    assert_eq!(plan.steps[0].command.to_argv(), ["npm", "ci", "$(id)"]);
    assert_eq!(plan.steps[1].command.to_argv(), ["/bin/sh", "-c", "npm run build && true"]);
    let env: Vec<_> = plan.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!((env, plan.ports), (vec![("APP_ENV", "remote"), ("ROOT", "/workspace/a")], vec![3000, 5432]));
    let notes = plan.notes.join("\n");
    for expected in [
        "postCreateCommand `bad` is not a command",
        "`H`",
        "`PATH`",
        "`lower`",
        "`forwardPorts`",
        "`image`, `features`, `initializeCommand`",
    ] {
        assert!(notes.contains(expected), "{expected} in {notes}");
    }
}

#[test]
fn a_devcontainer_without_commands_leaves_them_to_detection() {
    let devcontainer = r#"{"image": "x", "containerEnv": {"A": "1"}, "forwardPorts": [80]}"#;
    let plan = detect(&[(".devcontainer.json", devcontainer), ("go.mod", ""), ("go.sum", "")]);
    assert_eq!((plan.source, shown(&plan)), (SetupSource::Detected, vec![".: go mod download (go.sum)".to_owned()]));
    assert_eq!((plan.env.get("A").map(String::as_str), plan.ports.as_slice()), (Some("1"), [80].as_slice()));
    assert!(plan.notes[0].contains("`image`") && plan.key_files.contains(&".devcontainer.json".to_owned()));
    let broken = detect(&[(".devcontainer.json", "{"), ("go.mod", ""), ("go.sum", "")]);
    assert_eq!((broken.source, broken.notes[0].contains("is not valid JSON")), (SetupSource::Detected, true));
}

#[test]
fn names_and_contents_never_reach_a_shell() {
    let plan = detect(&[
        ("$(id)/package.json", r#"{"packageManager": "npm@1 && id"}"#),
        ("$(id)/package-lock.json", "{}"),
        ("a;b/requirements.txt", "x==1; id"),
    ]);
    assert!(
        plan.steps
            .iter()
            .all(|step| matches!(&step.command, SetupCommand::Argv(argv) if !argv.join(" ").contains("id")))
    );
    assert_eq!(plan.steps.iter().map(|step| step.directory.as_str()).collect::<Vec<_>>(), ["$(id)", "a;b", "a;b"]);
    let hostile = [
        "../package.json",
        "/package.json",
        "a/../package.json",
        "a\n/package.json",
        "a/./package.json",
        ".git/package.json",
    ];
    let files: RepositoryFiles = hostile.iter().map(|path| (*path, "{}")).collect();
    assert_eq!(files.paths().count(), 0);
}

#[test]
fn the_cache_key_changes_with_each_input_and_nothing_else() {
    use crate::sandbox::{Network, NetworkPolicy};
    let base_files = files(&[("package.json", "{}"), ("package-lock.json", "1")]);
    let plan = plan_setup(None, None, &base_files).unwrap().unwrap();
    let map = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
    let (tools, env, registries) = (map("node", "20.1"), map("A", "1"), map("npm", "https://r"));
    let network = Network { policy: NetworkPolicy::Packages, allow: Vec::new() };
    let base = CacheKeyInputs {
        root: "host",
        tools: &tools,
        plan: &plan,
        files: &base_files,
        env: &env,
        registries: &registries,
        network: &network,
        checkout: None,
    };
    let key = CacheKey::compute(&base).unwrap();
    assert_eq!((key.digest.len(), key == CacheKey::compute(&base).unwrap()), (64, true));
    let changed_files = files(&[("package.json", "{}"), ("package-lock.json", "2")]);
    let changed_plan = SetupPlan { steps: Vec::new(), ..plan.clone() };
    let other = map("A", "2");
    let all = Network { policy: NetworkPolicy::All, allow: Vec::new() };
    for (inputs, part) in [
        (CacheKeyInputs { root: "image", ..base }, "root"),
        (CacheKeyInputs { tools: &other, ..base }, "tools"),
        (CacheKeyInputs { plan: &changed_plan, ..base }, "commands"),
        (CacheKeyInputs { files: &changed_files, ..base }, "file package-lock.json"),
        (CacheKeyInputs { env: &other, ..base }, "variables"),
        (CacheKeyInputs { registries: &other, ..base }, "registries"),
        (CacheKeyInputs { network: &all, ..base }, "network"),
    ] {
        let changed = CacheKey::compute(&inputs).unwrap();
        let parts = changed.parts.iter().zip(&key.parts).filter(|(new, old)| new != old);
        assert_eq!(parts.map(|(new, _)| new.name.as_str()).collect::<Vec<_>>(), [part]);
        assert_ne!(changed.digest, key.digest, "{part}");
    }
    let sparse = CacheKey::compute(&CacheKeyInputs { checkout: Some("sparse"), ..base }).unwrap();
    assert_eq!(sparse.parts.len(), key.parts.len() + 1);
    assert_ne!(sparse.digest, key.digest);
    let noted = SetupPlan { notes: vec!["x".to_owned()], ports: vec![1], ..plan.clone() };
    assert_eq!(CacheKey::compute(&CacheKeyInputs { plan: &noted, ..base }).unwrap(), key);
    let missing = SetupPlan { key_files: vec!["go.sum".to_owned()], ..plan.clone() };
    assert!(matches!(
        CacheKey::compute(&CacheKeyInputs { plan: &missing, ..base }),
        Err(SetupError::FileTooLarge { .. })
    ));
    let many: RepositoryFiles = (0..100).map(|n| (format!("p{n}/Cargo.toml"), "")).collect();
    let wide = SetupPlan { key_files: many.paths().map(str::to_owned).collect(), ..plan.clone() };
    let key = CacheKey::compute(&CacheKeyInputs { plan: &wide, files: &many, ..base }).unwrap();
    assert_eq!(key.parts.last().map(|part| part.name.as_str()), Some("60 more files"));
}

#[test]
fn package_managers_share_one_cache_directory() {
    let packages = PackageEnvironment { cache_dir: "/cache/", proxy: Some(([127, 0, 0, 1], 7709).into()) };
    let variables = packages.variables(None);
    assert_eq!(variables.get("CARGO_HOME").map(String::as_str), Some("/cache/cargo"));
    assert_eq!(variables.get("YARN_HTTPS_PROXY").map(String::as_str), Some("http://127.0.0.1:7709"));
    assert_eq!(
        variables.get("JAVA_TOOL_OPTIONS").map(String::as_str),
        Some("-Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=7709 -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=7709")
    );
    for absent in ["npm_config_store_dir", "YARN_CACHE_FOLDER", "CI"] {
        assert_eq!(variables.get(absent), None, "{absent}");
    }
    let with = |lock: &str| packages.variables(Some(&detect(&[("package.json", "{}"), (lock, "")])));
    assert_eq!(with("pnpm-lock.yaml").get("npm_config_store_dir").map(String::as_str), Some("/cache/pnpm"));
    assert_eq!(with("yarn.lock").get("YARN_CACHE_FOLDER").map(String::as_str), Some("/cache/yarn"));
    assert_eq!(with("package-lock.json").get("YARN_CACHE_FOLDER"), None);
}

#[test]
fn a_request_is_bounded_and_inherits() {
    let bad = [r#"{"commands": ["a", ""]}"#, r#"{"timeout_s": 0}"#, r#"{"timeout_s": 3601}"#];
    for text in bad {
        assert!(serde_json::from_str::<SetupRequest>(text).unwrap().check_bounds().is_err(), "{text}");
    }
    let many = SetupRequest { commands: Some(vec!["true".to_owned(); 21]), ..SetupRequest::default() };
    assert!(many.check_bounds().is_err());
    assert!(serde_json::from_str::<SetupRequest>(r#"{"command": "x"}"#).is_err());
    let merged = SetupRequest { timeout_s: Some(5), ..SetupRequest::default() }.or(Some(SetupRequest::disabled()));
    assert_eq!((merged.is_enabled(), merged.timeout().as_secs()), (false, 5));
    assert_eq!((SetupRequest::default().is_enabled(), SetupRequest::default().timeout().as_secs()), (true, 900));
}

proptest! {
    #[test]
    fn planning_never_panics(
        pairs in proptest::collection::vec(
            (
                "([a-z$;.\n]{0,3}/){0,3}(package.json|package-lock.json|yarn.lock|Cargo.toml|uv.lock|pyproject.toml|requirements.txt|\\.atoll/setup|\\.devcontainer.json|go.mod|\\.nvmrc|\\.tool-versions|rust-toolchain.toml)",
                prop_oneof![any::<Vec<u8>>(), "[{}\\[\\]\",:a-z0-9./#! =\n-]{0,60}".prop_map(String::into_bytes)],
            ),
            0..12,
        )
    ) {
        let files: RepositoryFiles = pairs.into_iter().collect();
        let plan = plan_setup(None, None, &files).unwrap();
        list_required_versions(&files);
        for step in plan.iter().flat_map(|plan| &plan.steps) {
            prop_assert!(!step.directory.starts_with('/') && !step.directory.split('/').any(|part| part == ".."));
            prop_assert!(!step.command.to_argv().is_empty());
        }
        for path in plan.iter().flat_map(|plan| &plan.key_files) {
            prop_assert!(files.contains(path));
        }
    }
}
