//! Conversions from stored rows to the types of the API.

use super::create::CreatedSandbox;
use crate::problem::Result;
use atoll_api::{
    Approval, ContinuousProgress, Cost, HostTraffic, ModelUsage, NetworkStatus, SandboxLimits, TrafficTotal,
    WorkerStart,
};
use atoll_core::budget::Budget;
use atoll_core::continuous::describe_stop;
use atoll_core::id::{ProjectId, SandboxId};
use atoll_core::message::MessageState;
use atoll_core::model::{CostParts, CostSource, ModelCost, ModelTokens};
use atoll_core::principal::TokenKind;
use atoll_core::sandbox::{Activity, Network, NetworkPolicy, Settings};
use atoll_core::secret::Exposure;
use atoll_core::time::Timestamp;
use atoll_store::messages::MessageRow;
use atoll_store::model_usage::{self, UsageScope};
use atoll_store::projects::{DefaultsJson, ProjectRow};
use atoll_store::sandboxes::{self, SandboxRow};
use atoll_store::secrets::SecretRow;
use atoll_store::sessions::{self, SessionRow};
use atoll_store::tokens::{TokenHolder, TokenRow};
use atoll_store::users::UserRow;
use atoll_store::{Tx, approvals, budgets, continuous};
use secrecy::ExposeSecret;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

#[allow(clippy::cast_precision_loss, reason = "micro-dollars are far from the limit of f64")]
pub fn to_dollars(micros: i64) -> f64 {
    micros as f64 / 1e6
}

/// Cuts a list to a page of `limit` items. `items` holds one item more if there is a next page.
pub fn cut_page<T>(list: &str, mut items: Vec<T>, limit: i64, position: impl Fn(&T) -> String) -> atoll_api::Page<T> {
    let limit = usize::try_from(limit).unwrap_or(0);
    let has_more = items.len() > limit;
    items.truncate(limit);
    let next_cursor = items.last().filter(|_| has_more).map(|last| crate::cursor::encode_cursor(list, &position(last)));
    atoll_api::Page { items, next_cursor }
}

/// Shown in place of a variable's value.
const HIDDEN_VALUE: &str = "***";

/// Replaces hidden values of variables by the stored ones, so that a client can change the defaults that it has read.
pub fn restore_hidden_values(mut defaults: DefaultsJson, stored: &DefaultsJson) -> DefaultsJson {
    let mut stored = stored.clone();
    let stored = environments(&mut stored);
    for (owner, env) in environments(&mut defaults) {
        for (name, value) in env.iter_mut().filter(|(_, value)| **value == HIDDEN_VALUE) {
            if let Some(stored) = stored.get(&owner).and_then(|stored| stored.get(name)) {
                *value = stored.clone();
            }
        }
    }
    defaults
}

/// The variables in a project's defaults: those of its sandboxes, and those of each service by its name.
fn environments(defaults: &mut DefaultsJson) -> BTreeMap<Option<String>, &mut Map<String, Value>> {
    let mut found = BTreeMap::new();
    for (field, value) in defaults {
        match (field.as_str(), value) {
            ("env", Value::Object(env)) => drop(found.insert(None, env)),
            ("services", Value::Array(services)) => {
                for service in services {
                    let name = service.get("name").and_then(Value::as_str).map(str::to_owned);
                    if let (Some(name), Some(Value::Object(env))) = (name, service.get_mut("env")) {
                        found.insert(Some(name), env);
                    }
                }
            }
            _ => {}
        }
    }
    found
}

/// A sandbox's title and branch, which its session has.
#[derive(Debug, Clone, Default)]
pub struct SessionFacts {
    pub title: String,
    pub branch: Option<String>,
}

impl From<&SessionRow> for SessionFacts {
    fn from(row: &SessionRow) -> Self {
        Self { title: row.title.clone(), branch: row.branch.clone() }
    }
}

fn view_sandbox(
    row: SandboxRow,
    session: SessionFacts,
    labels: BTreeMap<String, String>,
    cost: ModelCost,
) -> atoll_api::Sandbox {
    let mut settings = row.settings;
    // The values of variables can be secrets, so only their names are shown.
    let of_services = settings.services.iter_mut().flat_map(|service| service.env.values_mut());
    settings.env.values_mut().chain(of_services).for_each(|value| *value = HIDDEN_VALUE.into());
    atoll_api::Sandbox {
        id: row.id,
        name: row.name,
        title: session.title,
        branch: session.branch.or_else(|| settings.repo.as_ref()?.branch.clone()),
        archived: row.is_archived,
        session_id: row.session_id,
        project_id: row.project_id,
        state: row.state,
        activity: row.status.activity(),
        limit_paused: row.status.pausing_limit(),
        rate_limited_until: row.rate_limited_until.filter(|_| row.status.activity() == Activity::RateLimited),
        outcome: row.outcome,
        reason: row.reason,
        results: row.results,
        end: row.end,
        provider: row.provider,
        provider_id: row.provider_id,
        agent: row.agent,
        labels,
        exposed_secrets: std::mem::take(&mut settings.exposed_secrets),
        settings,
        turn: row.status.turn(),
        first_seq: row.first_seq,
        last_seq: row.last_seq,
        log_bytes: row.log_bytes.saturating_add(row.blob_bytes),
        dropped_events: row.dropped_events,
        last_heartbeat: row.last_heartbeat,
        cost: Cost {
            model: cost.micros.map(to_dollars),
            model_source: cost.source,
            compute: to_dollars(row.cost_compute_micros),
        },
        trace_id: None,
        usage: None,
        continuous: None,
        services: Vec::new(),
        created_by: row.created_by,
        created_at: row.created_at,
        updated_at: row.updated_at,
        state_since: row.state_since,
        ended_at: row.ended_at,
        worker: None,
    }
}

/// The view of a sandbox with its title, its labels and its cost.
pub async fn load_sandbox_view(tx: &mut dyn Tx, row: SandboxRow) -> Result<atoll_api::Sandbox> {
    let labels = sandboxes::list_labels(tx, row.id).await?;
    let cost = load_cost(tx, UsageScope::Sandbox(row.id)).await?;
    let session = sessions::find_session(tx, row.session_id).await?;
    let facts = session.as_ref().map(SessionFacts::from).unwrap_or_default();
    Ok(view_sandbox(row, facts, labels, cost))
}

/// Loads the model cost of a sandbox, session, project or user.
async fn load_cost(tx: &mut dyn Tx, scope: UsageScope<'_>) -> Result<ModelCost> {
    let parts = model_usage::list_cost_parts(tx, scope).await?;
    Ok(parts.iter().map(CostParts::resolve).fold(ModelCost::NONE, ModelCost::plus))
}

/// The view of a new sandbox, with the command that starts its worker.
pub fn view_new_sandbox(created: CreatedSandbox, public_url: &str) -> atoll_api::Sandbox {
    let mut view = view_sandbox(created.sandbox, created.session, created.labels, ModelCost::NONE);
    view.worker = created.worker.map(|token| view_worker_start(view.id, token.token.expose_secret(), public_url));
    view
}

pub fn view_worker_start(id: SandboxId, token: &str, public_url: &str) -> WorkerStart {
    WorkerStart {
        token: Some(token.to_owned()),
        command: format!("atoll-worker --server {public_url} --sandbox {id} --token-file FILE --spool DIR --stdin"),
    }
}

/// Loads the progress of a sandbox in continuous mode.
pub async fn load_progress(tx: &mut dyn Tx, id: SandboxId, settings: &Settings) -> Result<Option<ContinuousProgress>> {
    let Some(settings) = &settings.continuous else { return Ok(None) };
    let limits = settings.loop_limits();
    let Some(record) = continuous::find_continuous_record(tx, id).await? else { return Ok(None) };
    let progress = record.progress;
    Ok(Some(ContinuousProgress {
        phase: progress.phase,
        stopped: progress.stopped,
        detail: progress.stopped.map(|stop| describe_stop(stop, &progress, &limits)),
        iteration: progress.iteration,
        iterations: limits.max_iterations,
        errors: progress.errors,
        checks: record.checks,
    }))
}

/// Loads the model usage of a sandbox, session, project or user.
pub async fn load_usage(tx: &mut dyn Tx, scope: UsageScope<'_>) -> Result<Option<ModelUsage>> {
    let total = model_usage::sum_usage(tx, scope).await?;
    let ModelTokens { input, output, cache_read, cache_write } = total.tokens;
    let ModelCost { micros, source: cost_source } = load_cost(tx, scope).await?;
    let cost = micros.map(to_dollars);
    Ok(Some(ModelUsage { requests: total.requests, input, output, cache_read, cache_write, cost, cost_source }))
}

/// The view of a session with its cost.
pub async fn load_session_view(tx: &mut dyn Tx, row: SessionRow) -> Result<atoll_api::Session> {
    let ModelCost { micros, source } = load_cost(tx, UsageScope::Session(row.id)).await?;
    let micros = match source {
        // The row also counts sandboxes that were deleted.
        CostSource::Prices | CostSource::Estimate => Some(row.cost_micros),
        CostSource::Agent | CostSource::Unknown => micros,
    };
    Ok(view_session(row, ModelCost { micros, source }))
}

fn view_session(row: SessionRow, cost: ModelCost) -> atoll_api::Session {
    atoll_api::Session {
        id: row.id,
        project_id: row.project_id,
        agent: row.agent,
        title: row.title,
        branch: row.branch,
        state: row.state,
        sandbox_id: row.sandbox_id,
        last_sandbox_id: row.last_sandbox_id,
        native_id: row.native_id,
        transcript: row.transcript,
        forked_from: row.forked_from,
        cost: cost.micros.map(to_dollars),
        cost_source: cost.source,
        usage: None,
        archived: row.is_archived,
        attention: row.attention,
        created_by: row.created_by,
        created_at: row.created_at,
        updated_at: row.updated_at,
    }
}

pub fn view_message(row: MessageRow) -> atoll_api::Message {
    let is_leased = row.delivery_status.state == MessageState::Leased;
    atoll_api::Message {
        id: row.id,
        session_id: row.session_id,
        position: row.position,
        message_type: row.message_type,
        delivery: row.delivery,
        content: row.content,
        sender: row.sender,
        state: row.delivery_status.state,
        lease_until: row.delivery_status.lease.filter(|_| is_leased).map(|lease| lease.expires_at),
        how: row.delivery_status.delivery_method,
        turn: row.delivery_status.turn,
        reason: row.reason,
        created_at: row.created_at,
        updated_at: row.updated_at,
    }
}

pub fn view_approval(row: approvals::ApprovalRow) -> Approval {
    Approval {
        sandbox_id: row.sandbox_id,
        approval_id: row.approval_id,
        state: row.state,
        request: row.data,
        decision: row.decision,
        reason: row.reason,
        answers: row.answers,
        answered_by: row.answered_by,
        requested_at: row.requested_at,
        answered_at: row.answered_at,
    }
}

/// The limits of a sandbox and their use.
pub async fn load_limits_view(tx: &mut dyn Tx, row: &SandboxRow) -> Result<SandboxLimits> {
    let cost = load_cost(tx, UsageScope::Sandbox(row.id)).await?;
    Ok(SandboxLimits {
        limits: row.settings.limits.unwrap_or_default(),
        limit_paused: row.status.pausing_limit(),
        activity: row.status.activity(),
        turns: row.status.turn().unwrap_or(0),
        cost_usd: cost.micros.map(to_dollars),
        cost_source: cost.source,
    })
}

pub fn view_network(row: &SandboxRow, hosts: Vec<HostTraffic>) -> NetworkStatus {
    let network = row.settings.network.clone();
    let network = network.unwrap_or(Network { policy: NetworkPolicy::None, allow: Vec::new() });
    let total = hosts.iter().fold(TrafficTotal::default(), |sum, line| TrafficTotal {
        sent: sum.sent.saturating_add(line.sent),
        received: sum.received.saturating_add(line.received),
        connections: sum.connections.saturating_add(line.connections),
        refused: sum.refused.saturating_add(line.refused),
    });
    NetworkStatus { policy: network.policy, allow: network.allow, hosts, total }
}

pub fn view_project(row: ProjectRow) -> atoll_api::Project {
    let mut defaults = row.defaults;
    for env in environments(&mut defaults).into_values() {
        env.values_mut().for_each(|value| *value = HIDDEN_VALUE.into());
    }
    atoll_api::Project {
        id: row.id,
        name: row.name,
        is_default: row.is_default,
        repo: row.repo,
        defaults,
        budget: row.budget.map(view_budget),
        usage: None,
        created_at: row.created_at,
        updated_at: row.updated_at,
    }
}

fn view_budget(budget: Budget) -> atoll_api::Budget {
    atoll_api::Budget { usd: budget.usd, per: budget.per, spent: None, left: None, from: None, until: None }
}

/// Loads a project's budget with the amount spent in the current period.
pub async fn load_budget(
    tx: &mut dyn Tx,
    project: ProjectId,
    budget: Option<Budget>,
    now: Timestamp,
) -> Result<Option<atoll_api::Budget>> {
    let Some(budget) = budget else { return Ok(None) };
    let period = budget.per.period_at(now);
    let spent = budgets::sum_costs(tx, project, &period).await?;
    let left = budget.limit_micros().saturating_sub(spent).max(0);
    Ok(Some(atoll_api::Budget {
        spent: Some(to_dollars(spent)),
        left: Some(to_dollars(left)),
        from: period.starts_at(),
        until: period.ends_at(),
        ..view_budget(budget)
    }))
}

pub fn view_user(row: UserRow) -> atoll_api::User {
    let UserRow { id, name, role, created_at, updated_at } = row;
    atoll_api::User { id, name, role, usage: None, created_at, updated_at }
}

/// The view of a user's or service's token. Worker tokens have none.
pub fn view_token(row: TokenRow) -> Option<atoll_api::Token> {
    let (kind, user_id, role, project_id) = match row.holder {
        TokenHolder::User { id, role } => (TokenKind::User, Some(id), role, None),
        TokenHolder::Service { role, project } => (TokenKind::Service, None, role, project),
        TokenHolder::Worker { .. } => return None,
    };
    Some(atoll_api::Token {
        id: row.id,
        kind,
        name: row.name,
        user_id,
        role,
        project_id,
        created_at: row.created_at,
        expires_at: row.expires_at,
        token: None,
    })
}

pub fn view_secret(row: SecretRow) -> atoll_api::Secret {
    let exposed = row.expose.is_some();
    let (expose, expose_file) = match row.expose {
        None => (None, None),
        Some(Exposure::Variable(name)) => (Some(name), None),
        Some(Exposure::File(path)) => (None, Some(path)),
    };
    atoll_api::Secret {
        id: row.id,
        name: row.name,
        project_id: row.project_id,
        upstreams: row.upstreams,
        exposed,
        expose,
        expose_file,
        created_by: row.created_by,
        created_at: row.created_at,
        updated_at: row.updated_at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_hidden_value_stands_for_the_stored_one() {
        let object = |value: Value| -> DefaultsJson { serde_json::from_value(value).unwrap() };
        let stored = object(json!({"env": {"A": "1", "B": "2"}}));
        let changed = object(json!({"agent": "demo", "env": {"A": "***", "B": "3", "C": "***"}}));
        let expected = json!({"agent": "demo", "env": {"A": "1", "B": "3", "C": "***"}});
        assert_eq!(Value::from(restore_hidden_values(changed, &stored)), expected);
        let stored = object(json!({"services": [{"name": "a", "env": {"P": "1"}}, {"name": "b", "env": {"P": "2"}}]}));
        let changed =
            object(json!({"services": [{"name": "b", "env": {"P": "***"}}, {"name": "c", "env": {"P": "***"}}]}));
        let expected = json!({"services": [{"name": "b", "env": {"P": "2"}}, {"name": "c", "env": {"P": "***"}}]});
        assert_eq!(Value::from(restore_hidden_values(changed, &stored)), expected);
    }
}
