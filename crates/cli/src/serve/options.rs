//! From the configuration to what the server is started with.

use atoll_config::{Config, Database, Docker, Fake, env};
use atoll_core::continuous::{Continuous, LONGEST_CHECK_S};
use atoll_core::sandbox::Resources;
use atoll_jail::Launcher;
use atoll_providers::DockerOptions;
use atoll_providers::fake::{FakeOptions, Fault, FaultAt, FaultKind};
use atoll_server::Options;
use atoll_server::options::{Limits, Model, ModelUpstream, Models, Outward, Policy, Tls};
use atoll_store::Location;
use secrecy::SecretString;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

pub fn options(config: &Config, launcher: Result<Arc<Launcher>, String>) -> Options {
    Options {
        listen: config.server.listen,
        data_dir: config.data_dir.clone(),
        database: location(&config.database),
        tls: config.server.tls.as_ref().map(|tls| Tls { certificate: tls.cert.clone(), key: tls.key.clone() }),
        hosts: config.server.hosts.clone(),
        public_url: config.server.public_url.clone(),
        metrics_public: config.metrics.public,
        policy: policy(config),
        limits: Limits {
            worker_requests: or_none(config.limits.worker_requests_per_minute),
            messages: or_none(config.limits.messages_per_minute),
            writes: or_none(config.limits.writes_per_minute),
            readers: config.limits.max_live_streams,
        },
        fake: fake(&config.providers.fake),
        outward: outward(config),
        models: models(config),
        launcher,
        docker: docker(config),
        agents: crate::agents::places(config),
        secrets: config.secret_values(),
        secret_key: config.secret.key.clone(),
    }
}

/// The server's own proxy is what the configuration says, else what is usual for programs on this machine.
fn outward(config: &Config) -> Outward {
    let variable = |names: &[&str]| {
        let values = names.iter().filter_map(|name| std::env::var(name).ok());
        values.map(|value| value.trim().to_owned()).find(|value| !value.is_empty())
    };
    let usual = || variable(&env::PROXIES).map(SecretString::from);
    Outward {
        allow_private: config.network.allow_private.clone(),
        upstream_proxy: config.network.upstream_proxy.clone().or_else(usual),
        no_proxy: variable(&env::NO_PROXY).unwrap_or_default(),
        max_bytes: config.network.max_bytes,
    }
}

/// Where models are served.
pub fn models(config: &Config) -> Models {
    let upstreams = config.models.upstreams.iter().map(|upstream| ModelUpstream {
        name: upstream.name.clone(),
        api: upstream.api,
        url: upstream.url.clone(),
        key: upstream.key.clone(),
        secret: upstream.secret.clone(),
        auth: upstream.auth,
        needs_key: upstream.needs_key,
        login: upstream.login.clone(),
    });
    let listed = config.models.listed.iter().map(|model| Model {
        name: model.name.clone(),
        upstream: model.upstream.clone(),
        model: model.model.clone(),
        context: model.context,
        price: model.price,
    });
    Models { upstreams: upstreams.collect(), listed: listed.collect() }
}

fn docker(config: &Config) -> DockerOptions {
    let Docker { socket, image, .. } = &config.docker;
    let worker = crate::launcher::worker_of_containers(config);
    DockerOptions { socket: socket.clone(), image: image.clone(), worker }
}

pub fn location(database: &Database) -> Location {
    match database {
        Database::Sqlite { path } => Location::Sqlite(path.clone()),
        Database::Postgres { url } => Location::Postgres(url.clone()),
    }
}

/// The server writes "no limit" as 0.
fn or_none(limit: Option<NonZeroU32>) -> u32 {
    limit.map_or(0, NonZeroU32::get)
}

fn policy(config: &Config) -> Policy {
    let sandbox = &config.sandbox;
    Policy {
        lease: config.messages.lease,
        heartbeat: config.heartbeat.interval,
        create_timeout_local: sandbox.create_timeout.local,
        create_timeout_docker: sandbox.create_timeout.docker,
        create_timeout_external: sandbox.create_timeout.external,
        create_timeout_fake: sandbox.create_timeout.fake,
        flush_grace: sandbox.flush_grace,
        drain_for: sandbox.drain_for,
        keep_failed_for: sandbox.keep_failed_for,
        timeout_when_done: sandbox.timeout.when_done,
        timeout_keep: sandbox.timeout.keep,
        terminal_linger: config.terminal.linger,
        retain_events: config.retention.events,
        retain_idempotency: config.retention.idempotency,
        provider: config.provider.default,
        agent: config.agent.default.clone(),
        branch_prefix: config.git.branch_prefix.clone(),
        model: sandbox.model.clone(),
        image: sandbox.image.clone(),
        snapshot: sandbox.snapshot.clone(),
        resources: Resources {
            memory_gb: Some(sandbox.memory_gb),
            cpu: Some(sandbox.cpu),
            disk_gb: Some(sandbox.disk_gb),
            pids: None,
        },
        isolation: config.local.isolation,
        protected: sandbox.protected.clone(),
        continuous: continuous(&config.continuous),
    }
}

fn continuous(limits: &atoll_config::Continuous) -> Continuous {
    let seconds = |time: Duration| u32::try_from(time.as_secs().max(1)).unwrap_or(u32::MAX);
    Continuous {
        iterations: Some(limits.iterations),
        duration_s: Some(seconds(limits.duration)),
        errors: Some(limits.errors),
        cost_usd: limits.cost_usd,
        check_timeout_s: Some(seconds(limits.check_timeout).min(LONGEST_CHECK_S)),
        ..Continuous::default()
    }
}

fn fake(fake: &Fake) -> FakeOptions {
    use atoll_config::{FaultAt as At, FaultKind as Kind};
    let faults = fake.faults.iter().map(|fault| Fault {
        at: match fault.at {
            At::Create => FaultAt::Create,
            At::Heartbeat => FaultAt::Heartbeat,
            At::Event => FaultAt::Event,
            At::Ack => FaultAt::Ack,
            At::Destroy => FaultAt::Destroy,
        },
        kind: match fault.kind {
            Kind::Fail => FaultKind::Fail,
            Kind::Delay => FaultKind::Delay,
            Kind::Drop => FaultKind::Drop,
            Kind::Duplicate => FaultKind::Duplicate,
            Kind::Crash => FaultKind::Crash,
        },
        rate: fault.rate,
    });
    FakeOptions { seed: fake.seed, faults: faults.collect() }
}
