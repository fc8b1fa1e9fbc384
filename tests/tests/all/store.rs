//! The guarantees of the store, on both databases.

use atoll_core::budget::{Budget, BudgetPause, BudgetPeriod, day_number};
use atoll_core::id::{ProjectId, SandboxId};
use atoll_core::job::JobKind;
use atoll_core::model::ModelTokens;
use atoll_core::time::Timestamp;
use atoll_store::model_usage::RequestUsage;
use atoll_store::{DatabaseLocation, Error, Store, budgets, jobs, meta, model_usage};
use atoll_tests::database::{Database, DatabaseKind};
use atoll_tests::manual_worker::{ManualWorker, build_event};
use atoll_tests::on_both_databases;
use atoll_tests::server::TestServer;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

on_both_databases!(
    a_failed_write_changes_nothing,
    concurrent_writes_are_all_stored,
    committed_writes_survive_reopening,
    due_jobs_are_claimed_once,
    only_the_newest_claim_finishes_a_job,
    a_suspended_job_keeps_its_remaining_time,
    a_cancelled_read_does_not_disturb_later_writes,
    a_database_with_the_first_schema_can_be_opened,
    model_usage_is_summed_per_sandbox_session_project_and_user,
    project_costs_are_summed_per_budget_period,
    usage_samples_outlast_a_restart,
);

async fn open_store(kind: DatabaseKind, dir: &Path) -> (Store, Database) {
    let at = dir.to_owned();
    let database = tokio::task::spawn_blocking(move || Database::new(kind, &at)).await.unwrap();
    (Store::open(&database.location).await.unwrap(), database)
}

async fn read_meta(store: &Store, key: &'static str) -> Option<String> {
    store.read(async move |tx| meta::find_meta_value(tx, key).await).await.unwrap()
}

async fn close_store(store: Store, database: Database) {
    store.close().await;
    tokio::task::spawn_blocking(move || drop(database)).await.unwrap();
}

async fn a_failed_write_changes_nothing(kind: DatabaseKind) {
    let dir = tempfile::tempdir().unwrap();
    let (store, database) = open_store(kind, dir.path()).await;
    let refused: Result<(), Error> = store
        .write(async move |tx| {
            meta::set_meta_value(tx, "a", "1").await?;
            Err(Error::Conflict { what: "test" })
        })
        .await;
    assert!(matches!(refused, Err(Error::Conflict { .. })));
    let nul: Result<(), Error> = store.write(async move |tx| meta::set_meta_value(tx, "b", "x\0y").await).await;
    assert!(matches!(nul, Err(Error::InvalidText)));
    assert_eq!((read_meta(&store, "a").await, read_meta(&store, "b").await), (None, None));
    close_store(store, database).await;
}

async fn concurrent_writes_are_all_stored(kind: DatabaseKind) {
    let dir = tempfile::tempdir().unwrap();
    let (store, database) = open_store(kind, dir.path()).await;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..200 {
        let store = store.clone();
        tasks.spawn(async move {
            let done: Result<(), Error> = store
                .write(async move |tx| {
                    meta::set_meta_value(tx, &format!("key-{n}"), "x").await?;
                    if n % 5 == 0 { Err(Error::Conflict { what: "test" }) } else { Ok(()) }
                })
                .await;
            done.is_ok()
        });
    }
    let stored = tasks.join_all().await.into_iter().filter(|ok| *ok).count();
    let counted = store.read(async move |tx| {
        let rows = tx.query("SELECT COUNT(*) AS count FROM meta WHERE key LIKE 'key-%'", &[]).await?;
        atoll_store::sql::first_row(rows).unwrap().int("count")
    });
    let counted: Result<i64, Error> = counted.await;
    assert_eq!((stored, counted.unwrap()), (160, 160));
    close_store(store, database).await;
}

async fn committed_writes_survive_reopening(kind: DatabaseKind) {
    let dir = tempfile::tempdir().unwrap();
    let (store, database) = open_store(kind, dir.path()).await;
    let set: Result<(), Error> = store.write(async move |tx| meta::set_meta_value(tx, "kept", "yes").await).await;
    set.unwrap();
    store.close().await;
    let after: Result<(), Error> = store.write(async move |tx| meta::set_meta_value(tx, "late", "x").await).await;
    assert!(matches!(after, Err(Error::Unavailable { .. })), "a closed store must refuse writes");
    let again = Store::open(&database.location).await.unwrap();
    assert_eq!((read_meta(&again, "kept").await, read_meta(&again, "late").await), (Some("yes".into()), None));
    close_store(again, database).await;
}

async fn a_cancelled_read_does_not_disturb_later_writes(kind: DatabaseKind) {
    let dir = tempfile::tempdir().unwrap();
    let (store, database) = open_store(kind, dir.path()).await;
    for turn in 0..400u64 {
        // Cancel the read at any point between the connection and the result.
        let reading = store.read::<_, Error, _>(async move |tx| meta::find_meta_value(tx, "kept").await);
        drop(tokio::time::timeout(Duration::from_micros(turn * 5), reading).await);
        if turn % 20 == 19 {
            let set: Result<(), Error> =
                store.write(async move |tx| meta::set_meta_value(tx, "kept", "yes").await).await;
            set.unwrap();
        }
    }
    close_store(store, database).await;
}

async fn due_jobs_are_claimed_once(kind: DatabaseKind) {
    let dir = tempfile::tempdir().unwrap();
    let (store, database) = open_store(kind, dir.path()).await;
    let now = Timestamp::from_micros(1_000_000_000);
    let sandboxes: Vec<SandboxId> = (0..20).map(|_| SandboxId::new()).collect();
    for sandbox in sandboxes {
        let put: Result<(), Error> =
            store.write(async move |tx| jobs::schedule_job(tx, JobKind::Timeout, sandbox, now).await).await;
        put.unwrap();
    }
    let mut claims = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let store = store.clone();
        claims.spawn(async move {
            let claimed: Result<_, Error> =
                store.write(async move |tx| jobs::claim_due_jobs(tx, now, Duration::from_secs(60), 100).await).await;
            claimed.unwrap().into_iter().map(|job| job.id).collect::<Vec<_>>()
        });
    }
    let mut all: Vec<_> = claims.join_all().await.into_iter().flatten().collect();
    assert_eq!(all.len(), 20);
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 20);
    close_store(store, database).await;
}

async fn only_the_newest_claim_finishes_a_job(kind: DatabaseKind) {
    let dir = tempfile::tempdir().unwrap();
    let (store, database) = open_store(kind, dir.path()).await;
    let sandbox = SandboxId::new();
    let at = |seconds: i64| Timestamp::from_micros(seconds * 1_000_000);
    let done: Result<(), Error> = store
        .write(async move |tx| {
            let hold = Duration::from_secs(60);
            jobs::schedule_job(tx, JobKind::Timeout, sandbox, at(1)).await?;
            // The first runner is slow, and a second one claims the job.
            let slow = jobs::claim_due_jobs(tx, at(2), hold, 10).await?.remove(0);
            let second = jobs::claim_due_jobs(tx, at(100), hold, 10).await?.remove(0);
            assert_eq!(slow.id, second.id);
            assert!(!jobs::finish_job(tx, slow.id, slow.claim).await?);
            assert!(!jobs::postpone_job(tx, slow.id, slow.claim, at(1)).await?);
            assert!(jobs::claim_due_jobs(tx, at(101), hold, 10).await?.is_empty(), "the second claim still holds");
            // A new schedule outdates the second claim, and a restart the third.
            jobs::schedule_job(tx, JobKind::Timeout, sandbox, at(102)).await?;
            assert!(!jobs::finish_job(tx, second.id, second.claim).await?);
            let third = jobs::claim_due_jobs(tx, at(103), hold, 10).await?.remove(0);
            jobs::release_all_claims(tx).await?;
            assert!(!jobs::finish_job(tx, third.id, third.claim).await?);
            let fourth = jobs::claim_due_jobs(tx, at(104), hold, 10).await?.remove(0);
            assert!(jobs::finish_job(tx, fourth.id, fourth.claim).await?);
            // A job that its creator claims is available to others after the hold.
            let own = jobs::insert_claimed_job(tx, JobKind::Create, sandbox, at(200), hold).await?;
            assert!(jobs::claim_due_jobs(tx, at(201), hold, 10).await?.is_empty());
            let fifth = jobs::claim_due_jobs(tx, at(261), hold, 10).await?.remove(0);
            assert_eq!((own.attempts, fifth.attempts), (0, 1));
            assert!(!jobs::finish_job(tx, own.id, own.claim).await?);
            assert!(jobs::finish_job(tx, fifth.id, fifth.claim).await?);
            assert_eq!(jobs::find_next_due_time(tx).await?, None);
            Ok(())
        })
        .await;
    done.unwrap();
    close_store(store, database).await;
}

async fn a_suspended_job_keeps_its_remaining_time(kind: DatabaseKind) {
    let dir = tempfile::tempdir().unwrap();
    let (store, database) = open_store(kind, dir.path()).await;
    let (sandbox, other) = (SandboxId::new(), SandboxId::new());
    let at = |seconds: i64| Timestamp::from_micros(seconds * 1_000_000);
    let claimed = async |now: i64| {
        let claim: Result<_, Error> =
            store.write(async move |tx| jobs::claim_due_jobs(tx, at(now), Duration::from_secs(1), 10).await).await;
        claim.unwrap().into_iter().map(|job| job.sandbox_id).collect::<Vec<_>>()
    };
    let done: Result<(), Error> = store
        .write(async move |tx| {
            for id in [sandbox, other] {
                jobs::schedule_job(tx, JobKind::Timeout, id, at(100)).await?;
            }
            jobs::suspend_job(tx, JobKind::Timeout, sandbox, at(70)).await?;
            jobs::suspend_job(tx, JobKind::Timeout, sandbox, at(80)).await
        })
        .await;
    done.unwrap();
    assert_eq!(claimed(99_999).await, [other], "a suspended job is never due");
    let done: Result<(), Error> = store
        .write(async move |tx| {
            jobs::resume_job(tx, JobKind::Timeout, sandbox, at(100_000)).await?;
            jobs::resume_job(tx, JobKind::Timeout, sandbox, at(200_000)).await
        })
        .await;
    done.unwrap();
    assert!(!claimed(100_029).await.contains(&sandbox));
    assert!(claimed(100_030).await.contains(&sandbox), "30 seconds remained");
    close_store(store, database).await;
}

/// Creates the schema of the first release, with some rows, in an empty database.
fn write_first_schema(location: &DatabaseLocation) {
    // Released migrations never change, so this is the SQL that the first release ran.
    let sql = concat!(
        include_str!("../../../crates/store/migrations/0001_first.sql"),
        include_str!("../../fixtures/rows-1.sql")
    );
    match location {
        DatabaseLocation::Sqlite(path) => rusqlite::Connection::open(path).unwrap().execute_batch(sql).unwrap(),
        DatabaseLocation::Postgres(url) => {
            let url = secrecy::ExposeSecret::expose_secret(url);
            let mut psql = std::process::Command::new("psql");
            let output = psql.args(["-q", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", sql]).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

async fn a_database_with_the_first_schema_can_be_opened(kind: DatabaseKind) {
    let server = TestServer::start_with(kind, |options| write_first_schema(&options.store_location())).await;
    let admin = server.admin();
    let sandbox = "sbx_01k9z0000000000000000000b1";
    let row = admin.get(&format!("/sandboxes/{sandbox}")).await.expect_status(200);
    assert_eq!((row["state"].as_str(), row["labels"]["team"].as_str()), (Some("completed"), Some("red")));
    let events = admin.all_events(sandbox).await;
    assert_eq!(events.len(), 2);
    assert_eq!(events[1]["data"]["text"], "hällo");
    let messages = admin.get("/sessions/ses_01k9z0000000000000000000s1/messages").await.expect_status(200);
    assert_eq!(messages["items"][0]["how"], "injected");
    let sent = admin.post("/sessions/ses_01k9z0000000000000000000s1/messages", json!({ "content": "go on" })).await;
    assert_eq!(sent.expect_status(201)["sandbox"]["state"], "pending");
    server.stop().await;
}

async fn model_usage_is_summed_per_sandbox_session_project_and_user(kind: DatabaseKind) {
    let mut server = TestServer::start(kind).await;
    let admin = server.admin();
    let mut sandboxes = Vec::new();
    for _ in 0..2 {
        sandboxes.push(admin.post("/sandboxes", json!({ "provider": "external" })).await.expect_status(201));
    }
    let id = |sandbox: &Value, field: &str| sandbox[field].as_str().unwrap().to_owned();
    let store = Store::open(&server.options.store_location()).await.unwrap();
    for (sandbox, model, cost) in [(0, "a", 5), (0, "a", 6), (0, "b", 7), (1, "a", 100)] {
        let sandbox: SandboxId = id(&sandboxes[sandbox], "id").parse().unwrap();
        let tokens = ModelTokens { input: 10, output: 1, cache_read: 2, cache_write: 3 };
        let added = store.write::<_, Error, _>(async move |tx| {
            let usage = RequestUsage { tokens, cost_micros: cost, ..RequestUsage::default() };
            model_usage::add_usage(tx, sandbox, "anthropic", model, &usage).await
        });
        added.await.unwrap();
    }
    store.close().await;
    server.restart().await;
    let user = id(&sandboxes[0], "created_by").trim_start_matches("user:").to_owned();
    for (path, requests, cost) in [
        (format!("/sandboxes/{}", id(&sandboxes[0], "id")), 3, 0.000_018),
        (format!("/sessions/{}", id(&sandboxes[0], "session_id")), 3, 0.000_018),
        (format!("/sandboxes/{}", id(&sandboxes[1], "id")), 1, 0.0001),
        (format!("/projects/{}", id(&sandboxes[0], "project_id")), 4, 0.000_118),
        (format!("/users/{user}"), 4, 0.000_118),
    ] {
        let usage = &admin.get(&path).await.expect_status(200)["usage"];
        let expected = json!({ "requests": requests, "input": 10 * requests, "output": requests,
            "cache_read": 2 * requests, "cache_write": 3 * requests, "cost": cost,
            "cost_source": "prices" });
        assert_eq!(*usage, expected, "{path}");
    }

    // A request without a known price makes every sum unknown, until the agent reports its own cost.
    let unpriced: SandboxId = id(&sandboxes[1], "id").parse().unwrap();
    let paths = [
        format!("/sandboxes/{unpriced}"),
        format!("/projects/{}", id(&sandboxes[0], "project_id")),
        format!("/users/{user}"),
    ];
    for (agent_cost, costs, source) in [
        (None, [Value::Null, Value::Null, Value::Null], "unknown"),
        (Some(300), [json!(0.0003), json!(0.000_318), json!(0.000_318)], "agent"),
    ] {
        let store = Store::open(&server.options.store_location()).await.unwrap();
        let added = store.write::<_, Error, _>(async move |tx| match agent_cost {
            None => {
                let usage = RequestUsage { is_unpriced: true, ..RequestUsage::default() };
                model_usage::add_usage(tx, unpriced, "anthropic", "unheard", &usage).await
            }
            Some(cost) => model_usage::add_agent_cost(tx, unpriced, cost).await,
        });
        added.await.unwrap();
        store.close().await;
        for (path, cost) in paths.iter().zip(&costs) {
            let usage = &admin.get(path).await.expect_status(200)["usage"];
            assert_eq!((&usage["cost"], &usage["cost_source"]), (cost, &json!(source)), "{path}");
        }
        let first = admin.get(&format!("/sandboxes/{}", id(&sandboxes[0], "id"))).await.expect_status(200);
        assert_eq!(first["cost"]["model"], 0.000_018, "{first}");
    }
    server.stop().await;
}

async fn project_costs_are_summed_per_budget_period(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let body = json!({ "name": "parser", "budget": { "usd": 2, "per": "day" } });
    let project: ProjectId =
        admin.post("/projects", body).await.expect_status(201)["id"].as_str().unwrap().parse().unwrap();
    let created =
        admin.post("/sandboxes", json!({ "provider": "external", "project_id": project })).await.expect_status(201);
    let sandbox: SandboxId = created["id"].as_str().unwrap().parse().unwrap();
    let now: Timestamp = "2026-11-16T10:00:00Z".parse().unwrap();
    let budget = Budget { usd: 2.0, per: BudgetPeriod::Day };
    let store = Store::open(&server.options.store_location()).await.unwrap();
    let outcome = store.write::<_, Error, _>(async move |tx| {
        let today = day_number(now);
        for (day, cost) in [(today, 5), (today, 6), (today - 1, 70), (today - 20, 800)] {
            budgets::add_cost(tx, project, day, cost).await?;
        }
        let mut sums = Vec::new();
        for per in BudgetPeriod::ALL {
            sums.push(budgets::sum_costs(tx, project, &per.period_at(now)).await?);
        }
        let pause = BudgetPause::from_budget(&budget, now);
        budgets::record_budget_pause(tx, sandbox, &BudgetPause { micros: 1, ..pause }).await?;
        budgets::record_budget_pause(tx, sandbox, &pause).await?;
        let paused = budgets::list_paused_agents(tx).await?;
        let found = budgets::find_budget_pause(tx, sandbox).await?;
        budgets::delete_budget_pause(tx, sandbox).await?;
        Ok((sums, paused, found == Some(pause), budgets::find_budget_pause(tx, sandbox).await?))
    });
    let (sums, paused, is_stored, after) = outcome.await.unwrap();
    assert_eq!(sums, [11, 81, 881]);
    assert_eq!((paused.len(), paused[0].sandbox, paused[0].is_paused), (1, sandbox, false));
    assert_eq!((paused[0].budget, is_stored, after), (Some(budget), true, None));
    store.close().await;
    let path = format!("/projects/{project}");
    let raised = admin.patch(&path, json!({ "budget": { "usd": 3.5 } })).await.expect_status(200);
    assert_eq!((&raised["budget"]["usd"], &raised["budget"]["per"]), (&json!(3.5), &json!("day")), "{raised}");
    let listed = admin.get("/projects").await.expect_status(200);
    let listed = listed["items"].as_array().unwrap().iter().find(|item| item["name"] == "parser").unwrap().clone();
    assert_eq!(listed["budget"], json!({ "usd": 3.5, "per": "day" }));
    admin.patch(&path, json!({ "name": "compiler" })).await.expect_status(200);
    let row = admin.get(&path).await.expect_status(200);
    assert_eq!(row["budget"]["usd"], 3.5, "a rename must not change the budget");
    admin.patch(&path, json!({ "budget": null })).await.expect_status(200);
    assert_eq!(admin.get(&path).await.expect_status(200)["budget"], Value::Null);
    server.stop().await;
}

async fn usage_samples_outlast_a_restart(kind: DatabaseKind) {
    let mut server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let worker = ManualWorker::new(&admin, &sandbox);
    let beat = json!({ "stream": worker.stream, "protocol": 1, "at": "2026-01-01T00:00:00Z", "last_key": 0,
        "activity": "starting", "cpu": 1.5, "memory": 5_000_000 });
    worker.actor.post(&format!("/sandboxes/{}/heartbeat", sandbox.id), beat).await.expect_status(200);
    let until = "2026-01-01T01:00:00.000000Z";
    let limited = build_event(1, "agent.rate_limited", json!({ "until": until }));
    worker.send_batch(vec![limited]).await.expect_status(200);
    server.restart().await;
    let admin = server.admin();
    let usage = admin.get(&format!("/sandboxes/{}/resources", sandbox.id)).await.expect_status(200);
    let points = usage["items"].as_array().unwrap();
    assert_eq!(points.len(), 1, "{usage}");
    assert_eq!((&points[0]["cpu"], &points[0]["memory_bytes"]), (&json!(1.5), &json!(5_000_000)));
    assert_eq!(points[0]["disk_bytes"], Value::Null, "the worker did not measure its disk use");
    let path = format!("/sandboxes/{}", sandbox.id);
    let row = admin.get(&path).await.expect_status(200);
    assert_eq!((&row["activity"], &row["rate_limited_until"]), (&json!("rate_limited"), &json!(until)));
    worker.send_batch(vec![build_event(2, "agent.started", json!({}))]).await.expect_status(200);
    let row = admin.get(&path).await.expect_status(200);
    assert_eq!((&row["activity"], &row["rate_limited_until"]), (&json!("working"), &Value::Null));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_server_on_one_postgres_database_names_the_holder() {
    let mut server = TestServer::start(DatabaseKind::Postgres).await;
    let other_dir = tempfile::tempdir().unwrap();
    let mut options = server.options.clone();
    options.config.data_dir = other_dir.path().to_owned();
    let refused = atoll_server::Server::start(options).await.map(drop).unwrap_err().to_string();
    let holder = format!("the database is held by atoll serve (pid {} on ", std::process::id());
    assert!(refused.starts_with(&holder), "{refused}");
    server.admin().get("/sandboxes").await.expect_status(200);
    server.restart().await;
    server.admin().get("/sandboxes").await.expect_status(200);
    server.stop().await;
}

#[tokio::test]
async fn both_databases_have_the_same_tables() {
    let sqlite = "SELECT m.name || '.' || p.name AS column_path FROM sqlite_master m JOIN pragma_table_info(m.name) p
                  WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite_%' ORDER BY 1";
    let postgres = "SELECT (table_name || '.' || column_name)::text AS column_path FROM information_schema.columns
                    WHERE table_schema = 'public' ORDER BY 1";
    let mut found = Vec::new();
    for (kind, sql) in [(DatabaseKind::Sqlite, sqlite), (DatabaseKind::Postgres, postgres)] {
        let dir = tempfile::tempdir().unwrap();
        let (store, database) = open_store(kind, dir.path()).await;
        let columns = store.read(async move |tx| {
            let rows = tx.query(sql, &[]).await?;
            rows.into_iter().map(|row| row.text("column_path")).collect::<Result<Vec<String>, Error>>()
        });
        let mut columns: Vec<String> = columns.await.unwrap();
        columns.sort();
        found.push(columns);
        close_store(store, database).await;
    }
    assert!(found[0].len() > 100);
    assert_eq!(found[0], found[1]);
}
