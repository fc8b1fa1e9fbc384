//! Labels whose values are not in the program. Each set is bounded: no agent and no user can grow it.

use atoll_config::Model;
use atoll_core::id::ProjectId;
use atoll_core::price_table::listed_name;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// The label of every value beyond a bound.
pub const OTHER: &str = "other";
/// Projects with a label of their own.
const MAX_PROJECTS: usize = 100;

/// The label of a model: its name in the configuration or in the price list, else `other`. An agent chooses the name.
pub fn model_label(models: &[Model], name: &str) -> String {
    match models.iter().find(|model| model.name == name) {
        Some(model) => model.name.clone(),
        None => listed_name(name).unwrap_or(OTHER).to_owned(),
    }
}

/// The label of a project: its id for the first projects with a cost, else `other`.
pub fn project_label(project: ProjectId) -> String {
    static LABELLED: Mutex<Option<HashSet<ProjectId>>> = Mutex::new(None);
    let mut labelled = LABELLED.lock().unwrap_or_else(PoisonError::into_inner);
    admit_project(labelled.get_or_insert_default(), project)
}

fn admit_project(labelled: &mut HashSet<ProjectId>, project: ProjectId) -> String {
    if labelled.len() < MAX_PROJECTS {
        labelled.insert(project);
    }
    if labelled.contains(&project) { project.to_string() } else { OTHER.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_cannot_add_a_model_label() {
        let own = Model { name: "fast".into(), upstream: "local".into(), model: None, context: None, price: None };
        let label = |name: &str| model_label(std::slice::from_ref(&own), name);
        assert_eq!(label("fast"), "fast");
        assert_eq!(
            (label("claude-opus-4-5-20251101"), label("claude-opus-4-5")),
            ("claude-opus-4-5".into(), "claude-opus-4-5".into())
        );
        for unknown in ["fast2", "", "claude-opus-4-5-x", "unnamed"] {
            assert_eq!(label(unknown), OTHER, "{unknown}");
        }
    }

    #[test]
    fn projects_beyond_the_bound_share_a_label() {
        let mut labelled = HashSet::new();
        let first = ProjectId::new();
        assert_eq!(admit_project(&mut labelled, first), first.to_string());
        for _ in 0..200 {
            admit_project(&mut labelled, ProjectId::new());
        }
        assert_eq!(labelled.len(), MAX_PROJECTS);
        assert_eq!(admit_project(&mut labelled, ProjectId::new()), OTHER);
        assert_eq!(admit_project(&mut labelled, first), first.to_string());
    }
}
