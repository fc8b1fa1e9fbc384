//! A WebSocket reader's subscription, with its position in each event log.

use crate::auth::Caller;
use crate::auth::access::{self, VisibleProjects};
use crate::event_follower::EventFollower;
use crate::problem::{Problem, Result};
use crate::state::App;
use atoll_core::id::SandboxId;
use atoll_core::principal::ProjectAction;
use atoll_store::events::EventLogFilter;
use atoll_store::sandboxes;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// The sandboxes that a reader follows.
#[derive(Debug, Clone)]
pub enum SubscribedSandboxes {
    All,
    These(Vec<SandboxId>),
}

/// Open followers per reader; further logs are reopened at their position.
const MAX_OPEN_FOLLOWERS: usize = 512;

pub struct Subscription {
    app: Arc<App>,
    filter: EventLogFilter,
    /// The projects that the reader may see.
    pub visible: VisibleProjects,
    /// With `All`: the reader's position in each log that is not open.
    positions: Option<HashMap<SandboxId, i64>>,
    open: BTreeMap<SandboxId, EventFollower>,
    /// Logs that may have new events.
    pub dirty: BTreeSet<SandboxId>,
    /// Logs that are being replayed; the reader gets `caught_up` at their end.
    pub replaying: BTreeSet<SandboxId>,
}

impl Subscription {
    pub async fn subscribe(
        app: Arc<App>,
        caller: &Caller,
        selected: SubscribedSandboxes,
        filter: EventLogFilter,
        since: BTreeMap<SandboxId, i64>,
    ) -> Result<Self> {
        let who = caller.clone();
        let visible = app.read(async move |tx| access::visible_projects(tx, &who).await).await?;
        let (open, dirty, replaying) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        let mut feed = Self { app, filter, visible, positions: None, open, dirty, replaying };
        match selected {
            SubscribedSandboxes::These(ids) => {
                for id in ids {
                    let who = caller.clone();
                    let check =
                        feed.app.read(async move |tx| access::check_sandbox(tx, &who, id, ProjectAction::View).await);
                    check.await?;
                    feed.follow(id, since.get(&id).copied()).await?;
                    feed.replaying.insert(id);
                }
            }
            SubscribedSandboxes::All => feed.follow_all(since).await?,
        }
        Ok(feed)
    }

    async fn follow(&mut self, id: SandboxId, since: Option<i64>) -> Result<()> {
        if self.open.len() >= MAX_OPEN_FOLLOWERS {
            self.close_idle_follower();
        }
        let follower = EventFollower::start(Arc::clone(&self.app), id, self.filter.clone(), since).await?;
        self.open.insert(id, follower);
        self.dirty.insert(id);
        Ok(())
    }

    /// Closes the follower of a log without new events and keeps its position.
    fn close_idle_follower(&mut self) {
        let idle = self.open.keys().find(|id| !self.dirty.contains(id)).copied();
        if let (Some(id), Some(places)) = (idle, self.positions.as_mut())
            && let Some(follower) = self.open.remove(&id)
        {
            places.insert(id, follower.seq());
        }
    }

    async fn follow_all(&mut self, since: BTreeMap<SandboxId, i64>) -> Result<()> {
        let newest_known = since.keys().next_back().copied();
        let mut places = HashMap::new();
        let mut after = None;
        loop {
            let page = self.app.read(async move |tx| Ok(sandboxes::list_log_positions(tx, after, 1000).await?));
            let page = page.await?;
            let Some((last, ..)) = page.last() else { break };
            after = Some(*last);
            for (id, project, last_seq) in page {
                if self.visible.contains(project) {
                    let start = if newest_known.is_some_and(|known| id > known) { 0 } else { last_seq };
                    let place = since.get(&id).copied().unwrap_or(start).min(last_seq);
                    if place < last_seq {
                        self.dirty.insert(id);
                        self.replaying.insert(id);
                    }
                    places.insert(id, place);
                }
            }
        }
        for id in since.keys() {
            if !places.contains_key(id) {
                return Err(Problem::not_found("sandbox"));
            }
        }
        self.positions = Some(places);
        Ok(())
    }

    /// The reader follows this sandbox. A sandbox created after the subscription starts at seq 0.
    pub async fn includes(&mut self, id: SandboxId) -> Result<bool> {
        if self.open.contains_key(&id) {
            return Ok(true);
        }
        let Some(places) = &mut self.positions else { return Ok(false) };
        if places.contains_key(&id) {
            return Ok(true);
        }
        let project = self.app.project_of(id).await?;
        let is_visible = project.is_some_and(|project| self.visible.contains(project));
        if is_visible {
            places.insert(id, 0);
        }
        Ok(is_visible)
    }

    /// The follower of a log, reopened at its position if necessary.
    pub async fn follower(&mut self, id: SandboxId) -> Result<Option<&mut EventFollower>> {
        if !self.open.contains_key(&id) {
            let place = self.positions.as_ref().and_then(|places| places.get(&id).copied());
            let Some(place) = place else { return Ok(None) };
            self.follow(id, Some(place)).await?;
        }
        Ok(self.open.get_mut(&id))
    }

    /// Marks every log with new events after lost wake-ups, and finds new logs.
    pub async fn recheck_all(&mut self) -> Result<()> {
        self.open.values_mut().for_each(EventFollower::recheck_store);
        if let Some(places) = &mut self.positions {
            let mut after = None;
            loop {
                let app = Arc::clone(&self.app);
                let page = app.read(async move |tx| Ok(sandboxes::list_log_positions(tx, after, 1000).await?));
                let page = page.await?;
                let Some((last, ..)) = page.last() else { break };
                after = Some(*last);
                for (id, project, last_seq) in page {
                    let place = match self.open.get(&id) {
                        Some(follower) => follower.seq(),
                        None if self.visible.contains(project) => *places.entry(id).or_insert(0),
                        None => continue,
                    };
                    if place < last_seq {
                        self.dirty.insert(id);
                    }
                }
            }
        } else {
            self.dirty.extend(self.open.keys().copied());
        }
        Ok(())
    }
}
