//! `atoll ls`: the sandboxes at a glance.

use crate::connect::Connect;
use crate::failure::Result;
use crate::output::Output;
use crate::pages::collect_up_to;
use crate::references::short_reference;
use crate::render::spans::Spans;
use crate::render::{style, text, time};
use crate::stored_state::ReadingClient;
use anstyle::Style;
use atoll_api::{Sandbox, SandboxListQuery};
use atoll_core::model::CostSource;
use atoll_core::sandbox::SandboxState;
use atoll_core::time::Timestamp;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll ls
  atoll ls --all
  atoll ls --json | jq -r .id

The first column is a sandbox's name or the end of its id. Every command takes it in place of the whole id.
`atoll sandbox ls` has more filters.")]
pub struct List {
    /// Include ended sandboxes
    #[arg(long, short = 'a')]
    all: bool,
    /// Include removed sandboxes
    #[arg(long)]
    archived: bool,
    /// Maximum number of sandboxes
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
    #[command(flatten)]
    connect: Connect,
}

pub async fn run(list: &List, output: &Output) -> Result {
    let client = ReadingClient::find(&list.connect, output).await?;
    let query =
        SandboxListQuery { live: !list.all && !list.archived, archived: list.archived, ..SandboxListQuery::default() };
    let load = async |limit, cursor| {
        client.list_sandboxes(&SandboxListQuery { limit: Some(limit), cursor, ..query.clone() }).await
    };
    let (sandboxes, has_more) = collect_up_to(Some(list.limit), load).await?;
    if output.json {
        return output.print_responses(&sandboxes);
    }
    let now = time::now();
    let rows: Vec<_> = sandboxes.iter().map(|sandbox| OverviewRow::new(sandbox, now)).collect();
    for line in layout_rows(&rows, output.width) {
        output.print_line(&line.to_ansi(output.colour))?;
    }
    match (rows.is_empty(), query.live) {
        (true, true) => {
            output.print_note(
                "no sandbox is running; start one with `atoll run \"PROMPT\"`, or list ended ones with --all",
            );
        }
        (true, false) => output.print_note("there are no sandboxes yet; start one with `atoll run \"PROMPT\"`"),
        (false, _) if has_more => output.print_note("more sandboxes exist; list them with --limit N"),
        (false, _) => {}
    }
    Ok(())
}

/// The columns of a sandbox, escaped. `None` is an unknown value.
#[derive(Debug, Clone)]
struct OverviewRow {
    reference: String,
    title: String,
    repository: String,
    branch: String,
    agent: String,
    activity: String,
    activity_style: Style,
    cost: String,
    age: String,
}

const COLUMN_GAP: usize = 2;
/// At least this wide, or each sandbox takes several lines.
const MIN_TITLE_WIDTH: usize = 16;
const MIN_REPOSITORY_WIDTH: usize = 8;
const MIN_BRANCH_WIDTH: usize = 14;
const ABSENT: &str = "-";

impl OverviewRow {
    fn new(sandbox: &Sandbox, now: Timestamp) -> Self {
        let (word, is_state) = match (sandbox.state, sandbox.outcome) {
            (SandboxState::Running, _) => (sandbox.activity.as_str(), false),
            (_, Some(outcome)) => (outcome.as_str(), true),
            (state, None) => (state.as_str(), true),
        };
        let repo = sandbox.settings.repo.as_ref();
        let repository = repo.and_then(|repo| repo.path.as_deref().or(repo.url.as_deref())).unwrap_or_default();
        let repository = repository.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        let or_absent = |text: &str| text::escape_line(if text.is_empty() { ABSENT } else { text });
        Self {
            reference: text::escape_line(&short_reference(sandbox)),
            title: or_absent(&sandbox.title),
            repository: or_absent(repository.trim_end_matches(".git")),
            branch: or_absent(sandbox.branch.as_deref().unwrap_or_default()),
            agent: or_absent(sandbox.agent.as_deref().unwrap_or_default()),
            activity: word.replace('_', " "),
            activity_style: if is_state { style::state_style(word) } else { activity_style(word) },
            cost: format_short_cost(sandbox),
            age: time::format_age(sandbox.created_at, now),
        }
    }
}

fn activity_style(word: &str) -> Style {
    match word {
        "working" => style::NAME,
        word if word.starts_with("waiting") || word.ends_with("limited") || word == "unreachable" => style::WARN,
        _ => Style::new(),
    }
}

fn format_short_cost(sandbox: &Sandbox) -> String {
    match (sandbox.cost.model, sandbox.cost.model_source) {
        (Some(dollars), CostSource::Estimate) => format!("≤${dollars:.2}"),
        (Some(dollars), _) => format!("${dollars:.2}"),
        (None, _) => ABSENT.to_owned(),
    }
}

/// Lays out a table, or several lines for each sandbox if the terminal is too narrow for one.
fn layout_rows(rows: &[OverviewRow], columns: Option<usize>) -> Vec<Spans> {
    if rows.is_empty() {
        return Vec::new();
    }
    match columns {
        None => layout_table(rows, None),
        Some(columns) => match fit_widths(rows, columns) {
            Some(widths) => layout_table(rows, Some(widths)),
            None => rows.iter().flat_map(|row| layout_block(row, columns)).collect(),
        },
    }
}

const HEADS: [&str; 8] = ["SANDBOX", "TITLE", "REPO", "BRANCH", "AGENT", "ACTIVITY", "COST", "AGE"];

fn table_cells(row: &OverviewRow) -> [(Style, &str); 8] {
    [
        (style::HEAD, &row.reference),
        (Style::new(), &row.title),
        (Style::new(), &row.repository),
        (Style::new(), &row.branch),
        (Style::new(), &row.agent),
        (row.activity_style, &row.activity),
        (Style::new(), &row.cost),
        (Style::new(), &row.age),
    ]
}

fn natural_widths(rows: &[OverviewRow]) -> [usize; 8] {
    let mut widths = HEADS.map(str::len);
    for row in rows {
        for (width, (cell_style, cell)) in widths.iter_mut().zip(table_cells(row)) {
            *width = (*width).max(Spans::new().styled(cell_style, cell).columns());
        }
    }
    widths
}

/// Narrows title, branch and repository until the table fits; `None` if it cannot.
fn fit_widths(rows: &[OverviewRow], columns: usize) -> Option<[usize; 8]> {
    let mut widths = natural_widths(rows);
    let total = |widths: &[usize; 8]| widths.iter().sum::<usize>() + COLUMN_GAP * (widths.len() - 1);
    for (column, least) in [(1, MIN_TITLE_WIDTH), (3, MIN_BRANCH_WIDTH), (2, MIN_REPOSITORY_WIDTH)] {
        let excess = total(&widths).saturating_sub(columns);
        widths[column] = widths[column].saturating_sub(excess).max(least.min(widths[column]));
    }
    (total(&widths) <= columns).then_some(widths)
}

fn layout_table(rows: &[OverviewRow], widths: Option<[usize; 8]>) -> Vec<Spans> {
    let widths = widths.unwrap_or_else(|| natural_widths(rows));
    let heads = HEADS.map(|head| (style::HEAD, head));
    let cells = std::iter::once(heads).chain(rows.iter().map(table_cells));
    cells
        .map(|cells| {
            cells.iter().zip(widths).fold(Spans::new(), |line, ((cell_style, cell), width)| {
                let cell = Spans::new().styled(*cell_style, *cell).clip(width);
                let padding = " ".repeat(width.saturating_sub(cell.columns()) + COLUMN_GAP);
                line.append(cell).plain(padding)
            })
        })
        .collect()
}

/// The lines of one sandbox on a narrow terminal.
fn layout_block(row: &OverviewRow, columns: usize) -> Vec<Spans> {
    let mut head = Spans::new().styled(style::HEAD, row.reference.as_str()).plain("  ");
    head = head.styled(row.activity_style, row.activity.as_str()).plain(format!("  {}", row.age));
    if row.cost != ABSENT {
        head = head.plain(format!("  {}", row.cost));
    }
    let places = [&row.repository, &row.branch, &row.agent];
    let places: Vec<_> = places.into_iter().filter(|place| *place != ABSENT).map(String::as_str).collect();
    let places = Spans::new().plain("  ").styled(style::FAINT, places.join(" · ")).clip(columns);
    if columns.saturating_sub(head.columns() + COLUMN_GAP) >= MIN_TITLE_WIDTH {
        return vec![head.plain(format!("  {}", row.title)).clip(columns), places];
    }
    vec![head.clip(columns), Spans::new().plain(format!("  {}", row.title)).clip(columns), places]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(reference: &str, title: &str) -> OverviewRow {
        OverviewRow {
            reference: reference.to_owned(),
            title: title.to_owned(),
            repository: "site".to_owned(),
            branch: "atoll/make-the-parser-faster".to_owned(),
            agent: "claude".to_owned(),
            activity: "waiting message".to_owned(),
            activity_style: Style::new(),
            cost: "$0.12".to_owned(),
            age: "3m".to_owned(),
        }
    }

    fn shown(columns: Option<usize>) -> String {
        let rows = [row("zj4ref", "make the parser faster"), row("web", "日本語のタイトル and more words")];
        let lines: Vec<_> = layout_rows(&rows, columns).iter().map(|line| line.to_ansi(false)).collect();
        if let Some(columns) = columns {
            let widest = layout_rows(&rows, Some(columns)).iter().map(Spans::columns).max().unwrap_or(0);
            // The last cell is padded.
            assert!(widest <= columns + COLUMN_GAP, "{widest} columns of {columns}");
        }
        lines.join("\n")
    }

    #[test]
    fn fits_every_terminal() {
        insta::assert_snapshot!(
            "overview",
            [None, Some(120), Some(100), Some(80), Some(40)]
                .map(|columns| format!("──── {columns:?}\n{}", shown(columns)))
                .join("\n")
        );
        for columns in 20..200 {
            shown(Some(columns));
        }
        assert!(layout_rows(&[], Some(80)).is_empty());
    }
}
