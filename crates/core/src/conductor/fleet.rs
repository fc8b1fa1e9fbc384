//! How the agents fit together: duplicate work, shared files, crowded phases, coherence.

use super::phase::Phase;
use super::progress::StuckReason;
use crate::id::SandboxId;
use crate::string_enum;
use std::collections::{BTreeMap, BTreeSet};

/// Longest list of files in a finding.
const MAX_LISTED_FILES: usize = 20;
/// Findings of a review.
const MAX_FINDINGS: usize = 200;
/// Agents below this number do not crowd a phase.
const MIN_CROWD: usize = 4;
/// A phase with more than this share of the agents is crowded, in percent.
const CROWDED_PERCENT: usize = 75;

string_enum! {
    "kind of finding"
    FindingKind {
        /// Two agents have the same task in the same repository.
        DuplicateWork = "duplicate_work",
        /// Two agents edited the same files of the same repository.
        SharedFiles = "shared_files",
        /// An agent does not get on.
        Stuck = "stuck",
        /// An agent's measures were unusual three times in a row.
        Anomaly = "anomaly",
        /// Most agents are in one phase.
        CrowdedPhase = "crowded_phase",
    }
}

impl FindingKind {
    /// How much a finding of this kind lowers the coherence of each agent that it names, in percent.
    const fn weight_percent(self) -> u32 {
        match self {
            Self::DuplicateWork => 100,
            Self::SharedFiles | Self::Stuck => 70,
            Self::Anomaly => 50,
            Self::CrowdedPhase => 30,
        }
    }
}

/// An agent as its peers see it.
#[derive(Debug, Clone)]
pub struct FleetAgent {
    pub sandbox: SandboxId,
    /// Location of its repository.
    pub repository: Option<String>,
    pub title: String,
    pub phase: Phase,
    pub stuck: Option<StuckReason>,
    pub is_anomalous: bool,
    /// The newest files that it edited.
    pub files: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetFinding {
    pub kind: FindingKind,
    pub sandboxes: Vec<SandboxId>,
    /// The files that they share, at most twenty.
    pub files: Vec<String>,
    pub phase: Option<Phase>,
    pub stuck: Option<StuckReason>,
}

impl FleetFinding {
    const fn new(kind: FindingKind, sandboxes: Vec<SandboxId>) -> Self {
        Self { kind, sandboxes, files: Vec::new(), phase: None, stuck: None }
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct FleetReview {
    /// Number of agents in each phase that has any.
    pub phases: BTreeMap<Phase, u32>,
    /// The most important first.
    pub findings: Vec<FleetFinding>,
    /// From 0 to 1: 1 if nothing was found. `None` without agents.
    pub coherence: Option<f64>,
}

impl FleetFinding {
    /// Describes the finding as a sentence for people.
    pub fn describe(&self) -> String {
        let count = self.sandboxes.len();
        match self.kind {
            FindingKind::DuplicateWork => format!("{count} agents have the same task in the same repository."),
            FindingKind::SharedFiles => format!("{count} agents edited the same files: {}.", self.files.join(", ")),
            FindingKind::Stuck => match self.stuck {
                Some(StuckReason::RepeatedCall) => "The agent makes the same call again and again.".to_owned(),
                Some(StuckReason::RepeatedErrors) => "The agent's newest calls all failed.".to_owned(),
                Some(StuckReason::NoProgress) | None => {
                    "The agent says that it works, but sends no work event.".to_owned()
                }
            },
            FindingKind::Anomaly => {
                "The agent's latency, errors, resources or queue were unusual three times in a row.".to_owned()
            }
            FindingKind::CrowdedPhase => {
                format!("{count} agents are {} at the same time.", self.phase.unwrap_or(Phase::Waiting))
            }
        }
    }
}

/// Reviews all agents. Its work grows with the number of agents and their files, not with pairs of agents.
pub fn review_fleet(agents: &[FleetAgent]) -> FleetReview {
    let mut phases: BTreeMap<Phase, u32> = BTreeMap::new();
    for agent in agents {
        *phases.entry(agent.phase).or_default() += 1;
    }
    let mut findings = find_duplicates(agents);
    findings.extend(find_shared_files(agents));
    for agent in agents {
        if agent.stuck.is_some() {
            findings.push(FleetFinding {
                stuck: agent.stuck,
                ..FleetFinding::new(FindingKind::Stuck, vec![agent.sandbox])
            });
        }
        if agent.is_anomalous {
            findings.push(FleetFinding::new(FindingKind::Anomaly, vec![agent.sandbox]));
        }
    }
    findings.extend(find_crowd(agents));
    let coherence = measure_coherence(agents, &findings);
    findings.truncate(MAX_FINDINGS);
    FleetReview { phases, findings, coherence }
}

/// The words of a title, so that case and punctuation do not matter.
fn normalise_title(title: &str) -> String {
    let words = title.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect::<Vec<_>>().join(" ")
}

fn find_duplicates(agents: &[FleetAgent]) -> Vec<FleetFinding> {
    let mut by_task: BTreeMap<(&str, String), Vec<SandboxId>> = BTreeMap::new();
    for agent in agents {
        let title = normalise_title(&agent.title);
        if let Some(repository) = agent.repository.as_deref().filter(|_| !title.is_empty() && title != "untitled") {
            by_task.entry((repository, title)).or_default().push(agent.sandbox);
        }
    }
    let several = by_task.into_values().filter(|sandboxes| sandboxes.len() > 1);
    several.map(|sandboxes| FleetFinding::new(FindingKind::DuplicateWork, sandboxes)).collect()
}

fn find_shared_files(agents: &[FleetAgent]) -> Vec<FleetFinding> {
    let mut by_file: BTreeMap<(&str, &str), BTreeSet<SandboxId>> = BTreeMap::new();
    for agent in agents {
        let Some(repository) = agent.repository.as_deref() else { continue };
        for file in &agent.files {
            by_file.entry((repository, file)).or_default().insert(agent.sandbox);
        }
    }
    let mut by_agents: BTreeMap<BTreeSet<SandboxId>, Vec<String>> = BTreeMap::new();
    for ((_, file), sandboxes) in by_file {
        if sandboxes.len() > 1 {
            let files = by_agents.entry(sandboxes).or_default();
            if files.len() < MAX_LISTED_FILES {
                files.push(file.to_owned());
            }
        }
    }
    let found = by_agents.into_iter();
    found
        .map(|(sandboxes, files)| FleetFinding {
            files,
            ..FleetFinding::new(FindingKind::SharedFiles, sandboxes.into_iter().collect())
        })
        .collect()
}

fn find_crowd(agents: &[FleetAgent]) -> Option<FleetFinding> {
    let phases = Phase::ALL.iter().filter(|phase| **phase != Phase::Starting);
    phases.copied().find_map(|phase| {
        let crowd: Vec<SandboxId> =
            agents.iter().filter(|agent| agent.phase == phase).map(|agent| agent.sandbox).collect();
        let is_crowded = crowd.len() >= MIN_CROWD && crowd.len() * 100 > agents.len() * CROWDED_PERCENT;
        is_crowded.then(|| FleetFinding { phase: Some(phase), ..FleetFinding::new(FindingKind::CrowdedPhase, crowd) })
    })
}

/// 1 minus the mean over the agents of each one's heaviest finding.
fn measure_coherence(agents: &[FleetAgent], findings: &[FleetFinding]) -> Option<f64> {
    let mut heaviest: BTreeMap<SandboxId, u32> = BTreeMap::new();
    for finding in findings {
        for sandbox in &finding.sandboxes {
            let weight = heaviest.entry(*sandbox).or_default();
            *weight = finding.kind.weight_percent().max(*weight);
        }
    }
    let count = u32::try_from(agents.len()).ok().filter(|count| *count > 0)?;
    let lost = f64::from(heaviest.values().sum::<u32>()) / f64::from(count);
    Some((100.0 - lost).round() / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(title: &str, phase: Phase) -> FleetAgent {
        FleetAgent {
            sandbox: SandboxId::new(),
            repository: Some("https://example.org/app".into()),
            title: title.into(),
            phase,
            stuck: None,
            is_anomalous: false,
            files: Vec::new(),
        }
    }

    fn kinds(review: &FleetReview) -> Vec<FindingKind> {
        review.findings.iter().map(|finding| finding.kind).collect()
    }

    #[test]
    fn agents_that_do_different_things_are_coherent() {
        let review = review_fleet(&[agent("parser", Phase::Editing), agent("docs", Phase::Testing)]);
        assert_eq!((review.findings.len(), review.coherence), (0, Some(1.0)));
        assert_eq!(review.phases, BTreeMap::from([(Phase::Editing, 1), (Phase::Testing, 1)]));
        assert_eq!(review_fleet(&[]), FleetReview::default());
    }

    #[test]
    fn the_same_task_in_one_repository_is_duplicate_work() {
        let elsewhere = FleetAgent { repository: Some("/srv/other".into()), ..agent("Fix the parser", Phase::Editing) };
        let nowhere = FleetAgent { repository: None, ..agent("Fix the parser", Phase::Editing) };
        let (one, two) = (agent("Fix the parser", Phase::Editing), agent("fix the  parser!", Phase::Testing));
        let untitled = [agent("untitled", Phase::Testing), agent("untitled", Phase::Testing)];
        let all = [vec![elsewhere, nowhere, one.clone(), two.clone()], untitled.to_vec()].concat();
        let review = review_fleet(&all);
        assert_eq!(kinds(&review), [FindingKind::DuplicateWork]);
        assert_eq!(review.findings[0].sandboxes, [one.sandbox, two.sandbox]);
        assert_eq!(review.coherence, Some(0.67));
    }

    #[test]
    fn shared_files_are_grouped_by_the_agents_that_share_them() {
        let with = |title: &str, files: &[&str]| FleetAgent {
            files: files.iter().map(|file| (*file).to_owned()).collect(),
            ..agent(title, Phase::Editing)
        };
        let all = [with("a", &["x", "y", "z"]), with("b", &["y", "x", "own"]), with("c", &["z"])];
        let review = review_fleet(&all);
        assert_eq!(kinds(&review), [FindingKind::SharedFiles, FindingKind::SharedFiles]);
        let files: BTreeSet<_> = review.findings.iter().map(|finding| finding.files.join(" ")).collect();
        assert_eq!(files, BTreeSet::from(["x y".to_owned(), "z".to_owned()]));
        assert_eq!(review.coherence, Some(0.3));
    }

    #[test]
    fn a_phase_is_crowded_from_four_agents_on() {
        let of = |count: usize, phase: Phase| (0..count).map(move |number| agent(&number.to_string(), phase));
        let crowded = |editing: usize, testing: usize| {
            let all: Vec<_> = of(editing, Phase::Editing).chain(of(testing, Phase::Testing)).collect();
            // Both have titles in common.
            review_fleet(&all).findings.into_iter().find(|found| found.kind == FindingKind::CrowdedPhase)
        };
        assert_eq!(crowded(3, 0), None);
        assert_eq!(crowded(4, 0).map(|found| (found.phase, found.sandboxes.len())), Some((Some(Phase::Editing), 4)));
        assert_eq!(crowded(6, 2), None, "three quarters");
        assert!(crowded(7, 2).is_some());
        let starting: Vec<_> = of(9, Phase::Starting).collect();
        assert_eq!(kinds(&review_fleet(&starting)), []);
    }

    #[test]
    fn stuck_and_anomalous_agents_are_found() {
        let stuck = FleetAgent { stuck: Some(StuckReason::NoProgress), ..agent("a", Phase::Editing) };
        let strange = FleetAgent { is_anomalous: true, ..agent("b", Phase::Editing) };
        let review = review_fleet(&[stuck, strange]);
        assert_eq!(kinds(&review), [FindingKind::Stuck, FindingKind::Anomaly]);
        assert_eq!(review.coherence, Some(0.4));
    }

    #[test]
    fn the_review_of_many_agents_is_bounded() {
        let files: Vec<String> = (0..64).map(|number| number.to_string()).collect();
        let all: Vec<_> = (0..500)
            .map(|_| FleetAgent {
                files: files.clone(),
                stuck: Some(StuckReason::NoProgress),
                ..agent("same", Phase::Editing)
            })
            .collect();
        let review = review_fleet(&all);
        assert_eq!((review.findings.len(), review.coherence), (MAX_FINDINGS, Some(0.0)));
        assert!(review.findings.iter().all(|finding| finding.files.len() <= MAX_LISTED_FILES));
    }
}
