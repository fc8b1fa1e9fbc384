//! Set-up layers of the local provider: the checkout over a layer, and its protection from agents.

use crate::conformance::IdleLinkHost;
use atoll_core::id::{ProjectId, SandboxId, SessionId};
use atoll_core::provider::{
    Author, CacheUse, CommandExit, CreateSpec, Error, ExecCommand, ExecEvent, ExecSpec, GitOperation, Identity,
    PACKAGE_CACHE_DIR, Provider, ProviderId, RepositorySource, provider_cache_name,
};
use atoll_core::sandbox::Settings;
use atoll_jail::{Launcher, LauncherOptions};
use atoll_providers::Local;
use atoll_tests::local::create_temp_dir;
use atoll_tests::process::find_program;
use futures_util::StreamExt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tempfile::TempDir;

/// A repository and a provider with its own launcher.
struct LayerFixture {
    local: Local,
    project: ProjectId,
    dir: TempDir,
}

impl LayerFixture {
    async fn new(deployment: &str) -> Self {
        let dir = create_temp_dir("atoll-layers-");
        let options = LauncherOptions {
            exe: find_program("atoll"),
            ..LauncherOptions::new(dir.path().join("data"), find_program("atoll-worker"), deployment)
        };
        let launcher = tokio::task::spawn_blocking(move || Launcher::start(options)).await.unwrap().unwrap();
        let fixture =
            Self { local: Local::new(Ok(Arc::new(launcher)), Arc::new(IdleLinkHost)), project: ProjectId::new(), dir };
        fs::create_dir(fixture.repository()).unwrap();
        fixture.git(&["init", "-q", "-b", "main"]);
        for (name, text) in [("src/main.js", "one\n"), ("lock", "1\n"), (".gitignore", "node_modules\n")] {
            fixture.write(name, text);
        }
        fixture.commit();
        fixture
    }

    fn repository(&self) -> PathBuf {
        self.dir.path().join("repository")
    }

    fn git(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("git");
        command.current_dir(self.repository()).args(["-c", "user.name=A", "-c", "user.email=a@b"]).args(arguments);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.repository().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn commit(&self) {
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "-m", "change"]);
    }

    /// The repository at its last commit.
    fn source(&self) -> RepositorySource {
        let bundle = self.dir.path().join("source.bundle");
        self.git(&["update-ref", "refs/atoll/base", "HEAD"]);
        self.git(&["bundle", "create", "-q", bundle.to_str().unwrap(), "refs/atoll/base"]);
        RepositorySource {
            parts: None,
            sparse_dirs: Vec::new(),
            uses_lfs: false,
            layer_commit: None,
            store_as: None,
            bundle,
            commit: self.git(&["rev-parse", "HEAD"]),
            branch: "atoll/task".into(),
            author: Author { name: "Ann".into(), email: "ann@example.org".into() },
        }
    }

    async fn create(&self, cache: Option<CacheUse>) -> Result<ProviderId, Error> {
        let identity = Identity {
            deployment: "layers".into(),
            sandbox: SandboxId::new(),
            session: SessionId::new(),
            project: self.project,
        };
        let (settings, source) = (Settings::default(), Some(self.source()));
        let spec = CreateSpec { identity, labels: Default::default(), settings, source, programs: Vec::new(), cache };
        Ok(self.local.create(&spec, &spec.identity.sandbox.to_string()).await?.id)
    }

    async fn create_from(&self, key: &str) -> ProviderId {
        self.create(Some(CacheUse::SetUp(self.layer(key)))).await.unwrap()
    }

    fn layer(&self, key: &str) -> String {
        provider_cache_name(self.project, key)
    }

    /// Output of a script that must succeed.
    async fn run(&self, id: &ProviderId, script: &str) -> String {
        let spec = ExecSpec {
            command: ExecCommand::Shell(script.to_owned()),
            cwd: None,
            env: Default::default(),
            has_stdin: false,
            as_root: false,
            terminal: None,
            timeout: None,
        };
        let exec = self.local.exec(id, &spec).await.unwrap();
        let mut stream = self.local.attach(&exec, 0).await.unwrap();
        let mut output = String::new();
        while let Some(event) = stream.next().await {
            match event.unwrap() {
                ExecEvent::Output { data, .. } => output.push_str(&String::from_utf8_lossy(&data)),
                ExecEvent::Gap { .. } => panic!("a gap"),
                ExecEvent::Ended(exit) => assert_eq!(exit, CommandExit::Exited { code: 0 }, "{script}: {output}"),
            }
        }
        output.trim().to_owned()
    }

    /// Creates a sandbox, sets it up and seals it.
    async fn seal(&self, key: &str, set_up: &str) -> ProviderId {
        let id = self.create(None).await.unwrap();
        self.run(&id, set_up).await;
        let output = tempfile::tempfile().unwrap();
        let excluded = self.local.git(&id, &GitOperation::ExcludeUntracked, output).await.unwrap();
        assert_eq!(excluded.exit, CommandExit::Exited { code: 0 }, "{}", excluded.error_output);
        self.local.seal_cache(&id, &self.layer(key)).await.unwrap();
        id
    }

    async fn destroy_all(&self) {
        for sandbox in self.local.list(None).await.unwrap().items {
            self.local.destroy(&sandbox.id).await.unwrap();
        }
    }
}

const SET_UP: &str = "mkdir -p node_modules/a .venv ~/.cache/packages; echo dependency >node_modules/a/index.js; \
                      echo python >.venv/python; echo download >~/.cache/packages/a; echo 2 >lock; \
                      echo 1 >~/server.pid";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_has_its_own_checkout_over_the_layer() {
    let fixture = LayerFixture::new("layersa").await;
    let first = fixture.seal("k1", SET_UP).await;
    // The sandbox that was set up goes on; what set-up left is no change, and a changed file is one.
    assert_eq!(fixture.run(&first, "git status --porcelain; cat .venv/python; ls ~").await, "M lock\npython");

    fixture.write("src/main.js", "two\n");
    fixture.write("src/new.js", "new\n");
    fixture.git(&["rm", "-q", "lock"]);
    fixture.commit();
    let second = fixture.create_from("k1").await;
    assert_eq!(
        fixture.run(&second, "git status --porcelain; cat src/* node_modules/a/index.js .venv/python; ls").await,
        "two\nnew\ndependency\npython\nnode_modules\nsrc"
    );
    // Directories of the checkout are not those of the layer, so every user can rename them.
    assert_eq!(
        fixture.run(&second, "git mv src lib && ls lib && git log --format=%s -1").await,
        "main.js\nnew.js\nchange"
    );

    // An agent poisons everything that it can see.
    let poison =
        "chmod -R u+w . ~; find . ~ -type f -not -path './.git/*' | while read f; do echo poison >\"$f\"; done";
    fixture.run(&second, poison).await;
    let third = fixture.create_from("k1").await;
    assert_eq!(
        fixture.run(&third, "cat src/main.js node_modules/a/index.js ~/.cache/packages/a").await,
        "two\ndependency\ndownload"
    );
    let downloads = fixture.create(Some(CacheUse::Downloads(fixture.layer("k1")))).await.unwrap();
    assert_eq!(
        fixture.run(&downloads, &format!("cat {PACKAGE_CACHE_DIR}/a; git status --porcelain; ls -A; ls -A ~")).await,
        "download\n.git\n.gitignore\nsrc\n.cache"
    );
    // A sandbox of another project does not find the layer.
    let other = provider_cache_name(ProjectId::new(), "k1");
    let refused = fixture.create(Some(CacheUse::SetUp(other.clone()))).await;
    assert_eq!(refused, Err(Error::CacheGone { name: other }));
    fixture.destroy_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unusable_layer_is_deleted_and_leaves_no_sandbox() {
    let fixture = LayerFixture::new("layersb").await;
    let broken = fixture.create(None).await.unwrap();
    fixture.run(&broken, "rm -rf .git").await;
    let name = fixture.layer("k");
    fixture.local.seal_cache(&broken, &name).await.unwrap();
    fixture.local.destroy(&broken).await.unwrap();
    let refused = fixture.create(Some(CacheUse::SetUp(name.clone()))).await;
    assert_eq!(refused, Err(Error::CacheGone { name }));
    assert_eq!(fixture.local.caches().await.unwrap(), []);
    assert!(fixture.local.list(None).await.unwrap().items.is_empty());
    assert_empty_layers(fixture.dir.path());
    // The server starts without the layer.
    fixture.create(None).await.unwrap();
    fixture.destroy_all().await;
}

fn assert_empty_layers(dir: &Path) {
    atoll_test_wait::wait_until("the layers to be removed", || {
        fs::read_dir(dir.join("data/layers")).unwrap().next().is_none()
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_of_downloads_is_bounded() {
    let fixture = LayerFixture::new("layersc").await;
    fixture.seal("k1", SET_UP).await;
    for number in 1..8 {
        let [from, to] = [number, number + 1].map(|number| fixture.layer(&format!("k{number}")));
        let id = fixture.create(Some(CacheUse::Downloads(from))).await.unwrap();
        fixture.run(&id, &format!("echo {number} >~/.cache/packages/{number}")).await;
        let sealed = fixture.local.seal_cache(&id, &to).await.unwrap();
        assert!([1, number + 1].contains(&sealed.depth), "{sealed:?}");
        fixture.local.destroy(&id).await.unwrap();
    }
    let deepest = fixture.layer("k8");
    let is_pool = fixture.local.caches().await.unwrap().iter().all(|cache| cache.depth == 1);
    if !is_pool {
        let refused = fixture.create(Some(CacheUse::Downloads(deepest.clone()))).await;
        assert_eq!(refused, Err(Error::CacheGone { name: deepest.clone() }));
    }
    let id = fixture.create(Some(CacheUse::SetUp(deepest))).await.unwrap();
    assert_eq!(fixture.run(&id, "cat ~/.cache/packages/*").await, "1\n2\n3\n4\n5\n6\n7\ndownload");
    fixture.destroy_all().await;
}
