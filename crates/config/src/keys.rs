//! The one table of keys. Loading, the listing of `atoll config`, validation and the example file come from it.

use crate::config::{Level, LogFormat};
use crate::env;
use crate::fake;
use crate::kind::Kind;
use crate::models;
use atoll_core::sandbox::{IsolationTier, ProviderKind};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Default {
    None,
    Is(&'static str),
    /// `atoll` in the user's directory for data.
    InDataHome,
}

/// One setting.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) default: Default,
    /// One sentence for people.
    pub(crate) doc: &'static str,
    /// The command-line flag that sets it, without the dashes.
    pub(crate) flag: Option<&'static str>,
    /// Environment variables beside its own.
    pub(crate) aliases: &'static [&'static str],
    /// Other places in a file that mean this key.
    pub(crate) file_aliases: &'static [&'static str],
    /// What the example file shows for a key without default.
    pub(crate) sample: Option<&'static str>,
    /// Why setting it changes nothing in this version.
    pub(crate) without_effect: Option<&'static str>,
}

impl Key {
    const fn new(name: &'static str, kind: Kind, default: Default, doc: &'static str) -> Self {
        Self {
            name,
            kind,
            default,
            doc,
            flag: None,
            aliases: &[],
            file_aliases: &[],
            sample: None,
            without_effect: None,
        }
    }

    const fn is(name: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Self {
        Self::new(name, kind, Default::Is(default), doc)
    }

    const fn none(name: &'static str, kind: Kind, sample: &'static str, doc: &'static str) -> Self {
        let mut key = Self::new(name, kind, Default::None, doc);
        key.sample = Some(sample);
        key
    }

    const fn flag(mut self, flag: &'static str) -> Self {
        self.flag = Some(flag);
        self
    }

    const fn also(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    const fn in_file_also(mut self, places: &'static [&'static str]) -> Self {
        self.file_aliases = places;
        self
    }

    const fn without_effect(mut self, why: &'static str) -> Self {
        self.without_effect = Some(why);
        self
    }

    /// Its own name last: that one wins.
    pub(crate) fn env_names(&self) -> Vec<String> {
        self.aliases.iter().map(|name| (*name).to_owned()).chain([env::own_name(self.name)]).collect()
    }
}

pub(crate) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

const DURATION: Kind = Kind::Duration { zero: false, never: false };
const GRACE: Kind = Kind::Duration { zero: true, never: false };
const ENDLESS: Kind = Kind::Duration { zero: false, never: true };
const PER_MINUTE: Kind = Kind::Integer { least: 0, most: 10_000_000 };
const FORMATS: Kind = Kind::Word(|| LogFormat::ALL.iter().map(|word| word.as_str()).collect());
const LEVELS: Kind = Kind::Word(|| Level::ALL.iter().map(|word| word.as_str()).collect());
const PROVIDERS: Kind = Kind::Word(|| ProviderKind::ALL.iter().map(|word| word.as_str()).collect());
const TIERS: Kind = Kind::Word(|| IsolationTier::ALL.iter().map(|word| word.as_str()).collect());
const DATABASES: Kind = Kind::SecretUrl { schemes: &["postgres://", "postgresql://", "sqlite:"] };
const REDIS: Kind = Kind::SecretUrl { schemes: &["redis://", "rediss://"] };

pub(crate) const KEYS: &[Key] = &[
    Key::new("data_dir", Kind::Path, Default::InDataHome, "Where the server keeps everything that must last.")
        .flag("data-dir"),
    Key::none(
        "database_url",
        DATABASES,
        "postgres://atoll:password@127.0.0.1/atoll",
        "The database: `postgres://…` or `sqlite:PATH`; without it, SQLite in the data directory.",
    )
    .flag("database-url")
    .also(&[env::DATABASE_URL]),
    Key::none(
        "redis_url",
        REDIS,
        "redis://127.0.0.1:6379",
        "Redis for several servers side by side; accepted, but this version does not use it and says so.",
    )
    .also(&[env::REDIS_URL])
    .without_effect("this version does not use Redis; one server works without it"),
    Key::none(
        "secret.key",
        Kind::Secret,
        "YW4gZXhhbXBsZSwgMzIgYnl0ZXM6IG5ldmVyIHVzZS4=",
        "What stored secrets are sealed with: 32 bytes in base64; without it, `secret-keys` in the data directory.",
    ),
    Key::is("server.listen", Kind::Address, "127.0.0.1:7700", "The address and port that the server listens on.")
        .flag("listen"),
    Key::is(
        "server.insecure_listen",
        Kind::Bool,
        "false",
        "Allows an address that other machines reach without TLS: tokens then travel in the clear.",
    )
    .flag("insecure-listen"),
    Key::is("server.hosts", Kind::Hosts, "", "Further names under which browsers and clients may address the server."),
    Key::none(
        "server.tls_cert",
        Kind::Path,
        "/etc/atoll/tls.crt",
        "The server's certificate chain, PEM; needs `server.tls_key`.",
    )
    .flag("tls-cert"),
    Key::none(
        "server.tls_key",
        Kind::Path,
        "/etc/atoll/tls.key",
        "The certificate's key, PEM; needs `server.tls_cert`.",
    )
    .flag("tls-key"),
    Key::none(
        "server.public_url",
        Kind::Url,
        "https://atoll.example.org",
        "How workers on other machines reach the server; stands in the commands that start them.",
    )
    .flag("public-url"),
    Key::none(
        "server.user",
        Kind::Text,
        "atoll",
        "The user, by name or number, that `atoll serve` becomes when root starts it; only the launcher stays root.",
    ),
    Key::is("metrics.public", Kind::Bool, "false", "Serves `/metrics` to callers without a token."),
    Key::is("log.format", FORMATS, "text", "How log lines are written: `text` for people, `json` for programs.")
        .flag("log-format"),
    Key::is("log.level", LEVELS, "info", "The least important lines that are still logged.").flag("log-level"),
    Key::is(
        "limits.worker_requests_per_minute",
        PER_MINUTE,
        "6000",
        "Requests that one worker may make in a minute; 0 is no limit.",
    ),
    Key::is(
        "limits.messages_per_minute",
        PER_MINUTE,
        "120",
        "Messages that one principal may send in a minute; 0 is no limit.",
    ),
    Key::is(
        "limits.writes_per_minute",
        PER_MINUTE,
        "600",
        "Other changes that one principal may make in a minute; 0 is no limit.",
    ),
    Key::is(
        "limits.max_live_streams",
        Kind::Integer { least: 1, most: 1_000_000 },
        "1000",
        "WebSocket and event-stream readers at the same time, over all principals.",
    ),
    Key::is("messages.lease", DURATION, "30s", "How long a worker may hold a message before it is offered again."),
    Key::is("heartbeat.interval", DURATION, "30s", "How often a worker says that it is alive."),
    Key::is(
        "sandbox.create_timeout.local",
        DURATION,
        "30s",
        "How long a sandbox on this machine may wait for its first heartbeat.",
    ),
    Key::is(
        "sandbox.create_timeout.docker",
        DURATION,
        "10m",
        "How long a sandbox of the `docker` provider may wait for its first heartbeat.",
    ),
    Key::is(
        "sandbox.create_timeout.external",
        DURATION,
        "24h",
        "How long a sandbox of a worker started by hand may wait for its first heartbeat.",
    ),
    Key::is(
        "sandbox.create_timeout.fake",
        DURATION,
        "30s",
        "How long a sandbox of the `fake` provider may wait for its first heartbeat.",
    ),
    Key::is("sandbox.flush_grace", GRACE, "30s", "How long a stopping sandbox may still deliver its events."),
    Key::is(
        "sandbox.drain_for",
        GRACE,
        "24h",
        "How long after a sandbox's end its worker may still hand in what it had kept.",
    ),
    Key::is("sandbox.keep_failed_for", GRACE, "24h", "How long a failed sandbox is kept for a look inside."),
    Key::is(
        "sandbox.timeout.when_done",
        ENDLESS,
        "1h",
        "After how long a sandbox that ends with its work is stopped, unless it says otherwise.",
    ),
    Key::is(
        "sandbox.timeout.keep",
        ENDLESS,
        "never",
        "After how long a sandbox that is kept for more work is stopped, unless it says otherwise.",
    ),
    Key::is("sandbox.memory_gb", Kind::Number { most: 4096.0 }, "4", "Memory of a sandbox that names none, in GiB.")
        .also(&[env::SANDBOX_MEMORY_GB])
        .in_file_also(&["daytona.sandbox_memory_gb"]),
    Key::is("sandbox.cpu", Kind::Number { most: 1024.0 }, "2", "Processors of a sandbox that names none.")
        .also(&[env::SANDBOX_CPU])
        .in_file_also(&["daytona.sandbox_cpu"]),
    Key::is("sandbox.disk_gb", Kind::Number { most: 65536.0 }, "8", "Disk of a sandbox that names none, in GiB.")
        .also(&[env::SANDBOX_DISK_GB])
        .in_file_also(&["daytona.sandbox_disk_gb"]),
    Key::is(
        "sandbox.protected",
        Kind::Protected,
        "",
        "Paths of the workspace that no agent on this machine may change; projects and requests add their own.",
    ),
    Key::none("sandbox.snapshot", Kind::Text, "base", "The snapshot that a sandbox starts from if it names none.")
        .also(&[env::SANDBOX_SNAPSHOT])
        .in_file_also(&["daytona.snapshot"]),
    Key::none("sandbox.image", Kind::Text, "debian:stable", "The image of a sandbox that names none.")
        .also(&[env::SANDBOX_IMAGE]),
    Key::none("sandbox.model", Kind::Text, "provider/model", "The model of a sandbox that names none.")
        .also(&[env::SANDBOX_MODEL]),
    Key::is(
        "terminal.linger",
        DURATION,
        "10m",
        "How long a terminal that nobody looks at any more waits for somebody to come back.",
    ),
    Key::is(
        "continuous.iterations",
        Kind::Integer { least: 1, most: 1000 },
        "10",
        "Continuous mode: how many runs of the agent there may be.",
    ),
    Key::is("continuous.duration", DURATION, "1h", "Continuous mode: within which time the checks must pass."),
    Key::is(
        "continuous.errors",
        Kind::Integer { least: 1, most: 1000 },
        "3",
        "Continuous mode: how many runs in a row may fail.",
    ),
    Key::none(
        "continuous.cost_usd",
        Kind::Number { most: 1e6 },
        "5",
        "Continuous mode: what models may cost until it ends, also within a run; without it, no limit.",
    ),
    Key::is("continuous.check_timeout", DURATION, "10m", "Continuous mode: how long one check may take, at most 45m."),
    Key::is("retention.events", ENDLESS, "never", "After how long the events of an ended sandbox are deleted."),
    Key::is("retention.idempotency", DURATION, "24h", "How long a repeated request is known by its idempotency key."),
    Key::is("provider.default", PROVIDERS, "local", "Who makes a sandbox that names no provider."),
    Key::is(
        "local.id_base",
        Kind::Integer { least: 65_536, most: 4_000_000_000 },
        "600000000",
        "The first of the user and group ids that local sandboxes use on this machine, when the server is root.",
    ),
    Key::is(
        "local.tools",
        Kind::Paths,
        "",
        "Further directories that local sandboxes see, read-only, at their own path.",
    ),
    Key::none(
        "local.worker",
        Kind::Path,
        "/usr/lib/atoll/atoll-worker",
        "The worker's program for local sandboxes; without it, the one that this program carries or has beside it.",
    ),
    Key::none(
        "local.isolation",
        TIERS,
        "strong",
        "The least isolation that sandboxes on this machine must have; where it can't be had, none is made.",
    ),
    Key::none(
        "local.disk_pool_gb",
        Kind::Number { most: 65536.0 },
        "50",
        "Keep the files of local sandboxes in a pool of so many GiB, in which the kernel bounds the disk of each; for root.",
    ),
    Key::is(
        "network.allow_private",
        Kind::Places,
        "",
        "Places that sandboxes may reach although their addresses are not public, if their policy allows the host.",
    ),
    Key::is(
        "network.max_bytes",
        Kind::Integer { least: 0, most: 1 << 60 },
        "0",
        "What one sandbox may send and receive in all, in bytes; 0 is no limit.",
    ),
    Key::none(
        "network.upstream_proxy",
        Kind::SecretUrl { schemes: &["http://"] },
        "http://proxy.example.org:3128",
        "The proxy through which sandboxes reach the Internet; without it, the one of HTTPS_PROXY or HTTP_PROXY.",
    ),
    Key::is(
        "docker.socket",
        Kind::Text,
        "unix:///var/run/docker.sock",
        "Where the Docker engine of the `docker` provider listens; it must be on this machine.",
    )
    .also(&[env::DOCKER_HOST]),
    Key::none(
        "docker.image",
        Kind::Text,
        "debian:stable",
        "The image of a container when a sandbox names none; it is never pulled by itself.",
    ),
    Key::none(
        "docker.worker",
        Kind::Path,
        "/usr/lib/atoll/atoll-worker",
        "The worker's program for containers, which must be static; without it, the one for local sandboxes.",
    ),
    Key::is("git.branch_prefix", Kind::Text, "atoll", "What the branches of plain runs begin with."),
    Key::is(
        "providers.fake",
        Kind::Structure { read: fake::read, form: fake::FORM },
        r#"{"seed": 0, "faults": []}"#,
        "The `fake` provider's seed and the faults that it makes, for simulations and load.",
    ),
    Key::none(
        "agent.default",
        Kind::Text,
        "claude",
        "The agent of a sandbox that names none; without it, the first that is here and has its key.",
    ),
    Key::none(
        "agents.acp.path",
        Kind::Path,
        "/opt/acp/bin/acp",
        "The program of the agent `acp`, which speaks the Agent Client Protocol.",
    ),
    Key::none(
        "agents.claude.path",
        Kind::Path,
        "/opt/claude/bin/claude",
        "The program of the agent `claude`; without it the installed one, else the one in PATH.",
    ),
    Key::none(
        "agents.codex.path",
        Kind::Path,
        "/opt/codex/bin/codex",
        "The program of the agent `codex`; without it the installed one, else the one in PATH.",
    ),
    Key::none(
        "agents.gemini.path",
        Kind::Path,
        "/opt/gemini/bin/gemini",
        "The program of the agent `gemini`; without it the installed one, else the one in PATH.",
    ),
    Key::none(
        "agents.opencode.path",
        Kind::Path,
        "/opt/opencode/bin/opencode",
        "The program of the agent `opencode`; without it the installed one, else the one in PATH.",
    ),
    Key::is(
        "daytona.enabled",
        Kind::Bool,
        "false",
        "Asks for sandboxes at Daytona, for a later version; needs `daytona.api_key`.",
    )
    .also(&[env::DAYTONA_SANDBOX_EXECUTION])
    .without_effect("this version has no `daytona` provider; sandboxes go to `provider.default`"),
    Key::none(
        "daytona.api_key",
        Kind::Secret,
        "dtn_example",
        "The key for Daytona, for a later version; its value is kept out of the log.",
    )
    .also(&[env::DAYTONA_API_KEY]),
    Key::none("daytona.api_url", Kind::Url, "https://app.daytona.io/api", "Where Daytona is, for a later version.")
        .also(&[env::DAYTONA_API_URL])
        .without_effect("this version has no `daytona` provider"),
    Key::none(
        "github.token",
        Kind::Secret,
        "ghp_example",
        "The token for GitHub, for a later version; its value is kept out of the log.",
    )
    .also(&[env::GITHUB_TOKEN]),
    Key::none("anthropic.api_key", Kind::Secret, "sk-ant-example", "The key for Anthropic's models.")
        .also(&[env::ANTHROPIC_API_KEY]),
    Key::none("anthropic.base_url", Kind::Url, "https://api.anthropic.com", "Where Anthropic's models are served.")
        .also(&[env::ANTHROPIC_BASE_URL]),
    Key::none("openai.api_key", Kind::Secret, "sk-example", "The key for OpenAI's models.")
        .also(&[env::OPENAI_API_KEY]),
    Key::none("openai.base_url", Kind::Url, "https://api.openai.com/v1", "Where OpenAI's models are served.")
        .also(&[env::OPENAI_BASE_URL]),
    Key::none("gemini.api_key", Kind::Secret, "AIza-example", "The key for Gemini's models.")
        .also(&[env::GEMINI_API_KEY]),
    Key::none(
        "gemini.base_url",
        Kind::Url,
        "https://generativelanguage.googleapis.com",
        "Where Gemini's models are served.",
    )
    .also(&[env::GEMINI_BASE_URL]),
    Key::is(
        "upstreams",
        Kind::Structure { read: models::read_upstreams, form: models::UPSTREAMS },
        "{}",
        "Further places that serve models, by name; anthropic, openai and gemini are there without being written.",
    ),
    Key::is(
        "models",
        Kind::Structure { read: models::read_models, form: models::MODELS },
        "[]",
        "The models that sandboxes may use, with prices in US dollars for a million tokens; none listed: every one.",
    ),
    Key::is("orchestrator.enabled", Kind::Bool, "false", "Runs the orchestrator in the server, for a later version.")
        .also(&[env::ORCHESTRATOR_ENABLED])
        .without_effect("this version has no orchestrator"),
];
