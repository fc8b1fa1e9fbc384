//! The queue of tasks in the store: its cost does not grow with its length, and a claim has one winner.

use atoll_core::id::{ProjectId, TaskId};
use atoll_core::sandbox::ProviderKind;
use atoll_core::task::{OwnedFiles, Standing, TaskPhase, TaskState, TaskWait};
use atoll_core::ticket::{TicketPriority, TicketType};
use atoll_core::time::Timestamp;
use atoll_store::projects::ProjectRow;
use atoll_store::tasks::{TaskDetails, TaskRow};
use atoll_store::{Error, Store, Tx, projects, task_queue, tasks};
use atoll_tests::database::{Database, DatabaseKind};
use atoll_tests::on_both_databases;
use atoll_tests::scale::scale_count;

on_both_databases!(the_dispatcher_reads_only_the_heads_of_a_long_queue, an_outdated_version_changes_nothing,);

/// Pending tasks at full scale.
const QUEUED_TASKS: usize = 100_000;

const fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000)
}

fn queued_task(project: ProjectId, owner: &str, standing: i64, queued_since: Timestamp) -> TaskRow {
    TaskRow {
        id: TaskId::new(),
        project_id: project,
        ticket_id: None,
        owner: owner.into(),
        task_type: TicketType::Feature,
        priority: TicketPriority::Medium,
        phase: TaskPhase::NEW,
        wait: Some(TaskWait::Slot),
        holder_id: None,
        standing: Standing::from_units(standing),
        level_due_at: None,
        queued_since,
        available_at: None,
        deadline: None,
        open_dependencies: 0,
        blocked_tasks: 0,
        claim: 0,
        claimed_by: None,
        claim_expires_at: None,
        provider: ProviderKind::Fake,
        session_id: None,
        owned_files: OwnedFiles::default(),
        details: TaskDetails { title: "x".into(), ..TaskDetails::default() },
        version: 1,
        state_since: at(0),
        created_at: at(0),
        updated_at: at(0),
    }
}

async fn open_store(kind: DatabaseKind, dir: &std::path::Path) -> (Store, Database) {
    let at = dir.to_owned();
    let database = tokio::task::spawn_blocking(move || Database::new(kind, &at)).await.unwrap();
    (Store::open(&database.location).await.unwrap(), database)
}

async fn close_store(store: Store, database: Database) {
    store.close().await;
    tokio::task::spawn_blocking(move || drop(database)).await.unwrap();
}

async fn insert_project(tx: &mut dyn Tx, name: &str) -> Result<ProjectId, Error> {
    let row = ProjectRow {
        id: ProjectId::new(),
        name: name.into(),
        is_default: false,
        repo: None,
        defaults: serde_json::Map::new(),
        budget: None,
        created_at: at(0),
        updated_at: at(0),
    };
    projects::insert_project(tx, &row).await?;
    Ok(row.id)
}

async fn the_dispatcher_reads_only_the_heads_of_a_long_queue(kind: DatabaseKind) {
    let dir = tempfile::tempdir().unwrap();
    let (store, database) = open_store(kind, dir.path()).await;
    let count = scale_count(QUEUED_TASKS);
    let heads = store
        .write(async move |tx| {
            let mut heads = Vec::new();
            for (name, owner) in [("one", "user:a"), ("one-b", "user:b"), ("two", "user:a")] {
                let project = insert_project(tx, name).await?;
                for number in 0..count / 3 {
                    // Three standings; the first task of each is the oldest.
                    let standing = 20_000 + i64::try_from(number % 3).unwrap() * 11_250;
                    let task = queued_task(project, owner, standing, at(i64::try_from(number).unwrap()));
                    if number < 3 {
                        heads.push(task.id);
                    }
                    tasks::insert_task(tx, &task).await?;
                }
            }
            tx.execute("ANALYZE tasks", &[]).await?;
            Ok::<_, Error>(heads)
        })
        .await
        .unwrap();
    let (found, plan) = store
        .read(async move |tx| {
            let found = task_queue::list_candidates(tx).await?;
            let (sql, column) = match kind {
                DatabaseKind::Sqlite => (task_queue::SQLITE_CANDIDATE_PLAN, "detail"),
                DatabaseKind::Postgres => (task_queue::POSTGRES_CANDIDATE_PLAN, "QUERY PLAN"),
            };
            let mut plan = Vec::new();
            for row in tx.query(sql, &[]).await? {
                plan.push(row.text(column)?);
            }
            Ok::<_, Error>((found, plan.join("\n")))
        })
        .await
        .unwrap();
    let mut found: Vec<TaskId> = found.into_iter().map(|candidate| candidate.id).collect();
    let mut expected = heads;
    found.sort();
    expected.sort();
    assert_eq!(found, expected, "the oldest task of each project, owner and standing");
    // Each jump seeks in the index. Nothing reads more rows than it returns.
    let expected: &[&str] = match kind {
        DatabaseKind::Sqlite => &[
            "SEARCH n USING COVERING INDEX tasks_ready (project_id=? AND owner=? AND standing>?)",
            "SEARCH o USING COVERING INDEX tasks_ready (project_id=? AND owner>?)",
            "SEARCH p USING COVERING INDEX tasks_ready (project_id>?)",
            "SEARCH t USING INDEX",
        ],
        DatabaseKind::Postgres => {
            &["using tasks_ready on tasks n", "using tasks_ready on tasks o", "tasks_ready on tasks p"]
        }
    };
    for step in expected {
        assert!(plan.contains(step), "{step}:\n{plan}");
    }
    for scan in [
        "Seq Scan on tasks",
        "Rows Removed by Filter",
        "SCAN t\n",
        "SCAN h\n",
        "BLOOM FILTER",
        "USE TEMP B-TREE",
        "Sort",
    ] {
        assert!(!plan.contains(scan), "{scan}:\n{plan}");
    }
    close_store(store, database).await;
}

async fn an_outdated_version_changes_nothing(kind: DatabaseKind) {
    let dir = tempfile::tempdir().unwrap();
    let (store, database) = open_store(kind, dir.path()).await;
    let task = store
        .write(async move |tx| {
            let task = queued_task(insert_project(tx, "one").await?, "user:a", 1, at(0));
            tasks::insert_task(tx, &task).await?;
            Ok::<_, Error>(task)
        })
        .await
        .unwrap();
    // Two servers read the same row; the second write finds another version.
    let claim = |server: &'static str| {
        let mut task = task.clone();
        task.phase.state = TaskState::Claiming;
        task.claimed_by = Some(server.into());
        store.write(async move |tx| tasks::update_task(tx, &mut task).await.map(|()| task.version))
    };
    assert_eq!(claim("one").await.unwrap(), 2);
    assert!(matches!(claim("two").await, Err(Error::Conflict { what: "task" })));
    let id = task.id;
    let found = store.read(async move |tx| tasks::find_task(tx, id).await).await.unwrap().unwrap();
    assert_eq!((found.claimed_by.as_deref(), found.version), (Some("one"), 2));
    close_store(store, database).await;
}
