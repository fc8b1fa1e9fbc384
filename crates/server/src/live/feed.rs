//! The places of one WebSocket reader in the logs it follows.

use crate::auth::Caller;
use crate::auth::access::{self, Visible};
use crate::follow::Follower;
use crate::problem::{Problem, Result};
use crate::state::App;
use atoll_core::id::SandboxId;
use atoll_core::principal::Action;
use atoll_store::events::Filter;
use atoll_store::sandboxes;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// What a reader asked to follow.
#[derive(Debug, Clone)]
pub enum Wanted {
    All,
    These(Vec<SandboxId>),
}

/// How many logs one reader keeps open at once; further ones are opened again from their place.
const OPEN: usize = 512;

pub struct Feed {
    app: Arc<App>,
    filter: Filter,
    /// What the reader may see.
    pub visible: Visible,
    /// With `All`: where the reader is in every log that it doesn't have open.
    all: Option<HashMap<SandboxId, i64>>,
    open: BTreeMap<SandboxId, Follower>,
    /// Logs that may have something new.
    pub dirty: BTreeSet<SandboxId>,
    /// Logs whose first end is not reached yet: the reader is told when it is.
    pub replaying: BTreeSet<SandboxId>,
}

impl Feed {
    pub async fn start(
        app: Arc<App>,
        caller: &Caller,
        wanted: Wanted,
        filter: Filter,
        since: BTreeMap<SandboxId, i64>,
    ) -> Result<Self> {
        let who = caller.clone();
        let visible = app.read(move |tx| Box::pin(async move { access::visible(tx, &who).await })).await?;
        let (open, dirty, replaying) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        let mut feed = Self { app, filter, visible, all: None, open, dirty, replaying };
        match wanted {
            Wanted::These(ids) => {
                for id in ids {
                    let who = caller.clone();
                    let check = feed
                        .app
                        .read(move |tx| Box::pin(async move { access::sandbox(tx, &who, id, Action::See).await }));
                    check.await?;
                    feed.follow(id, since.get(&id).copied()).await?;
                    feed.replaying.insert(id);
                }
            }
            Wanted::All => feed.follow_all(since).await?,
        }
        Ok(feed)
    }

    async fn follow(&mut self, id: SandboxId, since: Option<i64>) -> Result<()> {
        if self.open.len() >= OPEN {
            self.close_one();
        }
        let follower = Follower::start(Arc::clone(&self.app), id, self.filter.clone(), since).await?;
        self.open.insert(id, follower);
        self.dirty.insert(id);
        Ok(())
    }

    /// Makes room: remembers the place of a log that has nothing new.
    fn close_one(&mut self) {
        let idle = self.open.keys().find(|id| !self.dirty.contains(id)).copied();
        if let (Some(id), Some(places)) = (idle, self.all.as_mut())
            && let Some(follower) = self.open.remove(&id)
        {
            places.insert(id, follower.seq());
        }
    }

    async fn follow_all(&mut self, since: BTreeMap<SandboxId, i64>) -> Result<()> {
        let mut places = HashMap::new();
        let mut after = None;
        loop {
            let page =
                self.app.read(move |tx| Box::pin(async move { Ok(sandboxes::positions(tx, after, 1000).await?) }));
            let page = page.await?;
            let Some((last, ..)) = page.last() else { break };
            after = Some(*last);
            for (id, project, last_seq) in page {
                if self.visible.contains(project) {
                    let place = since.get(&id).copied().unwrap_or(last_seq).min(last_seq);
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
        self.all = Some(places);
        Ok(())
    }

    /// Whether this reader may hear of the sandbox; one that was born after it came is opened from the start.
    pub async fn hears(&mut self, id: SandboxId) -> Result<bool> {
        if self.open.contains_key(&id) {
            return Ok(true);
        }
        let Some(places) = &mut self.all else { return Ok(false) };
        if places.contains_key(&id) {
            return Ok(true);
        }
        let project = self.app.project_of(id).await?;
        let seen = project.is_some_and(|project| self.visible.contains(project));
        if seen {
            places.insert(id, 0);
        }
        Ok(seen)
    }

    /// The follower of a log, opened at its place if need be.
    pub async fn follower(&mut self, id: SandboxId) -> Result<Option<&mut Follower>> {
        if !self.open.contains_key(&id) {
            let place = self.all.as_ref().and_then(|places| places.get(&id).copied());
            let Some(place) = place else { return Ok(None) };
            self.follow(id, Some(place)).await?;
        }
        Ok(self.open.get_mut(&id))
    }

    /// Wake-ups were lost: every log may have something new, and there may be new logs.
    pub async fn look_everywhere(&mut self) -> Result<()> {
        self.open.values_mut().for_each(Follower::look_again);
        if let Some(places) = &mut self.all {
            let mut after = None;
            loop {
                let app = Arc::clone(&self.app);
                let page =
                    app.read(move |tx| Box::pin(async move { Ok(sandboxes::positions(tx, after, 1000).await?) }));
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
