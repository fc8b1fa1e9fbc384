//! Files of a real sandbox over the API, and by the command line.

use atoll_tests::local::{Ground, PATIENCE, told};
use atoll_tests::process::command;
use futures_util::{StreamExt, stream};
use reqwest::{Body, Method, StatusCode};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

fn at(id: &str, rest: &str) -> String {
    format!("/sandboxes/{id}/files{rest}")
}

async fn put(ground: &Ground, id: &str, rest: &str, body: impl Into<Body>) -> atoll_tests::actor::Answer {
    let request = ground.admin.request(Method::PUT, &at(id, rest)).body(body);
    ground.admin.send(request).await
}

async fn get(ground: &Ground, id: &str, rest: &str, headers: &[(&str, &str)]) -> reqwest::Response {
    let request = ground.admin.request(Method::GET, &at(id, rest));
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    request.send().await.unwrap()
}

fn header<'a>(response: &'a reqwest::Response, name: &str) -> &'a str {
    response.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

/// Waits until no helper for files runs in the sandbox.
async fn no_helper(ground: &Ground, id: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let seen = ground.shell(id, "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '; true").await.well();
        if !seen.contains("exe files") {
            return;
        }
        assert!(Instant::now() < deadline, "a helper is left: {seen}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_file_whole_and_in_part() {
    let ground = Ground::start();
    let id = ground.kept(json!({})).await;
    put(&ground, &id, "?path=notes/a.txt", "x").await.refused(404, "file_not_found");
    let done = put(&ground, &id, "?path=notes/a.txt&parents=true&mode=640", "0123456789").await.expect(200);
    assert_eq!((&done["bytes"], &done["skipped"]), (&json!(10), &json!(0)));
    let seen = ground.shell(&id, "stat -c '%a %U %n' notes/a.txt; cat notes/a.txt").await.well();
    assert_eq!(seen, "640 agent notes/a.txt\n0123456789", "the agent owns it");

    let whole = get(&ground, &id, "?path=/workspace/notes/a.txt", &[]).await;
    assert_eq!((whole.status(), header(&whole, "content-length")), (StatusCode::OK, "10"));
    assert_eq!(header(&whole, "content-type"), "application/octet-stream");
    assert_eq!((header(&whole, "x-content-type-options"), header(&whole, "accept-ranges")), ("nosniff", "bytes"));
    assert!(header(&whole, "last-modified").ends_with(" GMT"));
    let tag = header(&whole, "etag").to_owned();
    assert_eq!(whole.bytes().await.unwrap(), "0123456789");
    let path = "?path=notes/a.txt";
    for (range, part, content_range) in [
        ("bytes=0-3", "0123", "bytes 0-3/10"),
        ("bytes=7-", "789", "bytes 7-9/10"),
        ("bytes=-2", "89", "bytes 8-9/10"),
        ("bytes=8-100", "89", "bytes 8-9/10"),
    ] {
        let answer = get(&ground, &id, path, &[("range", range)]).await;
        assert_eq!((answer.status().as_u16(), header(&answer, "content-range")), (206, content_range), "{range}");
        assert_eq!(answer.bytes().await.unwrap(), part, "{range}");
    }
    let beyond = get(&ground, &id, path, &[("range", "bytes=10-")]).await;
    assert_eq!((beyond.status().as_u16(), header(&beyond, "content-range")), (416, "bytes */10"));
    assert_eq!(beyond.json::<Value>().await.unwrap()["code"], "range_not_satisfiable");
    assert_eq!(get(&ground, &id, path, &[("if-none-match", &tag)]).await.status().as_u16(), 304);
    let other = get(&ground, &id, path, &[("range", "bytes=0-3"), ("if-range", "\"other\"")]).await;
    assert_eq!(other.status().as_u16(), 200, "another version is given whole");

    // The mode stays; who wrote is in the log.
    put(&ground, &id, path, "anew").await.expect(200);
    assert_eq!(ground.shell(&id, "stat -c %a notes/a.txt; cat notes/a.txt").await.well(), "640\nanew");
    let events = ground.admin.all_events(&id).await;
    let written = told(&events, "files.written");
    assert_eq!(
        written,
        [&json!({ "path": "notes/a.txt", "bytes": 10 }), &json!({ "path": "notes/a.txt", "bytes": 4 })]
    );
    let event = events.iter().find(|event| event["type"] == "files.written").unwrap();
    assert!(event["source"] == "user" && event["actor"].is_string(), "{event}");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looking_moving_deleting_and_what_is_refused() {
    let ground = Ground::start();
    let id = ground.kept(json!({})).await;
    ground.shell(&id, "mkdir d; echo 1 > d/a; echo 22 > d/b; ln -s a d/link; mkfifo d/pipe").await.well();
    let post = |rest: &'static str, body: Value| {
        let path = at(&id, rest);
        let admin = ground.admin.clone();
        async move { admin.post(&path, body).await }
    };
    let first = ground.admin.get(&at(&id, "/list?path=d&limit=3")).await.expect(200);
    let names: Vec<&str> = first["items"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b", "link"]);
    assert_eq!((&first["items"][2]["kind"], &first["items"][2]["target"]), (&json!("link"), &json!("a")));
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = ground.admin.get(&at(&id, &format!("/list?path=d&limit=3&cursor={cursor}"))).await.expect(200);
    assert_eq!((&second["items"][0]["kind"], &second["next_cursor"]), (&json!("fifo"), &Value::Null));
    let seen = ground.admin.get(&at(&id, "/stat?path=d/b")).await.expect(200);
    assert_eq!((&seen["size"], &seen["mode"], &seen["kind"]), (&json!(3), &json!("0644"), &json!("file")));

    post("/directory", json!({ "path": "e/f" })).await.expect(200);
    post("/move", json!({ "from": "d/a", "to": "e/f/a" })).await.expect(200);
    post("/move", json!({ "from": "d/b", "to": "e/f/a" })).await.refused(409, "file_exists");
    ground.admin.delete(&at(&id, "?path=e")).await.refused(409, "directory_not_empty");
    ground.admin.delete(&at(&id, "?path=e&recursive=true")).await.expect(200);
    ground.admin.get(&at(&id, "/stat?path=e")).await.refused(404, "file_not_found");
    for (path, status, code) in [
        ("d", 409, "file_is_directory"),
        ("d/pipe", 409, "file_unsupported"),
        ("/dev/zero", 409, "file_unsupported"),
        ("nothing", 404, "file_not_found"),
        ("", 422, "invalid"),
        ("a%00b", 422, "invalid"),
    ] {
        ground.admin.get(&at(&id, &format!("?path={path}"))).await.refused(status, code);
    }
    put(&ground, &id, "?path=/etc/passwd", "root").await.refused(409, "file_denied");
    put(&ground, &id, "?path=/usr/bin/new", "x").await.refused(409, "file_denied");
    put(&ground, &id, "?path=d/link", "x").await.refused(409, "file_unsupported");
    put(&ground, &id, "?path=a&mode=4755", "x").await.refused(400, "bad_request");
    // An answer comes also to a client that is still sending.
    put(&ground, &id, "?path=d", vec![0; 8 << 20]).await.refused(409, "file_is_directory");
    ground.admin.get(&at(&id, "/list?path=d/b")).await.refused(409, "not_a_directory");
    ground.admin.delete(&at(&id, "?path=/workspace&recursive=true")).await.refused(409, "file_denied");
    assert_eq!(ground.shell(&id, "cat d/b").await.well(), "22\n");
    ground.leave().await;
}

/// A helper has the agent's rights and nothing of the worker's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_helper_is_the_agent_and_ends_with_its_client() {
    let ground = Ground::start();
    let id = ground.kept(json!({})).await;
    ground.shell(&id, "dd if=/dev/zero of=large bs=1M count=200 status=none").await.well();
    let answer = get(&ground, &id, "?path=large", &[]).await;
    let mut pieces = answer.bytes_stream();
    assert!(pieces.next().await.unwrap().is_ok());
    let find = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null | grep -q 'exe files' && \
                grep -E '^(Uid|CapEff|NoNewPrivs)' $p/status; done; true";
    let seen = ground.shell(&id, find).await.well();
    assert!(seen.contains("Uid:\t1000\t1000\t1000\t1000") && seen.contains("CapEff:\t0000000000000000"), "{seen}");
    assert!(seen.contains("NoNewPrivs:\t1"), "{seen}");
    drop(pieces);
    no_helper(&ground, &id).await;

    // Half an upload: the client goes away in the middle.
    put(&ground, &id, "?path=file", "as it was").await.expect(200);
    let (sender, receiver) = tokio::sync::mpsc::channel::<Result<Vec<u8>, std::io::Error>>(4);
    let body = stream::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) });
    let request = ground.admin.request(Method::PUT, &at(&id, "?path=file")).body(Body::wrap_stream(body));
    let sending = tokio::spawn(request.send());
    for _ in 0..8 {
        sender.send(Ok(vec![1; 1 << 20])).await.unwrap();
    }
    sending.abort();
    drop(sender);
    no_helper(&ground, &id).await;
    assert_eq!(ground.shell(&id, "cat file; ls -A | grep -c atoll; true").await.well(), "as it was0\n");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_costs_no_memory() {
    let ground = Ground::start();
    let id = ground.kept(json!({})).await;
    ground.shell(&id, "dd if=/dev/zero of=large bs=1M count=300 status=none").await.well();
    let memory = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", ground.server.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap().to_owned();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let before = memory();
    let answers: Vec<_> = {
        let asked = (0..4).map(|_| get(&ground, &id, "?path=large", &[]));
        futures_util::future::join_all(asked).await
    };
    // Nobody reads for a while.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let grown = memory().saturating_sub(before);
    assert!(grown < 60_000, "the server grew by {grown} kB for 1.2 GB that nobody reads");
    drop(answers);
    no_helper(&ground, &id).await;
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_what_has_ended_are_refused() {
    let ground = Ground::start();
    let id = ground.make(json!({ "prompt": "say done" })).await;
    ground.ended(&id).await;
    let refused = ground.admin.get(&at(&id, "/list")).await;
    assert_eq!(refused.status.as_u16(), 409, "{}", refused.body);
    assert!(["sandbox_gone", "provider_refused"].contains(&refused.body["code"].as_str().unwrap()), "{}", refused.body);
    ground.leave().await;
}

fn cp(ground: &Ground, from: &str, to: &str) -> Output {
    run(ground, &["sandbox", "cp", from, to])
}

fn run(ground: &Ground, arguments: &[&str]) -> Output {
    let mut command = command("atoll");
    command.args(arguments).env("ATOLL_DATA_DIR", ground.data()).stdin(std::process::Stdio::null());
    command.output().unwrap()
}

#[track_caller]
fn well(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn shown(path: &Path) -> String {
    let script = "find . -mindepth 1 -printf '%P %y %l\\n' | sort; find . -type f -exec sha256sum {} + | sort";
    let done = std::process::Command::new("sh").args(["-c", script]).current_dir(path).output().unwrap();
    String::from_utf8(done.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cp_moves_files_and_trees_both_ways() {
    let ground = Ground::start();
    let id = ground.kept(json!({})).await;
    let here = ground.path().join("here");
    std::fs::create_dir_all(here.join("tree/deep")).unwrap();
    std::fs::write(here.join("tree/deep/file"), vec![3; 1_500_000]).unwrap();
    std::fs::write(here.join("tree/empty"), "").unwrap();
    std::os::unix::fs::symlink("deep/file", here.join("tree/link")).unwrap();
    let path = |name: &str| here.join(name).to_str().unwrap().to_owned();
    let inside = |path: &str| format!("{id}:{path}");

    // As DST where there is nothing, into DST where there is a directory.
    well(&cp(&ground, &path("tree"), &inside("copy")));
    well(&cp(&ground, &path("tree"), &inside("copy")));
    well(&cp(&ground, &inside("copy"), &path("back")));
    assert_eq!(shown(&here.join("back/tree")), shown(&here.join("tree")));
    well(&cp(&ground, &path("tree/deep/file"), &inside("copy/")));
    let seen =
        ground.shell(&id, "sha256sum < copy/file; sha256sum < copy/tree/deep/file; stat -c %U copy/tree").await.well();
    let lines: Vec<&str> = seen.lines().collect();
    assert_eq!((lines[0], lines[2]), (lines[1], "agent"));
    well(&cp(&ground, &inside("copy/file"), &path("one")));
    assert_eq!(std::fs::read(here.join("one")).unwrap().len(), 1_500_000);
    assert_eq!(well(&run(&ground, &["sandbox", "exec", &id, "--no-stdin", "--shell", "echo hello > out.txt"])), "");
    assert_eq!(well(&cp(&ground, &inside("out.txt"), "-")), "hello\n");
    let listed = well(&run(&ground, &["sandbox", "files", &id, "copy"]));
    assert!(listed.contains("drwxr-xr-x") && listed.contains("tree/") && listed.contains("1500000"), "{listed}");

    let missing = cp(&ground, &inside("nothing"), &path("x"));
    assert_eq!(missing.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("file_not_found"), "{missing:?}");
    assert_eq!(cp(&ground, &path("nothing"), &inside("x")).status.code(), Some(2));
    assert_eq!(cp(&ground, &path("one"), &path("two")).status.code(), Some(2));
    ground.leave().await;
}

/// A sandbox that wants to write outside of where its files are copied to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cp_takes_nothing_out_of_its_place() {
    let ground = Ground::start();
    let id = ground.kept(json!({})).await;
    let here = ground.path().join("here");
    std::fs::create_dir_all(here.join("outside")).unwrap();
    std::fs::write(here.join("outside/secret"), "as it was").unwrap();
    let script = format!(
        "mkdir -p evil/d; echo x > evil/d/plain; ln -s {} evil/absolute; ln -s ../../outside evil/d/up; \
         ln -s d evil/within; mkfifo evil/fifo; chmod 6755 evil/d/plain",
        here.join("outside").display()
    );
    ground.shell(&id, &script).await.well();
    let copied = cp(&ground, &format!("{id}:evil"), here.join("got").to_str().unwrap());
    assert_eq!(copied.status.code(), Some(1), "what was not copied is said: {copied:?}");
    let said = String::from_utf8_lossy(&copied.stderr);
    assert!(said.contains("absolute was not copied") && said.contains("3 entries"), "{said}");
    assert_eq!(
        shown(&here.join("got")).lines().filter(|line| !line.contains("./")).collect::<Vec<_>>(),
        ["d d ", "d/plain f ", "within l d"]
    );
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(here.join("got/d/plain")).unwrap().permissions());
    assert_eq!(mode & 0o7000, 0, "nobody gets set-uid");
    assert_eq!(std::fs::read_to_string(here.join("outside/secret")).unwrap(), "as it was");
    assert_eq!(std::fs::read_dir(here.join("outside")).unwrap().count(), 1);
    ground.leave().await;
}
