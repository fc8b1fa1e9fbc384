//! Files of a real sandbox, over the API and with the command line.

use atoll_test_wait::try_poll_for;
use atoll_tests::local::{LocalServer, event_data};
use atoll_tests::process::program_command;
use futures_util::{StreamExt, stream};
use reqwest::{Body, Method, StatusCode};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Output;
use std::time::Duration;

fn files_path(id: &str, rest: &str) -> String {
    format!("/sandboxes/{id}/files{rest}")
}

async fn put_file(
    server: &LocalServer,
    id: &str,
    rest: &str,
    body: impl Into<Body>,
) -> atoll_tests::actor::ApiResponse {
    let request = server.admin.request(Method::PUT, &files_path(id, rest)).body(body);
    server.admin.send(request).await
}

async fn get_file(server: &LocalServer, id: &str, rest: &str, headers: &[(&str, &str)]) -> reqwest::Response {
    let request = server.admin.request(Method::GET, &files_path(id, rest));
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    request.send().await.unwrap()
}

fn header_value<'a>(response: &'a reqwest::Response, name: &str) -> &'a str {
    response.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

/// Waits until no helper for files runs in the sandbox.
async fn wait_until_no_helper(server: &LocalServer, id: &str) {
    wait_for_helper(server, id, false).await;
}

/// Waits until a helper for files runs in the sandbox, or until none does.
async fn wait_for_helper(server: &LocalServer, id: &str, is_expected: bool) {
    let polled = try_poll_for(async || {
        let commands =
            server.run_shell(id, "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '; true").await.expect_success();
        if commands.contains("exe files") == is_expected { Ok(()) } else { Err(commands) }
    });
    polled.await.unwrap_or_else(|commands| panic!("a helper is expected: {is_expected}; running: {commands}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_is_written_and_read_whole_and_in_ranges() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    put_file(&server, &id, "?path=notes/a.txt", "x").await.expect_problem(404, "file_not_found");
    let done = put_file(&server, &id, "?path=notes/a.txt&parents=true&mode=640", "0123456789").await.expect_status(200);
    assert_eq!((&done["bytes"], &done["skipped"]), (&json!(10), &json!(0)));
    let output = server.run_shell(&id, "stat -c '%a %U %n' notes/a.txt; cat notes/a.txt").await.expect_success();
    assert_eq!(output, "640 agent notes/a.txt\n0123456789", "the agent must own it");

    let whole = get_file(&server, &id, "?path=/workspace/notes/a.txt", &[]).await;
    assert_eq!((whole.status(), header_value(&whole, "content-length")), (StatusCode::OK, "10"));
    assert_eq!(header_value(&whole, "content-type"), "application/octet-stream");
    assert_eq!(
        (header_value(&whole, "x-content-type-options"), header_value(&whole, "accept-ranges")),
        ("nosniff", "bytes")
    );
    assert!(header_value(&whole, "last-modified").ends_with(" GMT"));
    let tag = header_value(&whole, "etag").to_owned();
    assert_eq!(whole.bytes().await.unwrap(), "0123456789");
    let path = "?path=notes/a.txt";
    for (range, part, content_range) in [
        ("bytes=0-3", "0123", "bytes 0-3/10"),
        ("bytes=7-", "789", "bytes 7-9/10"),
        ("bytes=-2", "89", "bytes 8-9/10"),
        ("bytes=8-100", "89", "bytes 8-9/10"),
    ] {
        let response = get_file(&server, &id, path, &[("range", range)]).await;
        assert_eq!(
            (response.status().as_u16(), header_value(&response, "content-range")),
            (206, content_range),
            "{range}"
        );
        assert_eq!(response.bytes().await.unwrap(), part, "{range}");
    }
    let beyond = get_file(&server, &id, path, &[("range", "bytes=10-")]).await;
    assert_eq!((beyond.status().as_u16(), header_value(&beyond, "content-range")), (416, "bytes */10"));
    assert_eq!(beyond.json::<Value>().await.unwrap()["code"], "range_not_satisfiable");
    assert_eq!(get_file(&server, &id, path, &[("if-none-match", &tag)]).await.status().as_u16(), 304);
    let other = get_file(&server, &id, path, &[("range", "bytes=0-3"), ("if-range", "\"other\"")]).await;
    assert_eq!(other.status().as_u16(), 200, "another version is sent whole");

    // The mode stays, and the log names the writer.
    put_file(&server, &id, path, "anew").await.expect_status(200);
    assert_eq!(server.run_shell(&id, "stat -c %a notes/a.txt; cat notes/a.txt").await.expect_success(), "640\nanew");
    let events = server.admin.all_events(&id).await;
    let written = event_data(&events, "files.written");
    assert_eq!(
        written,
        [&json!({ "path": "notes/a.txt", "bytes": 10 }), &json!({ "path": "notes/a.txt", "bytes": 4 })]
    );
    let event = events.iter().find(|event| event["type"] == "files.written").unwrap();
    assert!(event["source"] == "user" && event["actor"].is_string(), "{event}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_listed_moved_and_deleted_and_invalid_operations_are_rejected() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    server.run_shell(&id, "mkdir d; echo 1 > d/a; echo 22 > d/b; ln -s a d/link; mkfifo d/pipe").await.expect_success();
    let post = |rest: &'static str, body: Value| {
        let path = files_path(&id, rest);
        let admin = server.admin.clone();
        async move { admin.post(&path, body).await }
    };
    let first = server.admin.get(&files_path(&id, "/list?path=d&limit=3")).await.expect_status(200);
    let names: Vec<&str> = first["items"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b", "link"]);
    assert_eq!((&first["items"][2]["kind"], &first["items"][2]["target"]), (&json!("link"), &json!("a")));
    let cursor = first["next_cursor"].as_str().unwrap();
    let second =
        server.admin.get(&files_path(&id, &format!("/list?path=d&limit=3&cursor={cursor}"))).await.expect_status(200);
    assert_eq!((&second["items"][0]["kind"], &second["next_cursor"]), (&json!("fifo"), &Value::Null));
    let stat = server.admin.get(&files_path(&id, "/stat?path=d/b")).await.expect_status(200);
    assert_eq!((&stat["size"], &stat["mode"], &stat["kind"]), (&json!(3), &json!("0644"), &json!("file")));

    post("/directory", json!({ "path": "e/f" })).await.expect_status(200);
    post("/move", json!({ "from": "d/a", "to": "e/f/a" })).await.expect_status(200);
    post("/move", json!({ "from": "d/b", "to": "e/f/a" })).await.expect_problem(409, "file_exists");
    server.admin.delete(&files_path(&id, "?path=e")).await.expect_problem(409, "directory_not_empty");
    server.admin.delete(&files_path(&id, "?path=e&recursive=true")).await.expect_status(200);
    server.admin.get(&files_path(&id, "/stat?path=e")).await.expect_problem(404, "file_not_found");
    for (path, status, code) in [
        ("d", 409, "file_is_directory"),
        ("d/pipe", 409, "file_unsupported"),
        ("/dev/zero", 409, "file_unsupported"),
        ("nothing", 404, "file_not_found"),
        ("", 422, "invalid"),
        ("a%00b", 422, "invalid"),
    ] {
        server.admin.get(&files_path(&id, &format!("?path={path}"))).await.expect_problem(status, code);
    }
    put_file(&server, &id, "?path=/etc/passwd", "root").await.expect_problem(409, "file_denied");
    put_file(&server, &id, "?path=/usr/bin/new", "x").await.expect_problem(409, "file_denied");
    put_file(&server, &id, "?path=d/link", "x").await.expect_problem(409, "file_unsupported");
    put_file(&server, &id, "?path=a&mode=4755", "x").await.expect_problem(400, "bad_request");
    // The server also answers a client that is still sending.
    put_file(&server, &id, "?path=d", vec![0; 8 << 20]).await.expect_problem(409, "file_is_directory");
    server.admin.get(&files_path(&id, "/list?path=d/b")).await.expect_problem(409, "not_a_directory");
    server.admin.delete(&files_path(&id, "?path=/workspace&recursive=true")).await.expect_problem(409, "file_denied");
    assert_eq!(server.run_shell(&id, "cat d/b").await.expect_success(), "22\n");
    server.stop_and_check().await;
}

/// The helper has the agent's rights and none of the worker's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_helper_runs_as_the_agent_and_exits_with_its_client() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    server.run_shell(&id, "dd if=/dev/zero of=large bs=1M count=200 status=none").await.expect_success();
    let response = get_file(&server, &id, "?path=large", &[]).await;
    let mut pieces = response.bytes_stream();
    assert!(pieces.next().await.unwrap().is_ok());
    let find = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null | grep -q 'exe files' && \
                grep -E '^(Uid|CapEff|NoNewPrivs)' $p/status; done; true";
    let status = server.run_shell(&id, find).await.expect_success();
    assert!(
        status.contains("Uid:\t1000\t1000\t1000\t1000") && status.contains("CapEff:\t0000000000000000"),
        "{status}"
    );
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    drop(pieces);
    wait_until_no_helper(&server, &id).await;

    // The client disconnects in the middle of an upload.
    put_file(&server, &id, "?path=file", "as it was").await.expect_status(200);
    let (sender, receiver) = tokio::sync::mpsc::channel::<Result<Vec<u8>, std::io::Error>>(4);
    let body = stream::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) });
    let request = server.admin.request(Method::PUT, &files_path(&id, "?path=file")).body(Body::wrap_stream(body));
    let sending = tokio::spawn(request.send());
    for _ in 0..8 {
        sender.send(Ok(vec![1; 1 << 20])).await.unwrap();
    }
    wait_for_helper(&server, &id, true).await;
    sending.abort();
    // The sender outlives the body: without it the body would end properly, as a complete upload.
    sender.closed().await;
    wait_until_no_helper(&server, &id).await;
    let content = server.run_shell(&id, "head -c 100 file; ls -A | grep -c atoll; true").await.expect_success();
    assert_eq!(content, "as it was0\n");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_does_not_grow_the_servers_memory() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    server.run_shell(&id, "dd if=/dev/zero of=large bs=1M count=300 status=none").await.expect_success();
    let memory = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.process.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap().to_owned();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let before = memory();
    let responses: Vec<_> = {
        let requests = (0..4).map(|_| get_file(&server, &id, "?path=large", &[]));
        futures_util::future::join_all(requests).await
    };
    // Time for the server to read ahead.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let grown = memory().saturating_sub(before);
    assert!(grown < 60_000, "the server grew by {grown} kB for 1.2 GB of unread data");
    drop(responses);
    wait_until_no_helper(&server, &id).await;
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_requests_for_an_ended_sandbox_are_rejected() {
    let server = LocalServer::start();
    let id = server.create_sandbox(json!({ "prompt": "say done" })).await;
    server.wait_until_ended(&id).await;
    let refused = server.admin.get(&files_path(&id, "/list")).await;
    assert_eq!(refused.status.as_u16(), 409, "{}", refused.body);
    assert!(["sandbox_gone", "provider_refused"].contains(&refused.body["code"].as_str().unwrap()), "{}", refused.body);
    server.stop_and_check().await;
}

fn run_cp(server: &LocalServer, from: &str, to: &str) -> Output {
    run_atoll(server, &["sandbox", "cp", from, to])
}

fn run_atoll(server: &LocalServer, arguments: &[&str]) -> Output {
    let mut command = program_command("atoll");
    command.args(arguments).env("ATOLL_DATA_DIR", server.data_dir()).stdin(std::process::Stdio::null());
    command.output().unwrap()
}

#[track_caller]
fn expect_success(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn describe_tree(path: &Path) -> String {
    let script = "find . -mindepth 1 -printf '%P %y %l\\n' | sort; find . -type f -exec sha256sum {} + | sort";
    let done = std::process::Command::new("sh").args(["-c", script]).current_dir(path).output().unwrap();
    String::from_utf8(done.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cp_copies_files_and_trees_in_both_directions() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    let host_dir = server.root_dir().join("here");
    std::fs::create_dir_all(host_dir.join("tree/deep")).unwrap();
    std::fs::write(host_dir.join("tree/deep/file"), vec![3; 1_500_000]).unwrap();
    std::fs::write(host_dir.join("tree/empty"), "").unwrap();
    std::os::unix::fs::symlink("deep/file", host_dir.join("tree/link")).unwrap();
    let path = |name: &str| host_dir.join(name).to_str().unwrap().to_owned();
    let sandbox_path = |path: &str| format!("{id}:{path}");

    // Copies to DST if DST does not exist, else into the directory DST.
    expect_success(&run_cp(&server, &path("tree"), &sandbox_path("copy")));
    expect_success(&run_cp(&server, &path("tree"), &sandbox_path("copy")));
    expect_success(&run_cp(&server, &sandbox_path("copy"), &path("back")));
    assert_eq!(describe_tree(&host_dir.join("back/tree")), describe_tree(&host_dir.join("tree")));
    expect_success(&run_cp(&server, &path("tree/deep/file"), &sandbox_path("copy/")));
    let output = server
        .run_shell(&id, "sha256sum < copy/file; sha256sum < copy/tree/deep/file; stat -c %U copy/tree")
        .await
        .expect_success();
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!((lines[0], lines[2]), (lines[1], "agent"));
    expect_success(&run_cp(&server, &sandbox_path("copy/file"), &path("one")));
    assert_eq!(std::fs::read(host_dir.join("one")).unwrap().len(), 1_500_000);
    assert_eq!(
        expect_success(&run_atoll(&server, &["sandbox", "exec", &id, "--no-stdin", "--shell", "echo hello > out.txt"])),
        ""
    );
    assert_eq!(expect_success(&run_cp(&server, &sandbox_path("out.txt"), "-")), "hello\n");
    let listed = expect_success(&run_atoll(&server, &["sandbox", "files", &id, "copy"]));
    assert!(listed.contains("drwxr-xr-x") && listed.contains("tree/") && listed.contains("1.4 MiB"), "{listed}");

    let missing = run_cp(&server, &sandbox_path("nothing"), &path("x"));
    assert_eq!(missing.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("file_not_found"), "{missing:?}");
    assert_eq!(run_cp(&server, &path("nothing"), &sandbox_path("x")).status.code(), Some(2));
    assert_eq!(run_cp(&server, &path("one"), &path("two")).status.code(), Some(2));
    server.stop_and_check().await;
}

/// A sandbox tries to write outside the destination of `cp`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cp_never_writes_outside_its_destination() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    let host_dir = server.root_dir().join("here");
    std::fs::create_dir_all(host_dir.join("outside")).unwrap();
    std::fs::write(host_dir.join("outside/secret"), "as it was").unwrap();
    let script = format!(
        "mkdir -p evil/d; echo x > evil/d/plain; ln -s {} evil/absolute; ln -s ../../outside evil/d/up; \
         ln -s d evil/within; mkfifo evil/fifo; chmod 6755 evil/d/plain",
        host_dir.join("outside").display()
    );
    server.run_shell(&id, &script).await.expect_success();
    let copied = run_cp(&server, &format!("{id}:evil"), host_dir.join("got").to_str().unwrap());
    assert_eq!(copied.status.code(), Some(1), "skipped entries must fail the command: {copied:?}");
    let stderr = String::from_utf8_lossy(&copied.stderr);
    assert!(stderr.contains("absolute was not copied") && stderr.contains("3 entries"), "{stderr}");
    assert_eq!(
        describe_tree(&host_dir.join("got")).lines().filter(|line| !line.contains("./")).collect::<Vec<_>>(),
        ["d d ", "d/plain f ", "within l d"]
    );
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(host_dir.join("got/d/plain")).unwrap().permissions(),
    );
    assert_eq!(mode & 0o7000, 0, "cp must drop the set-uid bit");
    assert_eq!(std::fs::read_to_string(host_dir.join("outside/secret")).unwrap(), "as it was");
    assert_eq!(std::fs::read_dir(host_dir.join("outside")).unwrap().count(), 1);
    server.stop_and_check().await;
}
