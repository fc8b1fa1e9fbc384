//! One story of tests against both databases: what a write promises.

use atoll_core::budget::{Budget, Held, Per, day_of};
use atoll_core::id::{ProjectId, SandboxId};
use atoll_core::job::JobKind;
use atoll_core::model::Tokens;
use atoll_core::time::Timestamp;
use atoll_store::{Error, Location, Store, budgets, jobs, meta, model_usage};
use atoll_tests::database::{Database, Kind};
use atoll_tests::on_both_databases;
use atoll_tests::server::TestServer;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

on_both_databases!(
    a_refused_write_leaves_nothing,
    concurrent_writes_all_count,
    what_is_answered_survives_reopening,
    due_jobs_are_claimed_once,
    a_held_job_keeps_what_is_left_of_its_time,
    a_reader_that_goes_away_harms_nobody,
    the_first_schema_can_still_be_opened,
    what_models_were_used_for_is_summed,
    what_a_project_spends_is_kept_by_day,
);

async fn open(kind: Kind, dir: &Path) -> (Store, Database) {
    let at = dir.to_owned();
    let database = tokio::task::spawn_blocking(move || Database::new(kind, &at)).await.unwrap();
    (Store::open(&database.location).await.unwrap(), database)
}

async fn read(store: &Store, key: &'static str) -> Option<String> {
    store.read(move |tx| Box::pin(async move { meta::get(tx, key).await })).await.unwrap()
}

async fn close(store: Store, database: Database) {
    store.close().await;
    tokio::task::spawn_blocking(move || drop(database)).await.unwrap();
}

async fn a_refused_write_leaves_nothing(kind: Kind) {
    let dir = tempfile::tempdir().unwrap();
    let (store, database) = open(kind, dir.path()).await;
    let refused: Result<(), Error> = store
        .write(|tx| {
            Box::pin(async move {
                meta::set(tx, "a", "1").await?;
                Err(Error::Conflict { what: "test" })
            })
        })
        .await;
    assert!(matches!(refused, Err(Error::Conflict { .. })));
    let nul: Result<(), Error> = store.write(|tx| Box::pin(async move { meta::set(tx, "b", "x\0y").await })).await;
    assert!(matches!(nul, Err(Error::BadText)));
    assert_eq!((read(&store, "a").await, read(&store, "b").await), (None, None));
    close(store, database).await;
}

async fn concurrent_writes_all_count(kind: Kind) {
    let dir = tempfile::tempdir().unwrap();
    let (store, database) = open(kind, dir.path()).await;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..200 {
        let store = store.clone();
        tasks.spawn(async move {
            let done: Result<(), Error> = store
                .write(move |tx| {
                    Box::pin(async move {
                        meta::set(tx, &format!("key-{n}"), "x").await?;
                        if n % 5 == 0 { Err(Error::Conflict { what: "test" }) } else { Ok(()) }
                    })
                })
                .await;
            done.is_ok()
        });
    }
    let stored = tasks.join_all().await.into_iter().filter(|ok| *ok).count();
    let counted = store.read(|tx| {
        Box::pin(async move {
            let rows = tx.query("SELECT COUNT(*) FROM meta WHERE key LIKE 'key-%'", &[]).await?;
            atoll_store::sql::first(rows).unwrap().int()
        })
    });
    let counted: Result<i64, Error> = counted.await;
    assert_eq!((stored, counted.unwrap()), (160, 160));
    close(store, database).await;
}

async fn what_is_answered_survives_reopening(kind: Kind) {
    let dir = tempfile::tempdir().unwrap();
    let (store, database) = open(kind, dir.path()).await;
    let set: Result<(), Error> = store.write(|tx| Box::pin(async move { meta::set(tx, "kept", "yes").await })).await;
    set.unwrap();
    store.close().await;
    let after: Result<(), Error> = store.write(|tx| Box::pin(async move { meta::set(tx, "late", "x").await })).await;
    assert!(matches!(after, Err(Error::Unavailable { .. })), "a closed store takes nothing");
    let again = Store::open(&database.location).await.unwrap();
    assert_eq!((read(&again, "kept").await, read(&again, "late").await), (Some("yes".into()), None));
    close(again, database).await;
}

async fn a_reader_that_goes_away_harms_nobody(kind: Kind) {
    let dir = tempfile::tempdir().unwrap();
    let (store, database) = open(kind, dir.path()).await;
    for turn in 0..400u64 {
        // Broken off anywhere between asking for a connection and the answer.
        let reading = store.read::<_, Error, _>(|tx| Box::pin(async move { meta::get(tx, "kept").await }));
        drop(tokio::time::timeout(Duration::from_micros(turn * 5), reading).await);
        if turn % 20 == 19 {
            let set: Result<(), Error> =
                store.write(|tx| Box::pin(async move { meta::set(tx, "kept", "yes").await })).await;
            set.unwrap();
        }
    }
    close(store, database).await;
}

async fn due_jobs_are_claimed_once(kind: Kind) {
    let dir = tempfile::tempdir().unwrap();
    let (store, database) = open(kind, dir.path()).await;
    let now = Timestamp::from_micros(1_000_000_000);
    let sandboxes: Vec<SandboxId> = (0..20).map(|_| SandboxId::new()).collect();
    for sandbox in sandboxes {
        let put: Result<(), Error> =
            store.write(move |tx| Box::pin(async move { jobs::put(tx, JobKind::Timeout, sandbox, now).await })).await;
        put.unwrap();
    }
    let mut claims = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let store = store.clone();
        claims.spawn(async move {
            let claimed: Result<_, Error> = store
                .write(move |tx| Box::pin(async move { jobs::claim(tx, now, Duration::from_secs(60), 100).await }))
                .await;
            claimed.unwrap().into_iter().map(|job| job.id).collect::<Vec<_>>()
        });
    }
    let mut all: Vec<_> = claims.join_all().await.into_iter().flatten().collect();
    assert_eq!(all.len(), 20);
    all.dedup();
    assert_eq!(all.len(), 20);
    close(store, database).await;
}

async fn a_held_job_keeps_what_is_left_of_its_time(kind: Kind) {
    let dir = tempfile::tempdir().unwrap();
    let (store, database) = open(kind, dir.path()).await;
    let (sandbox, other) = (SandboxId::new(), SandboxId::new());
    let at = |seconds: i64| Timestamp::from_micros(seconds * 1_000_000);
    let claimed = async |now: i64| {
        let claim: Result<_, Error> = store
            .write(move |tx| Box::pin(async move { jobs::claim(tx, at(now), Duration::from_secs(1), 10).await }))
            .await;
        claim.unwrap().into_iter().map(|job| job.sandbox_id).collect::<Vec<_>>()
    };
    let done: Result<(), Error> = store
        .write(move |tx| {
            Box::pin(async move {
                for id in [sandbox, other] {
                    jobs::put(tx, JobKind::Timeout, id, at(100)).await?;
                }
                jobs::hold(tx, JobKind::Timeout, sandbox, at(70)).await?;
                jobs::hold(tx, JobKind::Timeout, sandbox, at(80)).await
            })
        })
        .await;
    done.unwrap();
    assert_eq!(claimed(99_999).await, [other], "what is held is never due");
    let done: Result<(), Error> = store
        .write(move |tx| {
            Box::pin(async move {
                jobs::go_on(tx, JobKind::Timeout, sandbox, at(100_000)).await?;
                jobs::go_on(tx, JobKind::Timeout, sandbox, at(200_000)).await
            })
        })
        .await;
    done.unwrap();
    assert!(!claimed(100_029).await.contains(&sandbox));
    assert!(claimed(100_030).await.contains(&sandbox), "thirty seconds were left");
    close(store, database).await;
}

/// Puts the first schema with some rows into an empty database, as its first release did.
fn write_first_schema(location: &Location) {
    // A released migration is never changed, so its text is what the first release ran.
    let sql = concat!(
        include_str!("../../../crates/store/migrations/0001_first.sql"),
        include_str!("../../fixtures/rows-1.sql")
    );
    match location {
        Location::Sqlite(path) => rusqlite::Connection::open(path).unwrap().execute_batch(sql).unwrap(),
        Location::Postgres(url) => {
            let url = secrecy::ExposeSecret::expose_secret(url);
            let mut psql = std::process::Command::new("psql");
            let output = psql.args(["-q", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", sql]).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

async fn the_first_schema_can_still_be_opened(kind: Kind) {
    let server = TestServer::start_with(kind, |options| write_first_schema(&options.database)).await;
    let admin = server.admin();
    let sandbox = "sbx_01k9z0000000000000000000b1";
    let row = admin.get(&format!("/sandboxes/{sandbox}")).await.expect(200);
    assert_eq!((row["state"].as_str(), row["labels"]["team"].as_str()), (Some("completed"), Some("red")));
    let events = admin.all_events(sandbox).await;
    assert_eq!(events.len(), 2);
    assert_eq!(events[1]["data"]["text"], "hällo");
    let messages = admin.get("/sessions/ses_01k9z0000000000000000000s1/messages").await.expect(200);
    assert_eq!(messages["items"][0]["how"], "injected");
    let sent = admin.post("/sessions/ses_01k9z0000000000000000000s1/messages", json!({ "content": "go on" })).await;
    assert_eq!(sent.expect(201)["sandbox"]["state"], "pending");
    server.stop().await;
}

async fn what_models_were_used_for_is_summed(kind: Kind) {
    let mut server = TestServer::start(kind).await;
    let admin = server.admin();
    let mut sandboxes = Vec::new();
    for _ in 0..2 {
        sandboxes.push(admin.post("/sandboxes", json!({ "provider": "external" })).await.expect(201));
    }
    let id = |sandbox: &Value, field: &str| sandbox[field].as_str().unwrap().to_owned();
    let store = Store::open(&server.options.database).await.unwrap();
    for (sandbox, model, cost) in [(0, "a", 5), (0, "a", 6), (0, "b", 7), (1, "a", 100)] {
        let sandbox: SandboxId = id(&sandboxes[sandbox], "id").parse().unwrap();
        let tokens = Tokens { input: 10, output: 1, cache_read: 2, cache_write: 3 };
        let added = store.write::<_, Error, _>(move |tx| {
            Box::pin(async move { model_usage::add(tx, sandbox, "anthropic", model, &tokens, cost).await })
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
        let usage = &admin.get(&path).await.expect(200)["usage"];
        let expected = json!({ "requests": requests, "input": 10 * requests, "output": requests,
            "cache_read": 2 * requests, "cache_write": 3 * requests, "cost": cost });
        assert_eq!(*usage, expected, "{path}");
    }
    server.stop().await;
}

async fn what_a_project_spends_is_kept_by_day(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let body = json!({ "name": "parser", "budget": { "usd": 2, "per": "day" } });
    let project: ProjectId = admin.post("/projects", body).await.expect(201)["id"].as_str().unwrap().parse().unwrap();
    let made = admin.post("/sandboxes", json!({ "provider": "external", "project_id": project })).await.expect(201);
    let sandbox: SandboxId = made["id"].as_str().unwrap().parse().unwrap();
    let now: Timestamp = "2026-11-16T10:00:00Z".parse().unwrap();
    let budget = Budget { usd: 2.0, per: Per::Day };
    let store = Store::open(&server.options.database).await.unwrap();
    let looked = store.write::<_, Error, _>(move |tx| {
        Box::pin(async move {
            let today = day_of(now);
            for (day, cost) in [(today, 5), (today, 6), (today - 1, 70), (today - 20, 800)] {
                budgets::add_cost(tx, project, day, cost).await?;
            }
            let mut sums = Vec::new();
            for per in Per::ALL {
                sums.push(budgets::spent(tx, project, &per.period(now)).await?);
            }
            let held = Held::by(&budget, now);
            budgets::hold(tx, sandbox, &Held { micros: 1, ..held }).await?;
            budgets::hold(tx, sandbox, &held).await?;
            let waiting = budgets::waiting(tx).await?;
            let found = budgets::held(tx, sandbox).await?;
            budgets::release(tx, sandbox).await?;
            Ok((sums, waiting, found == Some(held), budgets::held(tx, sandbox).await?))
        })
    });
    let (sums, waiting, is_held, after) = looked.await.unwrap();
    assert_eq!(sums, [11, 81, 881]);
    assert_eq!((waiting.len(), waiting[0].sandbox, waiting[0].is_held), (1, sandbox, false));
    assert_eq!((waiting[0].budget, is_held, after), (Some(budget), true, None));
    store.close().await;
    let path = format!("/projects/{project}");
    let raised = admin.patch(&path, json!({ "budget": { "usd": 3.5 } })).await.expect(200);
    assert_eq!((&raised["budget"]["usd"], &raised["budget"]["per"]), (&json!(3.5), &json!("day")), "{raised}");
    let listed = admin.get("/projects").await.expect(200);
    let listed = listed["items"].as_array().unwrap().iter().find(|row| row["name"] == "parser").unwrap().clone();
    assert_eq!(listed["budget"], json!({ "usd": 3.5, "per": "day" }));
    admin.patch(&path, json!({ "name": "compiler" })).await.expect(200);
    let shown = admin.get(&path).await.expect(200);
    assert_eq!(shown["budget"]["usd"], 3.5, "another name leaves it alone");
    admin.patch(&path, json!({ "budget": null })).await.expect(200);
    assert_eq!(admin.get(&path).await.expect(200)["budget"], Value::Null);
    server.stop().await;
}

#[tokio::test]
async fn both_databases_have_the_same_tables() {
    let sqlite = "SELECT m.name || '.' || p.name FROM sqlite_master m JOIN pragma_table_info(m.name) p
                  WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite_%' ORDER BY 1";
    let postgres = "SELECT (table_name || '.' || column_name)::text FROM information_schema.columns
                    WHERE table_schema = 'public' ORDER BY 1";
    let mut found = Vec::new();
    for (kind, sql) in [(Kind::Sqlite, sqlite), (Kind::Postgres, postgres)] {
        let dir = tempfile::tempdir().unwrap();
        let (store, database) = open(kind, dir.path()).await;
        let columns = store.read(move |tx| {
            Box::pin(async move {
                let rows = tx.query(sql, &[]).await?;
                rows.into_iter().map(|mut row| row.text()).collect::<Result<Vec<String>, Error>>()
            })
        });
        let mut columns: Vec<String> = columns.await.unwrap();
        columns.sort();
        found.push(columns);
        close(store, database).await;
    }
    assert!(found[0].len() > 100);
    assert_eq!(found[0], found[1]);
}
