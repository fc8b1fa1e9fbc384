use super::*;
use serde_json::json;

/// A sandbox with an id that ends with `end`.
fn sandbox(end: &str, state: &str, name: Option<&str>, branch: Option<&str>) -> Sandbox {
    let id = format!("sbx_01m7fkrr8mezdtrwya23zj{end:0>4}");
    let time = "2026-01-31T12:00:00.000000Z";
    let value = json!({
        "id": id, "name": name, "title": format!("task {end}"), "branch": branch,
        "session_id": format!("ses_01m7fkrr8mezdtrwya23zj{end:0>4}"), "project_id": "prj_01m7fkrr8mezdtrwya23zj4ref",
        "state": state, "activity": "working", "results": "none", "end": "keep", "provider": "fake", "labels": {},
        "settings": {}, "exposed_secrets": [], "first_seq": 1, "last_seq": 1,
        "cost": {"model": null, "model_source": "unknown", "compute": 0.0},
        "created_at": time, "updated_at": time, "state_since": time,
    });
    serde_json::from_value(value).unwrap()
}

fn chosen(reference: &str, candidates: &[Sandbox]) -> Result<String> {
    choose_sandbox(reference, candidates.to_vec()).map(|sandbox| sandbox.title)
}

#[test]
fn a_live_name_comes_before_ids_and_branches() {
    let candidates = [
        sandbox("aaaa", "completed", Some("web"), None),
        sandbox("bbbb", "running", Some("web"), None),
        sandbox("cccc", "running", None, Some("atoll/web")),
    ];
    assert_eq!(chosen("web", &candidates).unwrap(), "task bbbb");
    assert_eq!(chosen("web", &[candidates[0].clone(), candidates[2].clone()]).unwrap(), "task aaaa");
    assert_eq!(chosen("web", &candidates[2..]).unwrap(), "task cccc");
}

#[test]
fn an_ambiguous_reference_lists_the_candidates_with_their_titles() {
    let candidates = [sandbox("aaaa", "running", None, None), sandbox("bbbb", "completed", None, None)];
    let failure = chosen("01m7", &candidates).unwrap_err();
    assert!(failure.has_code("ambiguous"));
    let text = failure.to_text(false).unwrap();
    assert!(text.contains("`01m7` matches 2 sandboxes") && text.contains("completed  task bbbb"), "{text}");
    assert_eq!(chosen("zjaaaa", &candidates).unwrap(), "task aaaa");
}

#[test]
fn a_branch_means_the_newest_sandbox_of_its_session() {
    let mut candidates =
        [sandbox("aaaa", "completed", None, Some("atoll/fix")), sandbox("bbbb", "running", None, Some("atoll/fix"))];
    assert!(chosen("fix", &candidates).unwrap_err().has_code("ambiguous"), "two sessions");
    candidates[0].session_id = candidates[1].session_id;
    assert_eq!(chosen("fix", &candidates).unwrap(), "task bbbb");
}

#[test]
fn an_unknown_reference_says_what_to_do() {
    let text = chosen("\u{1b}[31mx", &[]).unwrap_err().to_text(false).unwrap();
    assert_eq!(text, "atoll: no sandbox matches `␛[31mx` (not_found)\n`atoll ls --all` lists the sandboxes.");
}
