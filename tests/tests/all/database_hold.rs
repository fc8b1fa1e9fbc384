//! A PostgreSQL server that loses the connection of its hold takes the database again.

use atoll_test_wait::poll_until;
use atoll_tests::database::DatabaseKind;
use atoll_tests::server::TestServer;
use secrecy::ExposeSecret;
use serde_json::json;
use std::io::Write;
use std::process::{Child, Command, Stdio};

/// New connections find no holder of a lock, as in the moment after its release.
const HIDE_HOLDERS: &str = "CREATE VIEW public.pg_locks AS SELECT * FROM pg_catalog.pg_locks WHERE false;
    DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', current_database()); END $$;";

/// Waits for the server's lock and takes it.
const TAKE_LOCK: &str = "SELECT classid::int AS key FROM pg_catalog.pg_locks
    WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) \\gset
    SELECT pg_advisory_lock(:key, hashtext('public'));
    ";

const COUNT_WAITING: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
    AND wait_event = 'advisory'";

const END_HOLD: &str =
    "SELECT pg_terminate_backend(l.pid) FROM pg_catalog.pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'advisory' AND l.granted AND datname = current_database()";

/// The number of connections that have looked for the holder.
const COUNT_ATTEMPTS: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
    AND pid <> pg_backend_pid() AND query LIKE '%AS holder%'";

const COUNT_HOLDS: &str = "SELECT count(*) FROM pg_catalog.pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'advisory' AND l.granted AND datname = current_database() AND application_name LIKE 'atoll %'";

fn psql(url: &str) -> Command {
    let mut command = Command::new("psql");
    command.args(["-qAt", "-v", "ON_ERROR_STOP=1", "-d", url]);
    command
}

fn query(url: &str, sql: &str) -> String {
    let output = psql(url).args(["-c", sql]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A session that has the lock until it is dropped.
struct LockSession(Child);

impl LockSession {
    fn start(url: &str) -> Self {
        let mut child = psql(url).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        child.stdin.as_mut().unwrap().write_all(TAKE_LOCK.as_bytes()).unwrap();
        Self(child)
    }
}

impl Drop for LockSession {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_was_just_released_is_taken_again() {
    let server = TestServer::start(DatabaseKind::Postgres).await;
    let atoll_store::DatabaseLocation::Postgres(url) = server.options.store_location() else { unreachable!() };
    let url = url.expose_secret();
    query(url, HIDE_HOLDERS);
    let other = LockSession::start(url);
    poll_until("a waiting session", async || query(url, COUNT_WAITING) == "1").await;
    query(url, END_HOLD);
    poll_until("an attempt to take the lock", async || query(url, COUNT_ATTEMPTS) != "0").await;
    drop(other);
    poll_until("the hold", async || query(url, COUNT_HOLDS) == "1").await;
    server.admin().post("/sandboxes", json!({ "provider": "fake" })).await.expect_status(201);
    server.stop().await;
}
