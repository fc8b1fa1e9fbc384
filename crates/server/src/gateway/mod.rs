//! The way from sandboxes to models. An agent speaks to it as to the API itself, with a key that is good for nothing
//! else; here the real one is put in, what was used is counted, and what a limit forbids is refused before it is sent.
//!
//! ```text
//! agent ─► 127.0.0.1:7709/anthropic/… ─► path: is it served? ─► asked: which model? ─► account: is there enough?
//!       ◄───────────── bill: counted while it passes ◄────────── client ◄──► upstream, with the real key
//! ```
//!
//! The key is found by `credential`; where a `login` is stored in its place, `renew` keeps that good.
//!
//! The network policy of a sandbox has no say here. What is deliberately absent: no body is kept, and nothing of an
//! answer is changed.

mod account;
mod asked;
mod bill;
mod client;
mod credential;
mod headers;
mod hold;
mod login;
mod path;
mod placeholder;
mod purse;
mod refusal;
mod renew;
mod scan;
mod serve;

pub use placeholder::Placeholders;
pub use serve::serve;

use crate::app::{continuous, limits};
use crate::egress::proxy_of;
use crate::options::{Model, ModelUpstream, Models, Outward};
use crate::problem::Problem;
use crate::state::App;
use account::{Account, Balance, Stop};
use asked::Asked;
use atoll_core::event::{NewEvent, kind};
use atoll_core::id::{ProjectId, SandboxId};
use atoll_core::model::{Api, Price, Tokens, list_price};
use atoll_core::sandbox::AgentLimits;
use atoll_store::{Tx, sandboxes};
use axum::body::Bytes;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use axum::http::{Request, Response, StatusCode, Uri, Version, request};
use bill::{Bill, Item, Metered};
use credential::{Credentials, Key};
use hold::Room;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use path::{Found, Purpose, Route};
use purse::Purses;
use refusal::Refusal;
use scan::Scanner;
use serde_json::json;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub type Body = BoxBody<Bytes, hyper::Error>;

/// For what is under way when the server stops.
const SETTLING: Duration = Duration::from_secs(2);
const MOST_ACCOUNTS: usize = 10_000;

pub struct Gateway {
    models: Models,
    upstreams: client::Upstreams,
    placeholders: Placeholders,
    credentials: Credentials,
    accounts: Mutex<HashMap<SandboxId, Arc<Account>>>,
    purses: Purses,
    room: Room,
    /// Held by every bill until it is written down.
    open: Arc<()>,
}

impl Gateway {
    pub fn new(models: &Models, outward: &Outward, placeholders: Placeholders) -> Self {
        Self {
            models: models.clone(),
            upstreams: client::new(proxy_of(outward)),
            placeholders,
            credentials: Credentials::default(),
            accounts: Mutex::default(),
            purses: Purses::default(),
            room: Room::of_all(),
            open: Arc::default(),
        }
    }

    /// What a sandbox shows in place of a key.
    pub fn placeholder(&self, sandbox: SandboxId) -> String {
        self.placeholders.of(sandbox)
    }

    /// Waits, though not for long, until everything that was used is written down.
    pub async fn settled(&self) {
        let deadline = tokio::time::Instant::now() + SETTLING;
        while Arc::strong_count(&self.open) > 1 && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn listed(&self, name: &str) -> Option<&Model> {
        self.models.listed.iter().find(|model| model.name == name)
    }

    /// What a model costs, by the name that agents have for it.
    pub fn price_of(&self, name: &str) -> Option<Price> {
        match self.listed(name) {
            // Its own name says nothing of what it costs; the upstream's does.
            Some(model) => model.price.or_else(|| list_price(model.model.as_deref().unwrap_or(&model.name))),
            None => list_price(name),
        }
    }

    /// The upstream of this name, or the one that an API has by itself: its own, else the first that was named for it.
    fn upstream(&self, api: Api, name: Option<&str>) -> Option<&ModelUpstream> {
        let all = || self.models.upstreams.iter().filter(|upstream| upstream.api == api);
        match name {
            Some(name) => all().find(|upstream| upstream.name == name),
            None => {
                let own = all().find(|upstream| upstream.name == api.as_str());
                let has_key = |upstream: &&ModelUpstream| upstream.key.is_some() || !upstream.needs_key;
                own.filter(has_key).or_else(|| all().find(has_key)).or(own)
            }
        }
    }

    /// Which model is meant and who serves it.
    fn choose(&self, route: &Route, asked: &Asked) -> Result<Chosen<'_>, Refusal> {
        let name = route.in_path.as_ref().map(|(model, _)| model).or(asked.model.as_ref());
        let listed = match name {
            _ if self.models.listed.is_empty() || route.purpose == Purpose::Look => None,
            None => return Err(Refusal::NoModel),
            Some(name) => Some(self.listed(name).ok_or_else(|| Refusal::NotListed {
                model: name.chars().take(200).collect(),
                listed: self.models.listed.iter().map(|model| model.name.clone()).collect(),
            })?),
        };
        let upstream = self.upstream(route.api, listed.map(|model| model.upstream.as_str()));
        let upstream = upstream.ok_or_else(|| match listed {
            None => Refusal::NoUpstream,
            Some(model) => {
                let other = self.models.upstreams.iter().find(|upstream| upstream.name == model.upstream);
                other.map_or(Refusal::NoUpstream, |other| Refusal::OtherApi {
                    model: model.name.clone(),
                    api: other.api,
                })
            }
        })?;
        let price = name.and_then(|name| self.price_of(name));
        Ok(Chosen {
            upstream,
            name: name.cloned(),
            above: listed.and_then(|model| model.model.as_deref()),
            context: listed.and_then(|model| model.context),
            price,
        })
    }

    async fn account(&self, app: &App, sandbox: SandboxId) -> Result<Arc<Account>, Refusal> {
        if let Some(known) = self.accounts.lock().unwrap_or_else(PoisonError::into_inner).get(&sandbox) {
            return Ok(Arc::clone(known));
        }
        let read = app.read(move |tx| Box::pin(async move { stored(tx, sandbox).await })).await;
        let (project, balance) = read.map_err(|_| Refusal::Busy)?.ok_or(Refusal::BadKey)?;
        let made = Account::new(sandbox, self.purses.of(app, project).await?, balance);
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        if accounts.len() >= MOST_ACCOUNTS {
            // What somebody holds has something under way that is not written down yet.
            accounts.retain(|_, account| Arc::strong_count(account) > 1);
            self.purses.tidy();
        }
        Ok(Arc::clone(accounts.entry(sandbox).or_insert_with(|| Arc::new(made))))
    }

    /// A person has changed what a sandbox may spend.
    pub fn limits_changed(&self, sandbox: SandboxId, limits: &AgentLimits) {
        if let Some(account) = self.accounts.lock().unwrap_or_else(PoisonError::into_inner).get(&sandbox) {
            account.set_limit(limits.cost_usd.map(account::micros));
        }
    }

    /// With the real key in place of the placeholder.
    async fn send(
        &self,
        head: &request::Parts,
        body: &Bytes,
        upstream: &ModelUpstream,
        key: Option<&Key>,
    ) -> Result<Response<Incoming>, hyper_util::client::legacy::Error> {
        let mut headers = head.headers.clone();
        headers::prepare(&mut headers, upstream.api, upstream.auth, key);
        let mut request = Request::new(Full::new(body.clone()));
        (*request.method_mut(), *request.uri_mut()) = (head.method.clone(), head.uri.clone());
        *request.headers_mut() = headers;
        self.upstreams.request(request).await
    }

    /// Its task began or is done: until then the sandbox may have spent this much.
    pub fn task_changed(&self, sandbox: SandboxId, most: Option<i64>) {
        if let Some(account) = self.accounts.lock().unwrap_or_else(PoisonError::into_inner).get(&sandbox) {
            account.set_task(most);
            // What was not worth a word in one phase of it may be in the next.
            account.passes();
        }
    }

    /// A person has changed a project: perhaps what its sandboxes may spend together.
    pub async fn project_changed(&self, app: &App, project: ProjectId) {
        self.purses.changed(app, project).await;
    }

    /// Holds what the request may cost at most.
    async fn reserve(&self, app: &Arc<App>, account: &Arc<Account>, most: i64) -> Result<(), Refusal> {
        match account.reserve(most, app.clock.now()) {
            Err(Refusal::Budget { .. }) => {}
            held => return held,
        }
        let sandbox = account.sandbox;
        let read = app.read(move |tx| Box::pin(async move { stored(tx, sandbox).await })).await;
        if let Ok(Some((_, balance))) = read {
            account.set_limit(balance.limit);
            account.set_task(balance.task);
        }
        account.reserve(most, app.clock.now())
    }
}

/// What is written down of a sandbox's money, and whose it is.
async fn stored(tx: &mut dyn Tx, sandbox: SandboxId) -> Result<Option<(ProjectId, Balance)>, Problem> {
    let Some(row) = sandboxes::get(tx, sandbox).await? else { return Ok(None) };
    let (limit, task) = (account::limit_of(&row.settings), continuous::most(tx, &row).await?);
    Ok(Some((row.project_id, Balance { limit, task, spent: row.cost_model_micros, reserved: 0 })))
}

struct Chosen<'a> {
    upstream: &'a ModelUpstream,
    name: Option<String>,
    /// Its name at the upstream, where that is another one.
    above: Option<&'a str>,
    context: Option<u64>,
    price: Option<Price>,
}

/// Answers a request of a sandbox if it is one to the gateway; else gives it back.
pub async fn answer(
    app: &Arc<App>,
    sandbox: SandboxId,
    request: Request<Incoming>,
) -> Result<Response<Body>, Request<Incoming>> {
    let (api, route) = match path::find(request.method(), request.uri().path()) {
        Found::Elsewhere => return Err(request),
        Found::Unknown(api) => (api, None),
        Found::Route(route) => (route.api, Some(route)),
    };
    let query = request.uri().query().unwrap_or_default();
    let is_shown = headers::shows(request.headers(), query, &app.gateway.placeholder(sandbox));
    let passed = match route {
        _ if !is_shown => Err(Refusal::BadKey),
        None => Err(Refusal::NotServed),
        Some(route) => pass(app, sandbox, route, request).await,
    };
    Ok(match passed {
        Ok(response) => response,
        Err(refusal) => {
            refused(app, sandbox, &refusal);
            refusal.response(api)
        }
    })
}

async fn pass(
    app: &Arc<App>,
    sandbox: SandboxId,
    route: Route,
    request: Request<Incoming>,
) -> Result<Response<Body>, Refusal> {
    let gateway = &app.gateway;
    let account = gateway.account(app, sandbox).await?;
    let (mut head, body) = request.into_parts();
    let (body, held) = hold::read(body, &account.room, &gateway.room).await?;
    let is_plain = !head.headers.contains_key(CONTENT_ENCODING);
    let asked = match asked::look(&body).filter(|_| is_plain) {
        Some(asked) => asked,
        None if route.purpose == Purpose::Look => Asked::default(),
        None if gateway.models.listed.is_empty() && account.kept_by().is_none() => Asked::default(),
        None => return Err(Refusal::Unreadable),
    };
    if asked.in_background && route.api == Api::OpenAi {
        return Err(Refusal::Background);
    }
    let chosen = gateway.choose(&route, &asked)?;
    let key = gateway.credentials.of(app, account.purse.project, chosen.upstream).await?;
    let item = price(&account, &route, &chosen, &asked, body.len())?;
    if let Some(item) = &item {
        gateway.reserve(app, &account, item.held).await?;
    }
    let mut bill = item.map(|item| Bill::new(app, Arc::clone(&account), item));

    let body = match chosen.above.filter(|_| route.in_path.is_none()) {
        Some(above) => asked.renamed(&body, above).unwrap_or(body),
        None => body,
    };
    let unreachable = |detail: String| Refusal::Unreachable { upstream: chosen.upstream.name.clone(), detail };
    let query = path::query_without_key(head.uri.query().unwrap_or_default());
    let mark = if query.is_empty() { "" } else { "?" };
    let uri = format!("{}{}{mark}{query}", chosen.upstream.url, route.path_for(chosen.above));
    head.uri = uri.parse::<Uri>().map_err(|_| unreachable("its URL can't be used".to_owned()))?;

    if let Some(bill) = &mut bill {
        bill.sent();
    }
    account.passes();
    let mut answered = gateway.send(&head, &body, chosen.upstream, key.as_ref()).await;
    // A login may end before its time. It costs nothing to be refused.
    if let (Ok(response), Some(refused)) = (&answered, &key)
        && response.status() == StatusCode::UNAUTHORIZED
        && let Some(next) = gateway.credentials.after(app, account.purse.project, chosen.upstream, refused).await
    {
        answered = gateway.send(&head, &body, chosen.upstream, Some(&next)).await;
    }
    drop(body);
    drop(held);
    let mut response = match answered {
        Ok(response) => response,
        Err(error) => {
            // An upstream that took the request and broke off may have read it, and then it is paid for.
            if let Some(bill) = bill.as_mut().filter(|_| error.is_connect()) {
                bill.free();
            }
            return Err(unreachable(client::why(&error)));
        }
    };
    // Whatever the upstream speaks, this side speaks its own.
    *response.version_mut() = Version::HTTP_11;
    crate::egress::headers::strip(response.headers_mut(), None);
    let Some(mut bill) = bill else { return Ok(response.map(BodyExt::boxed)) };
    if response.status().is_success() {
        let kind = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        bill.answered(Scanner::new(route.api), kind.starts_with("text/event-stream"));
    } else {
        bill.free();
    }
    Ok(response.map(|body| Metered::new(body, bill).boxed()))
}

/// What people have to do something about is written to the sandbox's log, and the same not again for a while.
fn refused(app: &Arc<App>, sandbox: SandboxId, refusal: &Refusal) {
    let detail = refusal.sentence();
    tracing::debug!(%sandbox, detail, "a request to a model was refused");
    let known = app.gateway.accounts.lock().unwrap_or_else(PoisonError::into_inner).get(&sandbox).cloned();
    let (Some(reason), Some(account)) = (refusal.told_as(), known) else { return };
    let stop = refusal.stop();
    let (news, stop) = (account.is_news(reason, stop), stop.filter(|stop| account.runs_out(*stop)));
    if news.is_none() && stop.is_none() {
        return;
    }
    let data = json!({ "reason": reason, "detail": detail, "count": news.unwrap_or(1) });
    let (app, is_news, refusal) = (Arc::clone(app), news.is_some(), refusal.clone());
    tokio::spawn(async move {
        let logged = app.write(move |work| {
            Box::pin(async move {
                let (_, mut row) = work.locked(sandbox).await?;
                if row.state.is_live() {
                    if is_news {
                        let event = NewEvent::system(kind::MODEL_REFUSED, work.now, &data);
                        work.log(&mut row, vec![event]).await?;
                    }
                    match (stop, &refusal) {
                        (Some(Stop::Project(held)), Refusal::ProjectBudget(short)) => {
                            limits::project_spent_out(work, &mut row, &held, short.spent, short.until).await?;
                        }
                        (Some(Stop::Own | Stop::Project(_)), _) => limits::spent_out(work, &mut row).await?,
                        (Some(Stop::Task(_)) | None, _) => {}
                    }
                    sandboxes::update(work.tx, &mut row).await?;
                    if let Some(Stop::Task(limit)) = stop {
                        continuous::spent_out(work, sandbox, limit).await?;
                    }
                }
                Ok(())
            })
        });
        if let Err(problem) = logged.await {
            tracing::warn!(%sandbox, detail = %problem.detail, "a refused request to a model could not be logged");
            // The next one says it again.
            account.passes();
        }
    });
}

/// What the request will be charged as; nothing if it costs nothing.
fn price(
    account: &Account,
    route: &Route,
    chosen: &Chosen<'_>,
    asked: &Asked,
    bytes: usize,
) -> Result<Option<Item>, Refusal> {
    match route.purpose {
        Purpose::Work => {}
        Purpose::Count | Purpose::Look => return Ok(None),
    }
    let model = chosen.name.as_deref().unwrap_or("unnamed");
    let (input, output) = asked.most(bytes, chosen.context);
    let held = match chosen.price {
        // All of the input may be new to a cache, which costs the most.
        Some(price) => {
            let fresh = price.cost(&Tokens { input, output, ..Tokens::default() });
            fresh.max(price.cost(&Tokens { cache_write: input, output, ..Tokens::default() }))
        }
        None => match account.kept_by() {
            Some(by) => return Err(Refusal::Unpriced { model: model.chars().take(200).collect(), by }),
            None => 0,
        },
    };
    let (upstream, model) = (chosen.upstream.name.clone(), account.booked_as(model));
    Ok(Some(Item { upstream, model, price: chosen.price, input, held }))
}
