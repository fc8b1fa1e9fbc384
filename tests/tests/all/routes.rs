//! Every route × every kind of principal, from the OpenAPI document itself.

use atoll_tests::actor::{Actor, External};
use atoll_tests::database::Kind;
use atoll_tests::on_both_databases;
use atoll_tests::server::TestServer;
use atoll_tests::worker::HandWorker;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// What is expected of each, in this order: nobody, a garbage token, an admin, and then with the
/// project in question: its member, its viewer, a member of another project, its service; the
/// sandbox's worker, another sandbox's worker, the worker of a sandbox that has ended and is drained.
///
/// `+` may, `1` 401, `3` 403, `4` 404: what one may not see isn't there.
const EXPECTED: &[(&str, &str)] = &[
    ("GET /healthz", "++++++++++"),
    ("GET /readyz", "++++++++++"),
    ("GET /metrics", "11+++++333"),
    ("GET /api/v1/sandboxes/health", "11+++++333"),
    ("POST /api/v1/sandboxes", "11++34+333"),
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
    ("DELETE /api/v1/sandboxes/{id}/exec/{eid}", "11++34+333"),
    ("POST /api/v1/sandboxes/{id}/exec/{eid}/signal", "11++34+333"),
    ("POST /api/v1/sandboxes/{id}/exec/{eid}/resize", "11++34+333"),
    ("POST /api/v1/sandboxes/{id}/exec/{eid}/stdin", "11++34+333"),
    // To open one; at one that is there a viewer may look.
    ("GET /api/v1/sandboxes/{id}/terminal", "11++34+333"),
    ("GET /api/v1/agents", "11+++++333"),
    ("GET /api/v1/approvals", "11+++++333"),
    ("GET /api/v1/sandboxes/{id}/approvals", "11+++4+333"),
    ("POST /api/v1/sandboxes/{id}/approvals/{approval_id}", "11++34+333"),
    ("GET /api/v1/sandboxes/{id}/diff", "11+++4+333"),
    ("GET /api/v1/sandboxes/{id}/network", "11+++4+333"),
    ("PUT /api/v1/sandboxes/{id}/network", "11++34+333"),
    ("GET /api/v1/sandboxes/{id}/limits", "11+++4+333"),
    ("PATCH /api/v1/sandboxes/{id}/limits", "11++34+333"),
    ("POST /api/v1/sandboxes/{id}/events", "1133333+31"),
    ("GET /api/v1/sandboxes/{id}/events", "11+++4+333"),
    ("GET /api/v1/sandboxes/{id}/events/stream", "11+++4+333"),
    ("GET /api/v1/sandboxes/{id}/trajectory", "11+++4+333"),
    ("GET /api/v1/sandboxes/{id}/transcript", "11+++4+333"),
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
    // Everybody makes, sees and ends their own tokens; a service has none of its own.
    ("POST /api/v1/tokens", "11++++3333"),
    ("GET /api/v1/tokens", "11++++3333"),
    ("DELETE /api/v1/tokens/{id}", "11+4444333"),
    ("POST /api/v1/ws-tickets", "11+++++333"),
    ("GET /api/v1/snapshots", "11+++++333"),
    ("DELETE /api/v1/snapshots/{name}", "11++34+333"),
    ("GET /api/v1/images", "11+++++333"),
    ("POST /api/v1/images", "11+3333333"),
    ("DELETE /api/v1/images/{name}", "11+3333333"),
    ("GET /api/v1/secrets", "11+++++333"),
    ("PUT /api/v1/secrets/{name}", "11+3343333"),
    ("DELETE /api/v1/secrets/{name}", "11+3343333"),
    ("POST /api/v1/secrets/rotate", "11+3333333"),
    ("POST /api/v1/gc", "11+3333333"),
];

const ASKED: &str = "apr_1";
const HELLO: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
const PRINCIPALS: [&str; 10] = [
    "nobody",
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

/// The people and programs around one project.
struct World {
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

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

async fn user(admin: &Actor, name: &str, role: &str, project: &str) -> (String, Actor) {
    let user = text(&admin.post("/users", json!({ "name": name, "role": role })).await.expect(201)["id"]);
    admin.put(&format!("/projects/{project}/members/{user}"), json!({ "role": role })).await.expect(200);
    let token = admin.post("/tokens", json!({ "name": name, "user_id": user })).await.expect(201);
    (user, admin.with_token(token["token"].as_str().unwrap()))
}

async fn service(admin: &Actor, role: &str, project: &str) -> Actor {
    let body = json!({ "name": "robot", "kind": "service", "role": role, "project_id": project });
    admin.with_token(admin.post("/tokens", body).await.expect(201)["token"].as_str().unwrap())
}

impl World {
    async fn new(server: &TestServer) -> Self {
        let admin = server.admin();
        let project = text(&admin.post("/projects", json!({ "name": "ours" })).await.expect(201)["id"]);
        let other_project = text(&admin.post("/projects", json!({ "name": "theirs" })).await.expect(201)["id"]);
        let (member_id, member) = user(&admin, "member", "member", &project).await;
        let (_, viewer) = user(&admin, "viewer", "viewer", &project).await;
        let (_, outsider) = user(&admin, "outsider", "member", &other_project).await;
        let service = service(&admin, "member", &project).await;
        let other = admin.external(json!({ "project_id": project })).await;
        let other_worker = admin.with_token(&other.token);
        let anon = server.anon();
        Self { admin, anon, member, viewer, outsider, service, other_worker, project, other_project, member_id }
    }

    /// A sandbox of the project with a message and a blob; drained if that is asked for.
    async fn sandbox(&self, drained: bool) -> (External, String, HandWorker) {
        let sandbox = self.admin.external(json!({ "project_id": self.project })).await;
        let worker = HandWorker::new(&self.admin, &sandbox);
        let path = format!("/sandboxes/{}", sandbox.id);
        let sent = self.admin.post(&format!("{path}/messages"), json!({ "content": "x" })).await.expect(201);
        let put = worker.actor.request(Method::PUT, &format!("{path}/blobs/{HELLO}")).body("hello");
        worker.actor.send(put).await.expect(200);
        let asked =
            json!({ "event_type": "approval.requested", "source": "agent", "event_data": { "approval_id": ASKED } });
        worker.actor.post(&format!("{path}/events"), asked).await.expect(200);
        if drained {
            self.admin.post(&format!("{path}/stop"), json!({ "results": "discard" })).await.expect(200);
            let last = json!({ "stream": worker.stream, "final": true, "events": [] });
            worker.actor.post(&format!("{path}/events"), last).await.expect(200);
        }
        (sandbox, text(&sent["id"]), worker)
    }

    fn body(&self, route: &str, worker: &HandWorker, message: &str) -> Value {
        let (stream, lease) = (worker.stream, message.replace("msg_", "lea_"));
        match route.rsplit_once("/api/v1").map_or(route, |(_, path)| path) {
            "/sandboxes" => json!({ "project_id": self.project }),
            "/sandboxes/{id}/events" => json!({ "stream": stream, "events": [] }),
            "/sandboxes/{id}/snapshot" => json!({ "name": "one" }),
            "/sandboxes/{id}/approvals/{approval_id}" => json!({ "decision": "allow" }),
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
            "/projects/{id}/members/{user}" => json!({ "role": "viewer" }),
            "/secrets/{name}" => json!({ "value": "a value", "project_id": self.project }),
            _ => json!({}),
        }
    }

    /// Asks for this route as that principal, with everything in it that it names.
    async fn ask(&self, route: &str, who: &str) -> StatusCode {
        let (method, path) = route.split_once(' ').unwrap();
        let (sandbox, message, worker) = self.sandbox(who == "drained worker").await;
        let actor = match who {
            "nobody" => self.anon.clone(),
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
            Some("sessions") => sandbox.session.clone(),
            Some("projects") => self.project.clone(),
            _ => String::new(),
        };
        let mut user = self.member_id.clone();
        if path.contains("/users/{id}") || path.contains("{user}") || path.contains("/tokens/{id}") {
            // Somebody else, who can go.
            let name = json!({ "name": uuid::Uuid::now_v7() });
            user = text(&self.admin.post("/users", name).await.expect(201)["id"]);
            let member = format!("/projects/{}/members/{user}", self.project);
            self.admin.put(&member, json!({ "role": "viewer" })).await.expect(200);
            let token = self.admin.post("/tokens", json!({ "name": "t", "user_id": user })).await.expect(201);
            match path.split('/').nth(3) {
                Some("users") => id = user.clone(),
                Some("tokens") => id = text(&token["id"]),
                _ => {}
            }
        }
        let place = [
            ("{id}", id.as_str()),
            ("{mid}", &message),
            ("{user}", &user),
            ("{sha256}", HELLO),
            ("{eid}", "1"),
            ("{approval_id}", ASKED),
            ("{name}", if path.contains("/secrets/") { "NAME" } else { "nothing" }),
        ];
        let mut target = place.iter().fold(path.to_owned(), |path, (name, value)| path.replace(name, value));
        assert!(!target.contains('{'), "{route} names something that this test doesn't know");
        if path.ends_with("/{id}/stream") {
            target.push_str(&format!("?stream={}", worker.stream));
        }
        if path.contains("/snapshots/") {
            target.push_str(&format!("?project_id={}", self.project));
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
        if method == "PUT" && path.ends_with("{sha256}") {
            request = request.body("hello");
        } else if method != "GET" && method != "DELETE" {
            request = request.json(&self.body(path, &worker, &message));
        }
        request.send().await.unwrap().status()
    }
}

fn documented() -> BTreeSet<String> {
    let document: Value = serde_json::from_str(&atoll_server::router::openapi().to_json().unwrap()).unwrap();
    let mut found = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let methods = item.as_object().unwrap().keys().filter(|key| key.parse::<Method>().is_ok());
        found.extend(methods.map(|method| format!("{} {path}", method.to_uppercase())));
    }
    found
}

#[test]
fn every_route_is_in_the_table() {
    let expected: BTreeSet<String> = EXPECTED.iter().map(|(route, _)| (*route).to_owned()).collect();
    let documented = documented();
    let missing: Vec<_> = documented.difference(&expected).collect();
    let gone: Vec<_> = expected.difference(&documented).collect();
    assert!(missing.is_empty() && gone.is_empty(), "say who may: {missing:?}; not there any more: {gone:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_principal_may_do_what_the_table_says() {
    let server = TestServer::start(Kind::Sqlite).await;
    let world = World::new(&server).await;
    let mut wrong = Vec::new();
    for (route, expected) in EXPECTED {
        for (who, expected) in PRINCIPALS.iter().zip(expected.chars()) {
            let status = world.ask(route, who).await;
            let right = match expected {
                '1' => status == 401,
                '3' => status == 403,
                '4' => status == 404,
                _ => ![401, 403, 404].contains(&status.as_u16()) && status.as_u16() < 500,
            };
            if !right {
                wrong.push(format!("{route} as {who}: {status}, expected {expected}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    server.stop().await;
}

on_both_databases!(nobody_raises_themselves, a_service_sees_its_project_only);

async fn nobody_raises_themselves(kind: Kind) {
    let server = TestServer::start(kind).await;
    let world = World::new(&server).await;
    let me = &world.member_id;
    let admin_id = text(&world.admin.get("/users").await.expect(200)["items"][0]["id"]);
    let robot = service(&world.admin, "admin", &world.project).await;
    for actor in [&world.member, &world.viewer, &world.outsider, &world.service, &robot] {
        for body in [
            json!({ "name": "t", "user_id": admin_id }),
            json!({ "name": "t", "kind": "service", "role": "admin" }),
            json!({ "name": "t", "kind": "service", "role": "viewer" }),
            json!({ "name": "t", "kind": "service", "project_id": world.project }),
        ] {
            actor.post("/tokens", body).await.refused(403, "forbidden");
        }
        actor.patch(&format!("/users/{me}"), json!({ "role": "admin" })).await.refused(403, "forbidden");
        actor.post("/users", json!({ "name": "x", "role": "admin" })).await.refused(403, "forbidden");
        let nudge = json!({ "content": "x", "type": "guardian_nudge" });
        let (sandbox, ..) = world.sandbox(false).await;
        let sent = actor.post(&format!("/sandboxes/{}/messages", sandbox.id), nudge).await;
        assert!([403, 404].contains(&sent.status.as_u16()), "{}", sent.body);
        // A directory of the server is for a local admin of the deployment only.
        for repo in [json!({ "path": "/etc" }), json!({ "path": "/etc", "url": "https://example.org/a" })] {
            let body = json!({ "project_id": world.project, "repo": repo });
            let made = actor.post("/sandboxes", body).await;
            assert!([403, 404].contains(&made.status.as_u16()), "{}", made.body);
        }
    }
    // Who administers the project may give roles in it, and still name no path or file of the server.
    let ours = format!("/projects/{}", world.project);
    robot.put(&format!("{ours}/members/{me}"), json!({ "role": "admin" })).await.expect(200);
    for actor in [&robot, &world.member] {
        actor.patch(&ours, json!({ "repo": { "path": "/etc" } })).await.refused(403, "forbidden");
        actor.patch(&ours, json!({ "defaults": { "repo": { "path": "/etc" } } })).await.refused(403, "forbidden");
        actor.patch(&ours, json!({ "repo": { "url": "file:///etc" } })).await.refused(422, "invalid");
        actor.post("/projects", json!({ "name": "x" })).await.refused(403, "forbidden");
        actor.delete(&ours).await.refused(403, "forbidden");
        actor.patch(&format!("/users/{me}"), json!({ "role": "admin" })).await.refused(403, "forbidden");
        actor
            .patch(&format!("/projects/{}", world.other_project), json!({ "name": "y" }))
            .await
            .refused(404, "not_found");
    }
    let own = world.member.post("/tokens", json!({ "name": "own" })).await.expect(201);
    assert_eq!((own["role"].as_str(), own["user_id"].as_str()), (Some("member"), Some(me.as_str())));
    let own = world.member.with_token(own["token"].as_str().unwrap());
    own.get("/users").await.refused(403, "forbidden");
    world.member.post("/tokens", json!({ "name": "t", "role": "admin" })).await.refused(422, "invalid");
    world.admin.post("/sandboxes", json!({ "repo": { "path": "/srv/code" } })).await.expect(201);
    server.stop().await;
}

async fn a_service_sees_its_project_only(kind: Kind) {
    let server = TestServer::start(kind).await;
    let world = World::new(&server).await;
    let theirs = world.admin.external(json!({ "project_id": world.other_project })).await;
    world.admin.external(json!({})).await;
    for actor in [&world.service, &service(&world.admin, "admin", &world.project).await] {
        for list in ["/sandboxes", "/sessions"] {
            let items = actor.get(list).await.expect(200)["items"].as_array().unwrap().clone();
            assert!(!items.is_empty() && items.iter().all(|item| item["project_id"] == *world.project), "{items:?}");
        }
        let projects = actor.get("/projects").await.expect(200);
        assert_eq!(
            (projects["items"].as_array().unwrap().len(), &projects["items"][0]["id"]),
            (1, &json!(world.project))
        );
        let filtered = actor.get(&format!("/sandboxes?project={}", world.other_project)).await.expect(200);
        assert_eq!(filtered["items"], json!([]));
        for path in [
            format!("/sandboxes/{}", theirs.id),
            format!("/sandboxes/{}/events", theirs.id),
            format!("/sandboxes/{}/events/stream", theirs.id),
            format!("/sessions/{}", theirs.session),
            format!("/projects/{}", world.other_project),
        ] {
            actor.get(&path).await.refused(404, "not_found");
        }
        // Where nothing is said the default project is meant, which is not the service's.
        actor.post("/sandboxes", json!({})).await.refused(404, "not_found");
        let elsewhere = json!({ "project_id": world.other_project });
        actor.post("/sandboxes", elsewhere).await.refused(404, "not_found");
        let foreign = json!({ "session_id": theirs.session, "project_id": world.project });
        actor.post("/sandboxes", foreign).await.refused(404, "not_found");
    }
    server.stop().await;
}
