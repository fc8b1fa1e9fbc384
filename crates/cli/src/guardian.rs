//! `atoll guardian`: shows what the guardian found and did, and what it would have done.

use crate::arguments::{parse_json_file, parse_word};
use crate::connect::{Connect, ConnectedClient};
use crate::failure::Result;
use crate::output::Output;
use crate::pages::collect_up_to;
use crate::references::SandboxRef;
use crate::render::fields::Fields;
use crate::render::{table, time};
use atoll_api::{
    GuardianReplay, GuardianStatus, Intervention, InterventionListQuery, PageQuery, ReplayGuardian, ReplayStep,
};
use atoll_core::guardian::{Detector, GuardianAction, GuardianSettings, HeldBack, InterventionOutcome};
use atoll_core::id::{InterventionId, ProjectId};

#[derive(Debug, clap::Args)]
pub struct GuardianArgs {
    #[command(flatten)]
    connect: Connect,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Show how close each detector is to a finding in a sandbox
    #[command(after_help = "Examples:\n  atoll guardian status last")]
    Status {
        /// Sandbox: id, a part of it, name, branch or `last`
        sandbox: SandboxRef,
    },
    /// List what the guardian found and did, newest first
    #[command(after_help = "\
Examples:
  atoll guardian interventions
  atoll guardian interventions last
  atoll guardian interventions --open --action escalate")]
    #[command(alias = "ls")]
    Interventions(List),
    /// Show an intervention with its evidence and its outcome
    #[command(after_help = "Examples:\n  atoll guardian explain itv_…")]
    Explain {
        /// Intervention: id, as `atoll guardian interventions` prints it
        intervention: InterventionId,
    },
    /// Replay a stored run: what would the guardian have done?
    #[command(after_help = "\
Examples:
  atoll guardian replay last
  atoll guardian replay last --act restart
  atoll guardian replay last --settings guardian.json

Nothing is sent or stored.")]
    Replay(Replay),
}

#[derive(Debug, clap::Args)]
struct List {
    /// Sandbox [default: all sandboxes]
    sandbox: Option<SandboxRef>,
    /// Filter by project
    #[arg(long, value_name = "ID", conflicts_with = "sandbox")]
    project: Option<ProjectId>,
    /// Filter by detector
    #[arg(long, conflicts_with = "sandbox", value_parser = parse_word::<Detector>)]
    detector: Option<Detector>,
    /// Filter by action
    #[arg(long, conflicts_with = "sandbox", value_parser = parse_word::<GuardianAction>)]
    action: Option<GuardianAction>,
    /// Only interventions whose outcome is open
    #[arg(long, conflicts_with = "sandbox")]
    open: bool,
    /// Maximum number of rows
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
    /// List all rows
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

#[derive(Debug, clap::Args)]
struct Replay {
    /// Sandbox: id, a part of it, name, branch or `last`
    sandbox: SandboxRef,
    /// Strongest action to try [default: the sandbox's own]
    #[arg(long, value_name = "ACTION", value_parser = parse_word::<GuardianAction>)]
    act: Option<GuardianAction>,
    /// Settings to try: a file with JSON [default: the sandbox's own]
    #[arg(long, value_name = "FILE", value_parser = parse_json_file::<GuardianSettings>)]
    settings: Option<GuardianSettings>,
}

pub async fn run(guardian: &GuardianArgs, output: &Output) -> Result {
    let client = ConnectedClient::find(&guardian.connect)?;
    match &guardian.command {
        Command::Status { sandbox } => {
            let status = client.get_guardian(sandbox.resolve(&client).await?).await?;
            print_status(&status, output)
        }
        Command::Interventions(list) => list_interventions(&client, list, output).await,
        Command::Explain { intervention } => explain(&client, *intervention, output).await,
        Command::Replay(replay) => {
            let id = replay.sandbox.resolve(&client).await?;
            let mut settings = replay.settings.clone();
            if replay.act.is_some() {
                let own = client.get_sandbox(id).await?.settings.guardian;
                settings.get_or_insert_with(|| own.unwrap_or_default()).act = replay.act;
            }
            let replayed = client.replay_guardian(id, &ReplayGuardian { guardian: settings }).await?;
            print_replay(&replayed, output)
        }
    }
}

async fn list_interventions(client: &ConnectedClient, list: &List, output: &Output) -> Result {
    let most = (!list.all).then_some(list.limit);
    let (found, has_more) = match &list.sandbox {
        Some(sandbox) => {
            let id = sandbox.resolve(client).await?;
            let load = |limit, cursor| async move {
                client.list_sandbox_interventions(id, &PageQuery { limit: Some(limit), cursor }).await
            };
            collect_up_to(most, load).await?
        }
        None => {
            let load = |limit, cursor| async move {
                let query = InterventionListQuery {
                    project: list.project,
                    detector: list.detector,
                    action: list.action,
                    open: list.open.then_some(true),
                    limit: Some(limit),
                    cursor,
                };
                client.list_interventions(&query).await
            };
            collect_up_to(most, load).await?
        }
    };
    let now = time::now();
    table::print_list(output, &found, &["ID", "SANDBOX", "AGE", "ACTION", "OUTCOME", "PROBLEM"], |one| {
        vec![
            table::cell(one.id.to_string()),
            table::cell(one.sandbox_id.to_string()),
            table::cell(time::format_age(one.created_at, now)),
            table::cell(describe_action(one.action, one.held_back)),
            table::cell(one.outcome.map_or("open", InterventionOutcome::as_str)),
            table::cell(&one.summary),
        ]
    })?;
    if has_more && !output.json {
        output.print_note("more rows exist; list them with --all");
    }
    Ok(())
}

fn describe_action(action: GuardianAction, held_back: Option<HeldBack>) -> String {
    match held_back {
        Some(reason) => format!("{action} ({reason})"),
        None => action.to_string(),
    }
}

async fn explain(client: &ConnectedClient, id: InterventionId, output: &Output) -> Result {
    let found = client.get_intervention(id).await?;
    if output.json {
        return output.print_response(&found);
    }
    let evidence: Vec<_> = found.evidence.iter().map(ToString::to_string).collect();
    Fields::new()
        .field("problem", &found.summary)
        .field("detector", found.detector)
        .field("evidence", format!("events {}", evidence.join(", ")))
        .field("action", describe_action(found.action, found.held_back))
        .optional("message", found.text.as_ref())
        .optional("message id", found.message_id)
        .field("outcome", describe_outcome(&found))
        .optional("next sandbox", found.next_sandbox_id)
        .field("sandbox", found.sandbox_id)
        .field("time", time::format_time(found.created_at))
        .print(output)?;
    let first = found.evidence.first().copied().unwrap_or(found.seq);
    output.print_note(&format!("`atoll events {} --since {}` shows the events", found.sandbox_id, first - 1));
    Ok(())
}

fn describe_outcome(found: &Intervention) -> String {
    let words = match found.outcome {
        None => return "open".to_owned(),
        Some(InterventionOutcome::Stopped) => "the agent did something else",
        Some(InterventionOutcome::Continued) => "the agent continued",
        Some(InterventionOutcome::TurnEnded) => "the turn ended",
    };
    found.outcome_seq.map_or_else(|| words.to_owned(), |seq| format!("{words} (event {seq})"))
}

fn print_status(status: &GuardianStatus, output: &Output) -> Result {
    if output.json {
        return output.print_response(status);
    }
    output.print_line(&format!("the guardian's strongest action is {}", status.act))?;
    let rows: Vec<Vec<_>> = status
        .detectors
        .iter()
        .map(|one| {
            let at = one.at.map_or_else(|| "-".to_owned(), |at| at.to_string());
            let cells = [one.detector.to_string(), one.count.to_string(), at, one.act.to_string()];
            cells.iter().map(table::cell).collect()
        })
        .collect();
    table::print_table(output, &["DETECTOR", "COUNT", "FINDING AT", "STRONGEST ACTION"], &rows)?;
    let Some(judge) = &status.judge else { return Ok(()) };
    let counts =
        format!("judge: {} requests, {} bad responses, ${:.4}", judge.requests, judge.bad_responses, judge.cost_usd);
    output.print_line(&counts)?;
    match &judge.report {
        Some(report) => {
            let head = format!("alignment {:.2}, {}: {}", report.alignment, report.phase, report.activity);
            output.print_line(&crate::render::text::escape_line(&head))
        }
        None => Ok(()),
    }
}

fn print_replay(replayed: &GuardianReplay, output: &Output) -> Result {
    if output.json {
        return output.print_response(replayed);
    }
    if replayed.steps.is_empty() {
        return output.print_line(&format!("nothing: {} events show no problem", replayed.events));
    }
    let rows: Vec<Vec<_>> = replayed.steps.iter().map(replay_row).collect();
    table::print_table(output, &["EVENT", "TIME", "DETECTOR", "ACTION", "THEN", "PROBLEM"], &rows)?;
    if replayed.truncated {
        output.print_note("the log has more events or findings than a replay shows");
    }
    Ok(())
}

fn replay_row(step: &ReplayStep) -> Vec<table::Cell> {
    vec![
        table::cell(step.seq.to_string()),
        table::cell(time::format_time(step.at)),
        table::cell(step.detector.as_str()),
        table::cell(describe_action(step.action, step.held_back)),
        table::cell(step.outcome.map_or("-", InterventionOutcome::as_str)),
        table::cell(&step.summary),
    ]
}
