//! `atoll sandbox show`.

use crate::connect::ConnectedClient;
use crate::event_log::log_event::LogEvent;
use crate::failure::Result;
use crate::output::Output;
use crate::references::SandboxRef;
use crate::render::cost::format_cost;
use crate::render::fields::Fields;
use crate::render::time;
use atoll_api::{EventsQuery, Sandbox};
use atoll_core::event::kind;
use atoll_core::id::SandboxId;
use atoll_core::service::status::ServiceStatus;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox show sbx_…
  atoll sandbox show sbx_… --json | jq .settings")]
pub struct Show {
    /// Sandbox: id, end of the id, name, branch or `last`
    id: SandboxRef,
}

pub async fn run(show: &Show, client: &ConnectedClient, output: &Output) -> Result {
    let id = show.id.resolve(client).await?;
    let sandbox = client.get_sandbox(id).await?;
    if output.json {
        return output.print_response(&sandbox);
    }
    sandbox_fields(&sandbox).entries("notice", list_notices(id, client).await?).print(output)
}

/// The notices in the sandbox's log, such as limits that its machine does not enforce.
async fn list_notices(id: SandboxId, client: &ConnectedClient) -> Result<Vec<String>> {
    const MAX_NOTICES: i64 = 20;
    let types = Some(kind::SANDBOX_NOTICE.to_owned());
    let query = EventsQuery { types, limit: Some(MAX_NOTICES), ..EventsQuery::default() };
    let page = client.list_events(id, &query).await?;
    Ok(page.items.into_iter().filter_map(|event| LogEvent::from(event).text()).collect())
}

fn sandbox_fields(sandbox: &Sandbox) -> Fields {
    let reason = sandbox.reason.as_ref().map(|reason| format!("{} ({})", reason.detail, reason.code));
    let labels: Vec<_> = sandbox.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    Fields::new()
        .field("id", sandbox.id)
        .optional("name", sandbox.name.as_ref())
        .field("title", &sandbox.title)
        .optional("removed", sandbox.archived.then_some("from lists"))
        .field("state", sandbox.state)
        .field("activity", sandbox.activity)
        .optional("limit", sandbox.limit_paused)
        .optional("rate limited until", sandbox.rate_limited_until.map(time::format_time))
        .optional("outcome", sandbox.outcome)
        .optional("reason", reason)
        .field("results", sandbox.results)
        .field("end", sandbox.end)
        .optional("branch", sandbox.branch.as_ref())
        .field("session", sandbox.session_id)
        .field("project", sandbox.project_id)
        .field("provider", sandbox.provider)
        .optional("provider id", sandbox.provider_id.as_ref())
        .optional("agent", sandbox.agent.as_ref())
        .optional("model", sandbox.settings.model.as_ref())
        .optional("labels", join_names(&labels))
        .optional("secrets", join_names(sandbox.settings.secrets.as_deref().unwrap_or_default()))
        .optional("exposed secrets", join_names(&sandbox.exposed_secrets))
        .entries("service", sandbox.services.iter().map(describe_service))
        .optional("turn", sandbox.turn)
        .field("events", format!("{} to {}", sandbox.first_seq, sandbox.last_seq))
        .optional("dropped events", Some(sandbox.dropped_events).filter(|count| *count > 0))
        .field("model cost", format_cost(sandbox.cost.model, sandbox.cost.model_source))
        .field("compute cost", format!("${:.4}", sandbox.cost.compute))
        .optional("created by", sandbox.created_by.as_ref())
        .field("created", time::format_time(sandbox.created_at))
        .field("state since", time::format_time(sandbox.state_since))
        .optional("last heartbeat", sandbox.last_heartbeat.map(time::format_time))
        .optional("ended", sandbox.ended_at.map(time::format_time))
}

fn describe_service(service: &ServiceStatus) -> String {
    let port = service.port.map(|port| format!(", port {port}")).unwrap_or_default();
    let restarts = match service.restarts {
        0 => String::new(),
        1 => ", 1 restart".to_owned(),
        times => format!(", {times} restarts"),
    };
    format!("{}: {}{port}{restarts}", service.name, service.state)
}

fn join_names(names: &[String]) -> Option<String> {
    (!names.is_empty()).then(|| names.join(", "))
}
