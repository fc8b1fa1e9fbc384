//! Every configuration key, declared once. The loader, `atoll config`, the example file and the typed [`Config`] all
//! come from these declarations.

use crate::acp_agents::{self, AcpAgent};
use crate::format::{
    ABSOLUTE_PATHS, ADDRESS, BASE_URL, DatabaseUrl, FILE_PATH, HOSTS, Integer, Number, OneOf, PRIVATE_RANGES,
    PerMinute, SWITCH, SecretText, SecretUrl, Structure, TEXT, TIME, TIME_OR_NEVER, TIME_OR_ZERO, WORKSPACE_PATHS,
};
use crate::git_section::Git;
use crate::github_section::Github;
use crate::guardian_section::Guardian;
use crate::health_section::Health;
use crate::key::section;
use crate::models::{self, Model, Upstream, UpstreamEntry};
use crate::orchestrator_section::Orchestrator;
use crate::packages;
use crate::page_sections::{Preview, SignIn};
use crate::registries::{self, Registries};
use crate::setup_section::Setup;
use crate::telemetry_section::Telemetry;
use crate::values::{Database, Level, LogFormat};
use atoll_core::fake_options::{self, FakeOptions};
use atoll_core::network::{AddressException, HostsByEcosystem};
use atoll_core::sandbox::{IsolationTier, ProviderKind};
use secrecy::SecretString;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

const fn minutes(count: u64) -> Duration {
    Duration::from_secs(count * 60)
}

const fn hours(count: u64) -> Duration {
    Duration::from_secs(count * 3600)
}

section! {
    /// The whole configuration.
    Config at [] {
        /// Directory for the database, blobs, keys and local sandboxes
        data_dir: PathBuf = PathBuf::new() => FILE_PATH, flag("data-dir");
        /// Database: `postgres://…` or `sqlite:PATH`; if unset, SQLite in the data directory
        database_url: Option<Database> = None => DatabaseUrl,
            flag("database-url"), env(&["DATABASE_URL"]), sample("postgres://atoll:password@127.0.0.1/atoll");
        /// Redis for several servers side by side; this version does not use it
        redis_url: Option<SecretString> = None => SecretUrl(&["redis://", "rediss://"]),
            env(&["REDIS_URL"]), sample("redis://127.0.0.1:6379"),
            no_effect("this version does not use Redis; a single server needs none");
        /// Additional model upstreams by name; anthropic, openai and gemini are built in
        upstreams: BTreeMap<String, UpstreamEntry> = BTreeMap::new()
            => Structure { form: models::UPSTREAMS_FORM, check: models::check_upstreams };
        /// Models that sandboxes may use, priced in US dollars per million tokens; if empty, every model
        models: Vec<Model> = Vec::new() => Structure { form: models::MODELS_FORM, check: models::check_models };
        /// Agents of the Agent Client Protocol by name, beside the built-in ones; keys belong in secrets, not here
        acp_agents: BTreeMap<String, AcpAgent> = BTreeMap::new()
            => Structure { form: acp_agents::ACP_AGENTS_FORM, check: acp_agents::check_acp_agents };
        /// Package registries that all sandboxes use in place of the public ones; tokens are secrets
        registries: Registries = Registries::new()
            => Structure { form: registries::REGISTRIES_FORM, check: registries::check_registries };
        section secret: SecretKey;
        section server: Server;
        section metrics: Metrics;
        section log: Log;
        section telemetry: Telemetry;
        section sign_in: SignIn;
        section preview: Preview;
        section limits: Limits;
        section messages: Messages;
        section heartbeat: Heartbeat;
        section health: Health;
        section sandbox: Sandbox;
        section setup: Setup;
        section terminal: Terminal;
        section continuous: Continuous;
        section guardian: Guardian;
        section retention: Retention;
        section provider: Provider;
        section providers: Providers;
        section local: Local;
        section docker: Docker;
        section network: Network;
        section git: Git;
        section agent: Agent;
        section agents: Agents;
        section anthropic: Anthropic;
        section openai: OpenAi;
        section gemini: Gemini;
        section github: Github;
        section daytona: Daytona;
        section orchestrator: Orchestrator;
        derived
        /// The built-in upstreams and those of `upstreams`, with their keys.
        model_upstreams: Vec<Upstream>;
        derived
        /// Every secret of any layer, for the redactor.
        secret_values: Vec<SecretString>;
    }
}

section! {
    /// The key that seals stored secrets.
    SecretKey at [secret] {
        /// Key that seals stored secrets, 32 bytes in base64; if unset, `secret-keys` in the data directory
        key: Option<SecretString> = None => SecretText, sample("YW4gZXhhbXBsZSwgMzIgYnl0ZXM6IG5ldmVyIHVzZS4=");
    }
}

section! {
    Server at [server] {
        /// Address and port to listen on
        listen: SocketAddr = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 7700) => ADDRESS, flag("listen");
        /// Allow an address that other machines reach without TLS; tokens then travel unencrypted
        insecure_listen: bool = false => SWITCH, flag("insecure-listen");
        /// Additional host names that clients may use for this server
        hosts: Vec<String> = Vec::new() => HOSTS;
        /// TLS certificate chain, PEM; requires `server.tls_key`
        tls_cert: Option<PathBuf> = None => FILE_PATH, flag("tls-cert"), sample("/etc/atoll/tls.crt");
        /// Private key of the TLS certificate, PEM; requires `server.tls_cert`
        tls_key: Option<PathBuf> = None => FILE_PATH, flag("tls-key"), sample("/etc/atoll/tls.key");
        /// URL at which workers on other machines reach the server
        public_url: Option<String> = None => BASE_URL, flag("public-url"), sample("https://atoll.example.org");
        /// User name or id that `atoll serve` switches to when root starts it; only the launcher stays root
        user: Option<String> = None => TEXT, sample("atoll");
    }
}

section! {
    Metrics at [metrics] {
        /// Serve `/metrics` without a token
        public: bool = false => SWITCH;
    }
}

section! {
    Log at [log] {
        /// Log format: `text` for people, `json` for programs
        format: LogFormat = LogFormat::Text => OneOf(LogFormat::ALL), flag("log-format");
        /// Lowest severity to log
        level: Level = Level::Info => OneOf(Level::ALL), flag("log-level");
    }
}

section! {
    /// Rate limits; `None` is no limit.
    Limits at [limits] {
        /// Requests per minute and worker; 0 is no limit
        worker_requests_per_minute: Option<NonZeroU32> = NonZeroU32::new(6000) => PerMinute;
        /// Messages per minute and principal; 0 is no limit
        messages_per_minute: Option<NonZeroU32> = NonZeroU32::new(120) => PerMinute;
        /// Other writes per minute and principal; 0 is no limit
        writes_per_minute: Option<NonZeroU32> = NonZeroU32::new(600) => PerMinute;
        /// Attempts to sign in to the page per minute and address; 0 is no limit
        sign_ins_per_minute: Option<NonZeroU32> = NonZeroU32::new(20) => PerMinute;
        /// Maximum bytes of one sandbox's events and blobs; 0 is no limit
        log_bytes_per_sandbox: u64 = 2_000_000_000 => Integer(0, 1 << 60);
        /// Concurrent connections to the server; one principal or unauthenticated peer gets at most a quarter
        max_connections: usize = 4096 => Integer(4, 1_000_000);
        /// Concurrent WebSocket and SSE readers of all principals; one principal gets at most a quarter
        max_live_streams: usize = 1000 => Integer(1, 1_000_000);
    }
}

section! {
    Messages at [messages] {
        /// Lease of a message: time for a worker to acknowledge it before it is offered again
        lease: Duration = seconds(30) => TIME;
    }
}

section! {
    Heartbeat at [heartbeat] {
        /// Interval between the heartbeats of a worker
        interval: Duration = seconds(30) => TIME;
    }
}

section! {
    /// Lifecycle and defaults of sandboxes.
    Sandbox at [sandbox] {
        /// Time for a stopping sandbox to deliver its remaining events
        flush_grace: Duration = seconds(30) => TIME_OR_ZERO;
        /// Time after a sandbox's end during which its worker may still deliver spooled events
        drain_for: Duration = hours(24) => TIME_OR_ZERO;
        /// Time to keep the files of a failed sandbox
        keep_failed_for: Duration = hours(24) => TIME_OR_ZERO;
        /// Default memory of a sandbox, in GiB
        memory_gb: f64 = 4.0 => Number(4096.0),
            env(&["SANDBOX_MEMORY_GB"]), file_alias(&["daytona.sandbox_memory_gb"]);
        /// Default number of processors of a sandbox
        cpu: f64 = 2.0 => Number(1024.0), env(&["SANDBOX_CPU"]), file_alias(&["daytona.sandbox_cpu"]);
        /// Default disk size of a sandbox, in GiB
        disk_gb: f64 = 8.0 => Number(65536.0),
            env(&["SANDBOX_DISK_GB"]), file_alias(&["daytona.sandbox_disk_gb"]);
        /// Workspace paths that agents on this machine cannot change; projects and requests add more
        protected: Vec<String> = Vec::new() => WORKSPACE_PATHS;
        /// Default snapshot to start sandboxes from
        snapshot: Option<String> = None => TEXT,
            env(&["SANDBOX_SNAPSHOT"]), file_alias(&["daytona.snapshot"]), sample("base");
        /// Default image of sandboxes
        image: Option<String> = None => TEXT, env(&["SANDBOX_IMAGE"]), sample("debian:stable");
        /// Default model of sandboxes
        model: Option<String> = None => TEXT, env(&["SANDBOX_MODEL"]), sample("provider/model");
        section create_timeout: CreateTimeout;
        section timeout: Timeout;
    }
}

section! {
    /// Deadlines for the first heartbeat, per provider.
    CreateTimeout at [sandbox.create_timeout] {
        /// Deadline for the first heartbeat of a `local` sandbox
        local: Duration = seconds(30) => TIME;
        /// Deadline for the first heartbeat of a `docker` sandbox
        docker: Duration = minutes(10) => TIME;
        /// Deadline for the first heartbeat of an `external` sandbox, whose worker you start yourself
        external: Duration = hours(24) => TIME;
        /// Deadline for the first heartbeat of a `fake` sandbox
        fake: Duration = seconds(30) => TIME;
    }
}

section! {
    /// Maximum lifetime of sandboxes; `None` is unlimited.
    Timeout at [sandbox.timeout] {
        /// Default lifetime of a sandbox that ends with its work
        when_done: Option<Duration> = Some(hours(1)) => TIME_OR_NEVER;
        /// Default lifetime of a sandbox that is kept for more work
        keep: Option<Duration> = None => TIME_OR_NEVER;
    }
}

section! {
    Terminal at [terminal] {
        /// Time that a terminal without a connected client stays open
        linger: Duration = minutes(10) => TIME;
    }
}

section! {
    /// Default limits of continuous mode.
    Continuous at [continuous] {
        /// Continuous mode: maximum runs of the agent
        iterations: u32 = 10 => Integer(1, 1000);
        /// Continuous mode: time until the checks must pass
        duration: Duration = hours(1) => TIME;
        /// Continuous mode: maximum consecutive failed runs
        errors: u32 = 3 => Integer(1, 1000);
        /// Continuous mode: maximum model cost in US dollars; if unset, no limit
        cost_usd: Option<f64> = None => Number(1e6), sample("5");
        /// Continuous mode: timeout of one check, at most 45m
        check_timeout: Duration = minutes(10) => TIME;
    }
}

section! {
    Retention at [retention] {
        /// Time to keep the events of a sandbox after its end
        events: Option<Duration> = None => TIME_OR_NEVER;
        /// Time to remember idempotency keys
        idempotency: Duration = hours(24) => TIME;
    }
}

section! {
    Provider at [provider] {
        /// Default provider of sandboxes
        default: ProviderKind = ProviderKind::Local => OneOf(ProviderKind::ALL);
    }
}

section! {
    Providers at [providers] {
        /// Seed and injected faults of the `fake` provider, for simulations and load tests
        fake: FakeOptions = FakeOptions::default() => Structure { form: fake_options::FAKE_OPTIONS_FORM, check: Ok };
    }
}

section! {
    /// Sandboxes on this machine.
    Local at [local] {
        /// First user and group id of local sandboxes, if the launcher is root
        id_base: u32 = 600_000_000 => Integer(65_536, 4_000_000_000);
        /// Additional directories to mount read-only into local sandboxes, at the same path
        tools: Vec<PathBuf> = Vec::new() => ABSOLUTE_PATHS;
        /// Worker binary for local sandboxes; if unset, the built-in one or the one beside `atoll`
        worker: Option<PathBuf> = None => FILE_PATH, sample("/usr/lib/atoll/atoll-worker");
        /// Minimum isolation tier; creating a local sandbox fails if this machine cannot provide it
        isolation: Option<IsolationTier> = None => OneOf(IsolationTier::ALL), sample("strong");
        /// Size in GiB of a disk pool with a quota per local sandbox; requires root
        disk_pool_gb: Option<f64> = None => Number(65536.0), sample("50");
    }
}

section! {
    /// Sandboxes as containers.
    Docker at [docker] {
        /// Socket of the Docker engine, on this machine
        socket: String = "unix:///var/run/docker.sock".to_owned() => TEXT, env(&["DOCKER_HOST"]);
        /// Default image of containers; Atoll never pulls images
        image: Option<String> = None => TEXT, sample("debian:stable");
        /// Static worker binary for containers; if unset, the one for local sandboxes
        worker: Option<PathBuf> = None => FILE_PATH, sample("/usr/lib/atoll/atoll-worker");
    }
}

section! {
    /// The egress proxy, besides the network policy of each sandbox.
    Network at [network] {
        /// Private addresses that sandboxes may reach if their network policy allows the host
        allow_private: Vec<AddressException> = Vec::new() => PRIVATE_RANGES;
        /// Registry hosts of the policy `packages` by ecosystem; replaces the defaults of the named ecosystems
        packages: HostsByEcosystem = HostsByEcosystem::new()
            => Structure { form: packages::PACKAGES_FORM, check: packages::check_packages };
        /// Maximum bytes that one sandbox may send and receive in total; 0 is no limit
        max_bytes: u64 = 0 => Integer(0, 1 << 60);
        /// Proxy between sandboxes and the Internet; if unset, HTTPS_PROXY or HTTP_PROXY
        upstream_proxy: Option<SecretString> = None => SecretUrl(&["http://"]), sample("http://proxy.example.org:3128");
    }
}

section! {
    Agent at [agent] {
        /// Default agent; if unset, the first installed agent that has a key
        default: Option<String> = None => TEXT, sample("claude");
    }
}

section! {
    /// Paths of agent programs on this machine.
    Agents at [agents] {
        /// Program of the agent `acp`, which speaks the Agent Client Protocol
        acp as "acp.path": Option<PathBuf> = None => FILE_PATH, sample("/opt/acp/bin/acp");
        /// Program of the agent `claude`; if unset, the installed one, then the one in PATH
        claude as "claude.path": Option<PathBuf> = None => FILE_PATH, sample("/opt/claude/bin/claude");
        /// Program of the agent `codex`; if unset, the installed one, then the one in PATH
        codex as "codex.path": Option<PathBuf> = None => FILE_PATH, sample("/opt/codex/bin/codex");
        /// Program of the agent `gemini`; if unset, the installed one, then the one in PATH
        gemini as "gemini.path": Option<PathBuf> = None => FILE_PATH, sample("/opt/gemini/bin/gemini");
        /// Program of the agent `opencode`; if unset, the installed one, then the one in PATH
        opencode as "opencode.path": Option<PathBuf> = None => FILE_PATH, sample("/opt/opencode/bin/opencode");
    }
}

section! {
    Anthropic at [anthropic] {
        /// API key for Anthropic's models
        api_key: Option<SecretString> = None => SecretText, env(&["ANTHROPIC_API_KEY"]), sample("sk-ant-example");
        /// Base URL of Anthropic's models; if unset, Anthropic's own
        base_url: Option<String> = None => BASE_URL,
            env(&["ANTHROPIC_BASE_URL"]), sample("https://api.anthropic.com");
    }
}

section! {
    OpenAi at [openai] {
        /// API key for OpenAI's models
        api_key: Option<SecretString> = None => SecretText, env(&["OPENAI_API_KEY"]), sample("sk-example");
        /// Base URL of OpenAI's models; if unset, OpenAI's own
        base_url: Option<String> = None => BASE_URL, env(&["OPENAI_BASE_URL"]), sample("https://api.openai.com/v1");
    }
}

section! {
    Gemini at [gemini] {
        /// API key for Gemini's models
        api_key: Option<SecretString> = None => SecretText, env(&["GEMINI_API_KEY"]), sample("AIza-example");
        /// Base URL of Gemini's models; if unset, Google's own
        base_url: Option<String> = None => BASE_URL,
            env(&["GEMINI_BASE_URL"]), sample("https://generativelanguage.googleapis.com");
    }
}

section! {
    Daytona at [daytona] {
        /// Run sandboxes at Daytona; this version has no such provider
        enabled: bool = false => SWITCH, env(&["DAYTONA_SANDBOX_EXECUTION"]),
            no_effect("this version has no `daytona` provider; sandboxes use `provider.default`");
        /// Daytona API key; this version only redacts it from logs and events
        api_key: Option<SecretString> = None => SecretText, env(&["DAYTONA_API_KEY"]), sample("dtn_example"),
            no_effect("this version has no `daytona` provider; it only redacts the key from logs and events");
        /// Base URL of Daytona's API; this version does not use it
        api_url: Option<String> = None => BASE_URL,
            env(&["DAYTONA_API_URL"]), sample("https://app.daytona.io/api"),
            no_effect("this version has no `daytona` provider");
    }
}
