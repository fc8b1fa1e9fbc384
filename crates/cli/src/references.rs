//! References on the command line: the sandbox or session that a user means by an id, a part of it, a name, a branch or
//! `last`.

use crate::connect::ConnectedClient;
use crate::failure::{Failure, Result};
use crate::render::text;
use atoll_api::{Sandbox, SandboxListQuery, Session, SessionListQuery};
use atoll_core::id::{SandboxId, SessionId};
use atoll_core::reference::{LAST, ReferenceKind, ReferenceTarget, short_id};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// More candidates than a person reads.
const MAX_CANDIDATES: i64 = 20;

macro_rules! reference_argument {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name(String);

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text.trim() {
                    "" => Err("expected an id, a part of it, a name, a branch or `last`".to_owned()),
                    text => Ok(Self(text.to_owned())),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&text::escape_line(&self.0))
            }
        }
    };
}

reference_argument!(
    /// A sandbox.
    SandboxRef
);
reference_argument!(
    /// A session. The reference of a sandbox means its session.
    SessionRef
);
reference_argument!(
    /// A session (`ses_…`), otherwise a sandbox.
    TargetRef
);

/// A sandbox or a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    Sandbox(SandboxId),
    Session(SessionId),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sandbox(id) => id.fmt(f),
            Self::Session(id) => id.fmt(f),
        }
    }
}

impl SandboxRef {
    /// Finds the sandbox; a whole id needs no request.
    pub async fn resolve(&self, client: &ConnectedClient) -> Result<SandboxId> {
        if let Ok(id) = self.0.parse() {
            return Ok(id);
        }
        Ok(self.find(client).await?.id)
    }

    pub async fn find(&self, client: &ConnectedClient) -> Result<Sandbox> {
        if let Ok(id) = self.0.parse() {
            return Ok(client.get_sandbox(id).await?);
        }
        if self.0 == LAST {
            let query = SandboxListQuery { mine: true, limit: Some(1), ..SandboxListQuery::default() };
            let newest = client.list_sandboxes(&query).await?.items.into_iter().next();
            return newest.ok_or_else(|| {
                Failure::setup("not_found", "you have no sandbox yet")
                    .with_hint("Create one with `atoll run \"PROMPT\"` or `atoll sandbox new`.")
            });
        }
        let query = SandboxListQuery {
            reference: Some(self.0.clone()),
            archived: true,
            limit: Some(MAX_CANDIDATES),
            ..SandboxListQuery::default()
        };
        choose_sandbox(&self.0, client.list_sandboxes(&query).await?.items)
    }
}

impl SessionRef {
    /// Finds the session; a whole id needs no request.
    pub async fn resolve(&self, client: &ConnectedClient) -> Result<SessionId> {
        if let Ok(id) = self.0.parse() {
            return Ok(id);
        }
        if self.0 != LAST {
            let query = SessionListQuery {
                reference: Some(self.0.clone()),
                archived: true,
                limit: Some(MAX_CANDIDATES),
                ..SessionListQuery::default()
            };
            let found = client.list_sessions(&query).await?.items;
            match found.as_slice() {
                [] => {}
                [one] => return Ok(one.id),
                several => return Err(ambiguity(&self.0, "sessions", several.iter().map(describe_session))),
            }
        }
        match SandboxRef(self.0.clone()).find(client).await {
            Ok(sandbox) => Ok(sandbox.session_id),
            Err(failure) if failure.has_code("not_found") && self.0 != LAST => {
                Err(Failure::setup("not_found", format!("no session matches `{self}`"))
                    .with_hint("`atoll session ls` lists the sessions."))
            }
            Err(failure) => Err(failure),
        }
    }
}

impl TargetRef {
    pub async fn resolve(&self, client: &ConnectedClient) -> Result<Target> {
        if self.0.starts_with("ses_") {
            return SessionRef(self.0.clone()).resolve(client).await.map(Target::Session);
        }
        SandboxRef(self.0.clone()).resolve(client).await.map(Target::Sandbox)
    }
}

/// Chooses the sandbox that a reference means. A live sandbox comes before ended ones of the same name, and the newest
/// sandbox of a session before the others on its branch.
fn choose_sandbox(reference: &str, candidates: Vec<Sandbox>) -> Result<Sandbox> {
    let rank = |sandbox: &Sandbox| {
        let (id, branch) = (sandbox.id.to_string(), sandbox.branch.as_deref());
        let target = ReferenceTarget { id: &id, name: sandbox.name.as_deref(), branch };
        target.match_reference(reference).map(|kind| match kind {
            ReferenceKind::Name if !sandbox.state.is_live() => (ReferenceKind::Name, true),
            ReferenceKind::Branch if sandbox.archived => (ReferenceKind::Branch, true),
            kind => (kind, false),
        })
    };
    let best = candidates.iter().filter_map(rank).min();
    let mut found: Vec<_> = candidates.into_iter().filter(|sandbox| rank(sandbox) == best).collect();
    found.sort_by_key(|sandbox| std::cmp::Reverse(sandbox.id));
    match best {
        // Names are reused: the newest ended sandbox is the one that the user remembers.
        Some((ReferenceKind::Name, true)) => found.truncate(1),
        Some((ReferenceKind::Branch, _)) => {
            let mut sessions = BTreeSet::new();
            found.retain(|sandbox| sessions.insert(sandbox.session_id));
        }
        Some(_) | None => {}
    }
    if found.len() > 1 {
        return Err(ambiguity(reference, "sandboxes", found.iter().map(describe_candidate)));
    }
    found.pop().ok_or_else(|| {
        Failure::setup("not_found", format!("no sandbox matches `{}`", text::escape_line(reference)))
            .with_hint("`atoll ls --all` lists the sandboxes.")
    })
}

fn ambiguity(reference: &str, what: &str, candidates: impl Iterator<Item = String>) -> Failure {
    let lines: Vec<_> = candidates.map(|line| format!("\n  {line}")).collect();
    let reference = text::escape_line(reference);
    Failure::setup("ambiguous", format!("`{reference}` matches {} {what}", lines.len()))
        .with_hint(format!("Name one of them:{}", lines.concat()))
}

fn describe_candidate(sandbox: &Sandbox) -> String {
    let name = sandbox.name.as_ref().map(|name| format!("{name}  ")).unwrap_or_default();
    text::escape_line(&format!("{}  {}  {name}{}", sandbox.id, sandbox.state, sandbox.title))
}

fn describe_session(session: &Session) -> String {
    text::escape_line(&format!("{}  {}  {}", session.id, session.state, session.title))
}

/// The shortest reference for the next commands: the name, or the end of the id.
pub fn short_reference(sandbox: &Sandbox) -> String {
    sandbox.name.clone().unwrap_or_else(|| short_id(&sandbox.id.to_string()).to_owned())
}

#[cfg(test)]
#[path = "references_tests.rs"]
mod tests;
