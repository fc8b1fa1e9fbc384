//! The results as a table and as JSON.

use crate::machine::Machine;
use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt;
use std::path::Path;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FigureVerdict {
    Pass,
    /// The figure missed its bar.
    Missed,
    /// The measurement failed.
    Failed,
}

impl FigureVerdict {
    pub const fn from_met(met: bool) -> Self {
        if met { Self::Pass } else { Self::Missed }
    }

    const fn table_mark(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Missed => "MISSED",
            Self::Failed => "FAILED",
        }
    }
}

/// One row of the table.
#[derive(Debug, Serialize)]
pub struct Figure {
    pub name: String,
    pub measured: String,
    pub floor: String,
    pub bar: String,
    pub verdict: FigureVerdict,
    /// The raw numbers, for the JSON file.
    pub numbers: Value,
}

impl Figure {
    pub fn from_error(name: &str, error: &anyhow::Error) -> Self {
        Self {
            name: name.to_owned(),
            measured: "—".into(),
            floor: "—".into(),
            bar: "—".into(),
            verdict: FigureVerdict::Failed,
            numbers: json!({ "error": format!("{error:#}") }),
        }
    }

    fn table_cells(&self) -> [&str; 5] {
        [&self.name, &self.measured, &self.floor, &self.bar, self.verdict.table_mark()]
    }
}

#[derive(Debug, Serialize)]
pub struct Report {
    pub machine: Machine,
    pub quick: bool,
    pub figures: Vec<Figure>,
}

impl Report {
    pub fn all_met(&self) -> bool {
        self.figures.iter().all(|figure| figure.verdict == FigureVerdict::Pass)
    }

    pub fn has_failure(&self) -> bool {
        self.figures.iter().any(|figure| figure.verdict == FigureVerdict::Failed)
    }

    pub fn write_json(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
    }
}

const TABLE_HEADER: [&str; 5] = ["figure", "measured", "floor", "bar", ""];

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.machine)?;
        let lines: Vec<[&str; 5]> =
            [TABLE_HEADER].into_iter().chain(self.figures.iter().map(Figure::table_cells)).collect();
        let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
        let widths: [usize; 5] = std::array::from_fn(width);
        for (index, line) in lines.iter().enumerate() {
            let cells = line.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
            if index == 0 {
                writeln!(f, "{}", "─".repeat(widths.iter().sum::<usize>() + 8))?;
            }
        }
        for figure in self.figures.iter().filter(|figure| figure.verdict == FigureVerdict::Failed) {
            writeln!(f, "{}: {}", figure.name, figure.numbers["error"].as_str().unwrap_or_default())?;
        }
        let quick = self.quick.then(|| "the run used small sizes (--quick)".to_owned());
        for warning in self.machine.reliability_warnings().into_iter().chain(quick) {
            writeln!(f, "warning: {warning}")?;
        }
        Ok(())
    }
}

/// Formats a number with a comma between thousands.
pub fn group_digits(number: f64) -> String {
    let digits = format!("{number:.0}");
    let groups = digits.as_bytes().rchunks(3).rev().map(|group| String::from_utf8_lossy(group).into_owned());
    groups.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_get_commas() {
        assert_eq!(
            (group_digits(12.4), group_digits(1234.0), group_digits(1_000_000.0)),
            ("12".into(), "1,234".into(), "1,000,000".into())
        );
    }
}
