//! Access of every kind of principal to every route of the OpenAPI document.

use atoll_tests::actor::{Actor, ExternalSandbox};
use atoll_tests::database::DatabaseKind;
use atoll_tests::manual_worker::ManualWorker;
use atoll_tests::on_both_databases;
use atoll_tests::server::TestServer;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The expected access to each route, with one character per entry of `PRINCIPALS`.
///
/// `+` allowed, `1` 401, `3` 403, `4` 404, which hides a resource that the principal may not see.
const EXPECTED_ACCESS: &[(&str, &str)] = &[
    ("GET /healthz", "++++++++++"),
    ("GET /readyz", "++++++++++"),
    ("GET /metrics", "11+++++333"),
    ("GET /api/v1/sandboxes/health", "11+++++333"),
    ("GET /api/v1/sandboxes/monitoring/status", "11+++++333"),
    ("POST /api/v1/sandboxes", "11++34+333"),
    ("POST /api/v1/sandboxes/preview", "11++34+333"),
    ("GET /api/v1/sandboxes", "11+++++333"),
    ("GET /api/v1/sandboxes/{id}", "11+++4++31"),
    ("DELETE /api/v1/sandboxes/{id}", "11++34+333"),
    ("POST /api/v1/sandboxes/{id}/stop", "11++34+333"),
    ("POST /api/v1/sandboxes/{id}/results", "11++34+333"),
    ("POST /api/v1/sandboxes/{id}/pause", "11++34+333"),
    ("POST /api/v1/sandboxes/{id}/resume", "11++34+333"),
    ("POST /api/v1/sandboxes/{id}/fork", "11++34+333"),
    ("POST /api/v1/sandboxes/{id}/snapshot", "11++34+333"),
    ("GET /api/v1/sandboxes/{id}/resources", "11+++4+333"),
    ("POST /api/v1/sandboxes/{id}/worker-token", "11++34+333"),
    ("POST /api/v1/sandboxes/{id}/exec", "11++34+333"),
    ("GET /api/v1/sandboxes/{id}/exec", "11+++4+333"),
    ("GET /api/v1/sandboxes/{id}/exec/{eid}", "11++34+333"),
    ("GET /api/v1/sandboxes/{id}/files", "11+++4+333"),
    ("PUT /api/v1/sandboxes/{id}/files", "11++34+333"),
    ("DELETE /api/v1/sandboxes/{id}/files", "11++34+333"),
    ("GET /api/v1/sandboxes/{id}/files/list", "11+++4+333"),
    ("GET /api/v1/sandboxes/{id}/files/stat", "11+++4+333"),
    ("POST /api/v1/sandboxes/{id}/files/move", "11++34+333"),
    ("POST /api/v1/sandboxes/{id}/files/directory", "11++34+333"),
    ("GET /api/v1/sandboxes/{id}/files/tar", "11+++4+333"),
    ("PUT /api/v1/sandboxes/{id}/files/tar", "11++34+333"),
    ("POST /api/v1/sandboxes/{id}/worktree/in", "11++34+333"),
    ("POST /api/v1/sandboxes/{id}/worktree/out", "11++34+333"),
    ("DELETE /api/v1/sandboxes/{id}/exec/{eid}", "11++34+333"),
    ("POST /api/v1/sandboxes/{id}/exec/{eid}/signal", "11++34+333"),
    ("POST /api/v1/sandboxes/{id}/exec/{eid}/resize", "11++34+333"),
    ("POST /api/v1/sandboxes/{id}/exec/{eid}/stdin", "11++34+333"),
    // This request opens a terminal. A viewer may only watch an existing one.
    ("GET /api/v1/sandboxes/{id}/terminal", "11++34+333"),
    ("GET /api/v1/agents", "11+++++333"),
    ("GET /api/v1/providers", "11+++++333"),
    ("GET /api/v1/interventions", "11+++++333"),
    // There is no such intervention.
    ("GET /api/v1/interventions/{id}", "1144444333"),
    ("GET /api/v1/sandboxes/{id}/interventions", "11+++4+333"),
    ("GET /api/v1/sandboxes/{id}/guardian", "11+++4+333"),
    ("POST /api/v1/sandboxes/{id}/guardian/replay", "11+++4+333"),
    ("GET /api/v1/approvals", "11+++++333"),
    ("GET /api/v1/sandboxes/{id}/approvals", "11+++4+333"),
    ("POST /api/v1/sandboxes/{id}/approvals/{approval_id}", "11++34+333"),
    ("GET /api/v1/sandboxes/{id}/diff", "11+++4+333"),
    ("GET /api/v1/sandboxes/{id}/ports", "11+++4+333"),
    ("POST /api/v1/sandboxes/{id}/previews", "11++34+333"),
    ("GET /api/v1/sandboxes/{id}/previews", "11+++4+333"),
    // An external sandbox has no preview to revoke.
    ("DELETE /api/v1/sandboxes/{id}/previews/{preview_id}", "1144344333"),
    ("GET /api/v1/sandboxes/{id}/network", "11+++4+333"),
    ("PUT /api/v1/sandboxes/{id}/network", "11++34+333"),
    ("GET /api/v1/sandboxes/{id}/limits", "11+++4+333"),
    ("PATCH /api/v1/sandboxes/{id}/limits", "11++34+333"),
    ("POST /api/v1/sandboxes/{id}/events", "1133333+31"),
    ("GET /api/v1/sandboxes/{id}/events", "11+++4+333"),
    ("GET /api/v1/sandboxes/{id}/events/stream", "11+++4+333"),
    ("GET /api/v1/sandboxes/{id}/trajectory", "11+++4+333"),
    ("GET /api/v1/sandboxes/{id}/transcript", "11+++4+333"),
    ("GET /api/v1/sandboxes/{id}/logs", "11+++4+333"),
    ("POST /api/v1/sandboxes/{id}/heartbeat", "1133333+31"),
    ("GET /api/v1/sandboxes/{id}/stream", "1133333+31"),
    ("POST /api/v1/sandboxes/{id}/messages", "11++34+333"),
    ("GET /api/v1/sandboxes/{id}/messages", "11+++4++31"),
    ("PATCH /api/v1/sandboxes/{id}/messages/{mid}", "11++34+333"),
    ("DELETE /api/v1/sandboxes/{id}/messages/{mid}", "11++34+333"),
    ("POST /api/v1/sandboxes/{id}/messages/lease", "1133333+31"),
    ("POST /api/v1/sandboxes/{id}/messages/{mid}/ack", "1133333+31"),
    ("POST /api/v1/sandboxes/{id}/messages/{mid}/nack", "1133333+31"),
    ("POST /api/v1/sandboxes/{id}/logins", "1133333+31"),
    ("PUT /api/v1/sandboxes/{id}/blobs/{sha256}", "1133333+31"),
    ("GET /api/v1/sandboxes/{id}/blobs/{sha256}", "11+++4++31"),
    ("GET /api/v1/events/ws", "11+++++333"),
    ("GET /api/v1/sessions", "11+++++333"),
    ("GET /api/v1/sessions/{id}", "11+++4+333"),
    ("PATCH /api/v1/sessions/{id}", "11++34+333"),
    ("POST /api/v1/sessions/{id}/resume", "11++34+333"),
    ("POST /api/v1/sessions/{id}/fork", "11++34+333"),
    ("POST /api/v1/sessions/{id}/messages", "11++34+333"),
    ("GET /api/v1/sessions/{id}/messages", "11+++4+333"),
    ("PATCH /api/v1/sessions/{id}/messages/{mid}", "11++34+333"),
    ("DELETE /api/v1/sessions/{id}/messages/{mid}", "11++34+333"),
    ("POST /api/v1/tickets", "11++34+333"),
    ("GET /api/v1/tickets", "11+++++333"),
    ("GET /api/v1/tickets/{id}", "11+++4+333"),
    ("PATCH /api/v1/tickets/{id}", "11++34+333"),
    ("DELETE /api/v1/tickets/{id}", "11++34+333"),
    ("POST /api/v1/tasks", "11++34+333"),
    ("GET /api/v1/tasks", "11+++++333"),
    ("POST /api/v1/tasks/bulk", "11+++++333"),
    ("GET /api/v1/tasks/{id}", "11+++4+333"),
    ("PATCH /api/v1/tasks/{id}", "11++34+333"),
    ("POST /api/v1/tasks/{id}/cancel", "11++34+333"),
    ("POST /api/v1/tasks/{id}/retry", "11++34+333"),
    // The sandbox of these requests has no task.
    ("GET /api/v1/sandboxes/{id}/task", "1144444431"),
    ("POST /api/v1/sandboxes/{id}/task-complete", "1144344431"),
    ("POST /api/v1/sandboxes/{id}/validation-result", "1144344333"),
    ("POST /api/v1/branch-workflow/start", "11++34+333"),
    ("POST /api/v1/branch-workflow/finish", "11++34+333"),
    ("POST /api/v1/branch-workflow/merge", "11++34+333"),
    ("GET /api/v1/branch-workflow/status", "11+++4+333"),
    ("GET /api/v1/pull-requests", "11+++++333"),
    // The session of this request has no pull request.
    ("GET /api/v1/pull-requests/{id}", "1144444333"),
    ("POST /api/v1/projects", "11+3333333"),
    ("GET /api/v1/projects", "11+++++333"),
    ("GET /api/v1/projects/{id}", "11+++4+333"),
    ("PATCH /api/v1/projects/{id}", "11+3343333"),
    ("DELETE /api/v1/projects/{id}", "11+3333333"),
    ("GET /api/v1/projects/{id}/members", "11+++4+333"),
    ("PUT /api/v1/projects/{id}/members/{user}", "11+3343333"),
    ("DELETE /api/v1/projects/{id}/members/{user}", "11+3343333"),
    ("POST /api/v1/users", "11+3333333"),
    ("GET /api/v1/users", "11+3333333"),
    ("GET /api/v1/users/{id}", "11+3333333"),
    ("PATCH /api/v1/users/{id}", "11+3333333"),
    ("DELETE /api/v1/users/{id}", "11+3333333"),
    // Users manage their own tokens. A service token has none.
    ("POST /api/v1/tokens", "11++++3333"),
    ("GET /api/v1/tokens", "11++++3333"),
    ("DELETE /api/v1/tokens/{id}", "11+4444333"),
    ("POST /api/v1/ws-tickets", "11+++++333"),
    // The body holds the credential.
    ("POST /api/v1/sign-in-sessions", "++++++++++"),
    ("GET /api/v1/sign-in-sessions", "11+++++333"),
    // The request names no sign-in of its own.
    ("DELETE /api/v1/sign-in-sessions/{id}", "1144444333"),
    ("POST /api/v1/sign-in-links", "11+++++333"),
    ("GET /api/v1/me", "11+++++333"),
    ("GET /api/v1/snapshots", "11+++++333"),
    ("DELETE /api/v1/snapshots/{name}", "11++34+333"),
    ("GET /api/v1/caches", "11+++++333"),
    ("DELETE /api/v1/caches/{name}", "11++34+333"),
    ("POST /api/v1/caches/prune", "11++34+333"),
    ("GET /api/v1/images", "11+++++333"),
    ("POST /api/v1/images", "11+3333333"),
    ("DELETE /api/v1/images/{name}", "11+3333333"),
    ("GET /api/v1/secrets", "11+++++333"),
    ("PUT /api/v1/secrets/{name}", "11+3343333"),
    ("DELETE /api/v1/secrets/{name}", "11+3343333"),
    ("POST /api/v1/secrets/rotate", "11+3333333"),
    ("POST /api/v1/gc", "11+3333333"),
    ("GET /api/v1/forges", "11+++++333"),
    // Only users have logins at a forge.
    ("POST /api/v1/forges/{forge}/login", "11++++3333"),
    ("DELETE /api/v1/forges/{forge}/login", "11++++3333"),
    ("POST /api/v1/forges/{forge}/login/poll", "11++++3333"),
    // The signature is the credential. Without a configured secret there is no such route.
    ("POST /api/v1/webhooks/github", "4444444444"),
];

const APPROVAL_ID: &str = "apr_1";
const PREVIEW_ID: &str = "prv_01k9z6m3q8e5t7v2x4y6a8b0cd";
const HELLO_SHA256: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
const PRINCIPALS: [&str; 10] = [
    "anonymous",
    "garbage",
    "admin",
    "member",
    "viewer",
    "outsider",
    "service",
    "worker",
    "other worker",
    "drained worker",
];

/// The principals and the projects of the route tests.
struct RouteTestSetup {
    admin: Actor,
    anon: Actor,
    member: Actor,
    viewer: Actor,
    outsider: Actor,
    service: Actor,
    other_worker: Actor,
    project: String,
    other_project: String,
    member_id: String,
}

fn string_value(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

async fn create_user(admin: &Actor, name: &str, role: &str, project: &str) -> (String, Actor) {
    let user =
        string_value(&admin.post("/users", json!({ "name": name, "role": role })).await.expect_status(201)["id"]);
    admin.put(&format!("/projects/{project}/members/{user}"), json!({ "role": role })).await.expect_status(200);
    let token = admin.post("/tokens", json!({ "name": name, "user_id": user })).await.expect_status(201);
    (user, admin.with_token(token["token"].as_str().unwrap()))
}

async fn create_service(admin: &Actor, role: &str, project: &str) -> Actor {
    let body = json!({ "name": "robot", "kind": "service", "role": role, "project_id": project });
    admin.with_token(admin.post("/tokens", body).await.expect_status(201)["token"].as_str().unwrap())
}

impl RouteTestSetup {
    async fn new(server: &TestServer) -> Self {
        let admin = server.admin();
        let project = string_value(&admin.post("/projects", json!({ "name": "ours" })).await.expect_status(201)["id"]);
        let other_project =
            string_value(&admin.post("/projects", json!({ "name": "theirs" })).await.expect_status(201)["id"]);
        let (member_id, member) = create_user(&admin, "member", "member", &project).await;
        let (_, viewer) = create_user(&admin, "viewer", "viewer", &project).await;
        let (_, outsider) = create_user(&admin, "outsider", "member", &other_project).await;
        let service = create_service(&admin, "member", &project).await;
        let other = admin.create_external_sandbox(json!({ "project_id": project })).await;
        let other_worker = admin.with_token(&other.token);
        let anon = server.anon();
        Self { admin, anon, member, viewer, outsider, service, other_worker, project, other_project, member_id }
    }

    /// Creates a sandbox with a message, a blob and an approval, and drains it on request.
    async fn create_sandbox(&self, drained: bool) -> (ExternalSandbox, String, ManualWorker) {
        let sandbox = self.admin.create_external_sandbox(json!({ "project_id": self.project })).await;
        let worker = ManualWorker::new(&self.admin, &sandbox);
        let path = format!("/sandboxes/{}", sandbox.id);
        let sent = self.admin.post(&format!("{path}/messages"), json!({ "content": "x" })).await.expect_status(201);
        let put = worker.actor.request(Method::PUT, &format!("{path}/blobs/{HELLO_SHA256}")).body("hello");
        worker.actor.send(put).await.expect_status(200);
        let approval = json!({ "event_type": "approval.requested", "source": "agent",
            "event_data": { "approval_id": APPROVAL_ID } });
        worker.actor.post(&format!("{path}/events"), approval).await.expect_status(200);
        if drained {
            self.admin.post(&format!("{path}/stop"), json!({ "results": "discard" })).await.expect_status(200);
            let last = json!({ "stream": worker.stream, "final": true, "events": [] });
            worker.actor.post(&format!("{path}/events"), last).await.expect_status(200);
        }
        (sandbox, string_value(&sent["id"]), worker)
    }

    fn request_body(&self, route: &str, worker: &ManualWorker, message: &str) -> Value {
        let (stream, lease) = (worker.stream, message.replace("msg_", "lea_"));
        match route.rsplit_once("/api/v1").map_or(route, |(_, path)| path) {
            "/sandboxes" | "/sandboxes/preview" => json!({ "project_id": self.project }),
            "/sandboxes/{id}/events" => json!({ "stream": stream, "events": [] }),
            "/sandboxes/{id}/snapshot" => json!({ "name": "one" }),
            "/sandboxes/{id}/approvals/{approval_id}" => json!({ "decision": "allow" }),
            "/sandboxes/{id}/previews" => json!({ "port": 3000 }),
            "/sandboxes/{id}/network" => json!({ "policy": "none" }),
            "/sandboxes/{id}/limits" => json!({ "turns": 5 }),
            "/sandboxes/{id}/exec" => json!({ "argv": ["true"] }),
            "/sandboxes/{id}/files/move" => json!({ "from": "a", "to": "b" }),
            "/sandboxes/{id}/files/directory" => json!({ "path": "a" }),
            "/sandboxes/{id}/exec/{eid}/signal" => json!({ "signal": "TERM" }),
            "/sandboxes/{id}/exec/{eid}/resize" => json!({ "cols": 80, "rows": 24 }),
            "/sandboxes/{id}/heartbeat" => {
                json!({ "stream": stream, "at": "2026-01-01T00:00:00Z", "activity": "working" })
            }
            "/sandboxes/{id}/messages/lease" | "/sandboxes/{id}/logins" => json!({ "stream": stream }),
            "/sandboxes/{id}/messages/{mid}/ack" => json!({ "stream": stream, "lease": lease, "how": "injected" }),
            "/sandboxes/{id}/messages/{mid}/nack" => json!({ "stream": stream, "lease": lease, "handed": false }),
            path if path.ends_with("/messages") => json!({ "content": "x" }),
            "/projects" | "/users" | "/tokens" => json!({ "name": uuid::Uuid::now_v7() }),
            "/tasks" | "/tickets" => json!({ "title": "x", "project_id": self.project }),
            "/sandboxes/{id}/validation-result" => json!({ "passed": true }),
            "/caches/prune" => json!({ "project_id": self.project }),
            "/projects/{id}/members/{user}" => json!({ "role": "viewer" }),
            "/secrets/{name}" => json!({ "value": "a value", "project_id": self.project }),
            _ => json!({}),
        }
    }

    /// Sends a request for this route as this principal, with all path parameters filled in.
    async fn send_request(&self, route: &str, principal: &str) -> StatusCode {
        let (method, path) = route.split_once(' ').unwrap();
        let (sandbox, message, worker) = self.create_sandbox(principal == "drained worker").await;
        let actor = match principal {
            "anonymous" => self.anon.clone(),
            "garbage" => self.anon.with_token("atoll_garbage"),
            "admin" => self.admin.clone(),
            "member" => self.member.clone(),
            "viewer" => self.viewer.clone(),
            "outsider" => self.outsider.clone(),
            "service" => self.service.clone(),
            "other worker" => self.other_worker.clone(),
            _ => worker.actor.clone(),
        };
        let mut id = match path.split('/').nth(3) {
            Some("sandboxes") => sandbox.id.clone(),
            Some("sessions" | "pull-requests") => sandbox.session.clone(),
            Some("projects") => self.project.clone(),
            Some("tickets" | "branch-workflow") => {
                let new = json!({ "title": "x", "project_id": self.project });
                string_value(&self.admin.post("/tickets", new).await.expect_status(201)["id"])
            }
            Some("tasks") => {
                let new = json!({ "title": "x", "project_id": self.project });
                string_value(&self.admin.post("/tasks", new).await.expect_status(201)["id"])
            }
            Some("sign-in-sessions") => "current".to_owned(),
            Some("interventions") => "itv_00000000000000000000000000".to_owned(),
            _ => String::new(),
        };
        let mut user = self.member_id.clone();
        if path.contains("/users/{id}") || path.contains("{user}") || path.contains("/tokens/{id}") {
            // Create another user that the request may delete.
            let name = json!({ "name": uuid::Uuid::now_v7() });
            user = string_value(&self.admin.post("/users", name).await.expect_status(201)["id"]);
            let member = format!("/projects/{}/members/{user}", self.project);
            self.admin.put(&member, json!({ "role": "viewer" })).await.expect_status(200);
            let token = self.admin.post("/tokens", json!({ "name": "t", "user_id": user })).await.expect_status(201);
            match path.split('/').nth(3) {
                Some("users") => id = user.clone(),
                Some("tokens") => id = string_value(&token["id"]),
                _ => {}
            }
        }
        let parameters = [
            ("{id}", id.as_str()),
            ("{mid}", &message),
            ("{user}", &user),
            ("{sha256}", HELLO_SHA256),
            ("{eid}", "1"),
            ("{approval_id}", APPROVAL_ID),
            ("{forge}", "github"),
            ("{preview_id}", PREVIEW_ID),
            ("{name}", if path.contains("/secrets/") { "NAME" } else { "nothing" }),
        ];
        let mut target = parameters.iter().fold(path.to_owned(), |path, (name, value)| path.replace(name, value));
        assert!(!target.contains('{'), "{route} has an unknown path parameter");
        if path.ends_with("/{id}/stream") {
            target.push_str(&format!("?stream={}", worker.stream));
        }
        if path.contains("/snapshots/") || path.contains("/caches/{name}") {
            target.push_str(&format!("?project_id={}", self.project));
        }
        if path.ends_with("/branch-workflow/status") {
            target.push_str(&format!("?ticket={id}"));
        }
        if route == "POST /api/v1/images" {
            target.push_str("?name=one");
        }
        if method == "DELETE" && path.ends_with("/secrets/{name}") {
            let body = json!({ "value": "a value", "project_id": self.project });
            let set = self.admin.put("/secrets/NAME", body).await;
            assert!([200, 201].contains(&set.status.as_u16()), "{}", set.body);
            target.push_str(&format!("?project_id={}", self.project));
        }
        if path.contains("/files") && method != "POST" {
            target.push_str("?path=a");
        }
        let mut request = actor.request(method.parse().unwrap(), &target);
        if path.ends_with("/{id}/stream") || path.ends_with("/ws") || path.ends_with("/terminal") {
            request = request.header("connection", "Upgrade").header("upgrade", "websocket");
            request =
                request.header("sec-websocket-version", "13").header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
        }
        if path.ends_with("/webhooks/github") {
            for name in ["x-github-event", "x-github-delivery", "x-hub-signature-256"] {
                request = request.header(name, "x");
            }
        }
        if method == "PUT" && path.ends_with("{sha256}") {
            request = request.body("hello");
        } else if method != "GET" && method != "DELETE" {
            let mut body = self.request_body(path, &worker, &message);
            match path.split('/').next_back() {
                Some("start") => body["ticket_id"] = id.into(),
                Some("finish" | "merge") => body["session_id"] = sandbox.session.into(),
                _ => {}
            }
            request = request.json(&body);
        }
        request.send().await.unwrap().status()
    }
}

fn documented_routes() -> BTreeSet<String> {
    let document: Value = serde_json::from_str(&atoll_server::router::openapi_document().to_json().unwrap()).unwrap();
    let mut found = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let methods = item.as_object().unwrap().keys().filter(|key| key.parse::<Method>().is_ok());
        found.extend(methods.map(|method| format!("{} {path}", method.to_uppercase())));
    }
    found
}

#[test]
fn every_route_is_in_the_table() {
    let expected: BTreeSet<String> = EXPECTED_ACCESS.iter().map(|(route, _)| (*route).to_owned()).collect();
    let documented = documented_routes();
    let missing: Vec<_> = documented.difference(&expected).collect();
    let gone: Vec<_> = expected.difference(&documented).collect();
    assert!(missing.is_empty() && gone.is_empty(), "missing in the table: {missing:?}; no longer documented: {gone:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_principal_has_the_access_in_the_table() {
    let server = TestServer::start(DatabaseKind::Sqlite).await;
    let setup = RouteTestSetup::new(&server).await;
    let mut wrong = Vec::new();
    for (route, expected) in EXPECTED_ACCESS {
        for (principal, expected) in PRINCIPALS.iter().zip(expected.chars()) {
            let status = setup.send_request(route, principal).await;
            let is_expected = match expected {
                '1' => status == 401,
                '3' => status == 403,
                '4' => status == 404,
                _ => ![401, 403, 404].contains(&status.as_u16()) && status.as_u16() < 500,
            };
            if !is_expected {
                wrong.push(format!("{route} as {principal}: {status}, expected {expected}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    server.stop().await;
}

on_both_databases!(no_principal_can_escalate_its_privileges, a_service_token_sees_only_its_project);

async fn no_principal_can_escalate_its_privileges(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let setup = RouteTestSetup::new(&server).await;
    let me = &setup.member_id;
    let admin_id = string_value(&setup.admin.get("/users").await.expect_status(200)["items"][0]["id"]);
    let service_admin = create_service(&setup.admin, "admin", &setup.project).await;
    for actor in [&setup.member, &setup.viewer, &setup.outsider, &setup.service, &service_admin] {
        for body in [
            json!({ "name": "t", "user_id": admin_id }),
            json!({ "name": "t", "kind": "service", "role": "admin" }),
            json!({ "name": "t", "kind": "service", "role": "viewer" }),
            json!({ "name": "t", "kind": "service", "project_id": setup.project }),
        ] {
            actor.post("/tokens", body).await.expect_problem(403, "forbidden");
        }
        actor.patch(&format!("/users/{me}"), json!({ "role": "admin" })).await.expect_problem(403, "forbidden");
        actor.post("/users", json!({ "name": "x", "role": "admin" })).await.expect_problem(403, "forbidden");
        let nudge = json!({ "content": "x", "type": "guardian_nudge" });
        let (sandbox, ..) = setup.create_sandbox(false).await;
        let sent = actor.post(&format!("/sandboxes/{}/messages", sandbox.id), nudge).await;
        assert!([403, 404].contains(&sent.status.as_u16()), "{}", sent.body);
        // Only an admin of the deployment may use a directory of the server.
        for repo in [json!({ "path": "/etc" }), json!({ "path": "/etc", "url": "https://example.org/a" })] {
            let body = json!({ "project_id": setup.project, "repo": repo });
            let created = actor.post("/sandboxes", body).await;
            assert!([403, 404].contains(&created.status.as_u16()), "{}", created.body);
        }
    }
    // An admin of the project may assign roles in it, but may not use a path of the server.
    let project_path = format!("/projects/{}", setup.project);
    service_admin.put(&format!("{project_path}/members/{me}"), json!({ "role": "admin" })).await.expect_status(200);
    for actor in [&service_admin, &setup.member] {
        actor.patch(&project_path, json!({ "repo": { "path": "/etc" } })).await.expect_problem(403, "forbidden");
        actor
            .patch(&project_path, json!({ "defaults": { "repo": { "path": "/etc" } } }))
            .await
            .expect_problem(403, "forbidden");
        actor.patch(&project_path, json!({ "repo": { "url": "file:///etc" } })).await.expect_problem(403, "forbidden");
        actor.post("/projects", json!({ "name": "x" })).await.expect_problem(403, "forbidden");
        actor.delete(&project_path).await.expect_problem(403, "forbidden");
        actor.patch(&format!("/users/{me}"), json!({ "role": "admin" })).await.expect_problem(403, "forbidden");
        actor
            .patch(&format!("/projects/{}", setup.other_project), json!({ "name": "y" }))
            .await
            .expect_problem(404, "not_found");
    }
    let own = setup.member.post("/tokens", json!({ "name": "own" })).await.expect_status(201);
    assert_eq!(own["expires_at"], Value::Null);
    // A token expires no later than the token that created it.
    let short = json!({ "name": "short", "expires_at": "2099-01-01T00:00:00.000000Z" });
    let short = setup.admin.post("/tokens", short).await.expect_status(201);
    let short = setup.admin.with_token(short["token"].as_str().unwrap());
    for (asked, granted) in [
        (Value::Null, "2099-01-01T00:00:00.000000Z"),
        (json!("2100-01-01T00:00:00Z"), "2099-01-01T00:00:00.000000Z"),
        (json!("2098-01-01T00:00:00Z"), "2098-01-01T00:00:00.000000Z"),
    ] {
        let made = short.post("/tokens", json!({ "name": "made", "expires_at": asked })).await.expect_status(201);
        assert_eq!(made["expires_at"], granted, "{made}");
    }
    assert_eq!((own["role"].as_str(), own["user_id"].as_str()), (Some("member"), Some(me.as_str())));
    let own = setup.member.with_token(own["token"].as_str().unwrap());
    own.get("/users").await.expect_problem(403, "forbidden");
    setup.member.post("/tokens", json!({ "name": "t", "role": "admin" })).await.expect_problem(422, "invalid");
    setup.admin.post("/sandboxes", json!({ "repo": { "path": "/srv/code" } })).await.expect_status(201);
    server.stop().await;
}

async fn a_service_token_sees_only_its_project(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let setup = RouteTestSetup::new(&server).await;
    let other_sandbox = setup.admin.create_external_sandbox(json!({ "project_id": setup.other_project })).await;
    setup.admin.create_external_sandbox(json!({})).await;
    for actor in [&setup.service, &create_service(&setup.admin, "admin", &setup.project).await] {
        for list in ["/sandboxes", "/sessions"] {
            let items = actor.get(list).await.expect_status(200)["items"].as_array().unwrap().clone();
            assert!(!items.is_empty() && items.iter().all(|item| item["project_id"] == *setup.project), "{items:?}");
        }
        let projects = actor.get("/projects").await.expect_status(200);
        assert_eq!(
            (projects["items"].as_array().unwrap().len(), &projects["items"][0]["id"]),
            (1, &json!(setup.project))
        );
        let filtered = actor.get(&format!("/sandboxes?project={}", setup.other_project)).await.expect_status(200);
        assert_eq!(filtered["items"], json!([]));
        for path in [
            format!("/sandboxes/{}", other_sandbox.id),
            format!("/sandboxes/{}/events", other_sandbox.id),
            format!("/sandboxes/{}/events/stream", other_sandbox.id),
            format!("/sessions/{}", other_sandbox.session),
            format!("/projects/{}", setup.other_project),
        ] {
            actor.get(&path).await.expect_problem(404, "not_found");
        }
        // Without a project the request means the default project, which is not the service's.
        actor.post("/sandboxes", json!({})).await.expect_problem(404, "not_found");
        let elsewhere = json!({ "project_id": setup.other_project });
        actor.post("/sandboxes", elsewhere).await.expect_problem(404, "not_found");
        let foreign = json!({ "session_id": other_sandbox.session, "project_id": setup.project });
        actor.post("/sandboxes", foreign).await.expect_problem(404, "not_found");
    }
    server.stop().await;
}
