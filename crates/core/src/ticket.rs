//! Tickets: pieces of work that each own a branch and a pull request.

pub mod dependencies;
mod ticket_key;

pub use ticket_key::{BadTicketKey, TicketKey, check_prefix, choose_prefix};

use crate::string_enum;

pub const MAX_DESCRIPTION_BYTES: usize = 64 * 1024;
/// Tickets that one ticket can depend on.
pub const MAX_DEPENDENCIES: usize = 50;

string_enum! {
    /// Kind of work, which selects the prefix of the branch.
    "ticket type"
    TicketType {
        Feature = "feature",
        Bug = "bug",
        Refactor = "refactor",
        Docs = "docs",
        Test = "test",
        Chore = "chore",
    }
}

string_enum! {
    "ticket priority"
    TicketPriority { Low = "low", Medium = "medium", High = "high", Critical = "critical" }
}

string_enum! {
    /// Progress of a ticket. A person can set any status; the branch workflow only moves a ticket forward.
    "ticket status"
    TicketStatus {
        Backlog = "backlog",
        Analyzing = "analyzing",
        /// An agent works on the branch.
        Building = "building",
        /// The results are on the branch.
        BuildingDone = "building-done",
        /// The pull request is open: checks and reviews decide.
        Testing = "testing",
        /// The pull request is merged.
        Done = "done",
    }
}

/// A step of the branch workflow that moves a ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TicketStep {
    /// A sandbox starts to work on the branch.
    Start,
    /// The results are on the branch.
    ExportResults,
    OpenPullRequest,
    Merge,
}

impl TicketStatus {
    /// The status after a step. Only `Start` moves a ticket back: it begins another round of work.
    pub fn after_step(self, step: TicketStep) -> Self {
        match step {
            TicketStep::Start => Self::Building,
            TicketStep::ExportResults => self.max(Self::BuildingDone),
            TicketStep::OpenPullRequest => self.max(Self::Testing),
            TicketStep::Merge => Self::Done,
        }
    }
}

/// The first part of a branch name for this kind of work.
pub const fn branch_prefix(ticket_type: TicketType, priority: TicketPriority) -> &'static str {
    match (ticket_type, priority) {
        (TicketType::Bug, TicketPriority::Critical) => "hotfix",
        (TicketType::Bug, TicketPriority::Low | TicketPriority::Medium | TicketPriority::High) => "fix",
        (TicketType::Feature, _) => "feature",
        (TicketType::Refactor, _) => "refactor",
        (TicketType::Docs, _) => "docs",
        (TicketType::Test, _) => "test",
        (TicketType::Chore, _) => "chore",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_selects_the_branch_prefix() {
        for (ticket_type, priority, prefix) in [
            (TicketType::Feature, TicketPriority::Critical, "feature"),
            (TicketType::Bug, TicketPriority::High, "fix"),
            (TicketType::Bug, TicketPriority::Critical, "hotfix"),
            (TicketType::Refactor, TicketPriority::Low, "refactor"),
            (TicketType::Docs, TicketPriority::Medium, "docs"),
            (TicketType::Test, TicketPriority::Medium, "test"),
            (TicketType::Chore, TicketPriority::Medium, "chore"),
        ] {
            assert_eq!(branch_prefix(ticket_type, priority), prefix);
        }
    }

    #[test]
    fn only_a_new_start_moves_a_ticket_back() {
        for status in TicketStatus::ALL {
            for step in [TicketStep::ExportResults, TicketStep::OpenPullRequest, TicketStep::Merge] {
                assert!(status.after_step(step) >= *status, "{status} {step:?}");
            }
            assert_eq!(status.after_step(TicketStep::Start), TicketStatus::Building);
            assert_eq!(status.after_step(TicketStep::Merge), TicketStatus::Done);
        }
        assert_eq!(TicketStatus::Building.after_step(TicketStep::ExportResults), TicketStatus::BuildingDone);
        assert_eq!(TicketStatus::Building.after_step(TicketStep::OpenPullRequest), TicketStatus::Testing);
        assert_eq!(TicketStatus::Testing.after_step(TicketStep::ExportResults), TicketStatus::Testing);
    }
}
