//! The status of the monitoring page: the live agents, and what the conductor finds.

use crate::auth::access::CanList;
use crate::conductor::{FollowedAgent, follow_agents};
use crate::problem::Result;
use crate::state::App;
use atoll_api::{AgentAnomaly, MonitoredAgent, MonitoringFinding, MonitoringStatus};
use atoll_core::conductor::{FleetAgent, FleetFinding, review_fleet};
use atoll_core::time::Timestamp;

/// Longest list of an agent's files.
const MAX_LISTED_FILES: usize = 10;

/// Reports the agents that the caller can see. Findings compare only these.
pub async fn read_status(app: &App, access: CanList) -> Result<MonitoringStatus> {
    let (mut agents, truncated) = follow_agents(app, false).await?;
    agents.retain(|agent| access.projects.contains(agent.row.project_id));
    let now = app.clock.now();
    let review = review_fleet(&agents.iter().map(|agent| fleet_agent(agent, now)).collect::<Vec<_>>());
    Ok(MonitoringStatus {
        at: now,
        agents: agents.iter().map(|agent| view_agent(agent, now)).collect(),
        phases: review.phases,
        findings: review.findings.into_iter().map(view_finding).collect(),
        coherence: review.coherence,
        truncated,
    })
}

fn fleet_agent(agent: &FollowedAgent, now: Timestamp) -> FleetAgent {
    let FollowedAgent { row, title, progress, .. } = agent;
    let activity = row.status.activity();
    FleetAgent {
        sandbox: row.id,
        repository: row.settings.repo.as_ref().and_then(|repo| repo.location()).map(str::to_owned),
        title: title.clone(),
        phase: progress.phase(activity),
        stuck: progress.stuck_reason(activity, row.state_since, now),
        is_anomalous: progress.anomalies.is_shown(),
        files: progress.files().map(str::to_owned).collect(),
    }
}

fn view_agent(agent: &FollowedAgent, now: Timestamp) -> MonitoredAgent {
    let FollowedAgent { row, title, progress, measure } = agent;
    let activity = row.status.activity();
    let mut files: Vec<String> = progress.files().map(str::to_owned).collect();
    files.reverse();
    files.truncate(MAX_LISTED_FILES);
    let round = |value: f64| (value * 100.0).round() / 100.0;
    MonitoredAgent {
        sandbox_id: row.id,
        session_id: row.session_id,
        project_id: row.project_id,
        title: title.clone(),
        agent: row.agent.clone(),
        activity,
        phase: progress.phase(activity),
        turn: row.status.turn(),
        last_progress_at: progress.last_progress(),
        stuck: progress.stuck_reason(activity, row.state_since, now),
        files,
        anomaly: AgentAnomaly {
            score: measure.score(),
            latency_z: round(measure.latency_z),
            error_rate: round(measure.error_rate),
            resource_ratio: round(measure.resource_ratio),
            waiting_messages: measure.waiting_messages,
            in_a_row: progress.anomalies.length(),
        },
    }
}

fn view_finding(finding: FleetFinding) -> MonitoringFinding {
    let text = finding.describe();
    let FleetFinding { kind, sandboxes, files, phase, stuck } = finding;
    MonitoringFinding { kind, text, sandbox_ids: sandboxes, files, phase, stuck }
}
