//! Who asks, and what each may do.

use crate::id::{ProjectId, SandboxId, TokenId, UserId};
use crate::words;

words! {
    /// What a person or program may do, in the deployment or in one project.
    "role"
    Role { Viewer = "viewer", Member = "member", Admin = "admin" }
}

words! {
    "token kind"
    TokenKind { User = "user", Service = "service" }
}

/// Somebody who showed a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Principal {
    /// A person.
    User { token: TokenId, user: UserId, role: Role },
    /// A program; `project` bounds it to one.
    Service { token: TokenId, role: Role, project: Option<ProjectId> },
    /// The worker of one sandbox.
    Worker { token: TokenId, sandbox: SandboxId },
}

impl Principal {
    pub fn token(&self) -> TokenId {
        match self {
            Self::User { token, .. } | Self::Service { token, .. } | Self::Worker { token, .. } => *token,
        }
    }

    /// How the principal stands in the log as an actor.
    pub fn actor(&self) -> String {
        match self {
            Self::User { user, .. } => format!("user:{user}"),
            Self::Service { token, .. } => format!("service:{token}"),
            Self::Worker { sandbox, .. } => format!("worker:{sandbox}"),
        }
    }
}

/// What one wants to do with something that belongs to a project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Look at it.
    See,
    /// Start, stop and talk to sandboxes.
    Work,
    /// Change the project itself.
    Administer,
}

/// The role that an action takes at least.
pub const fn needed(action: Action) -> Role {
    match action {
        Action::See => Role::Viewer,
        Action::Work => Role::Member,
        Action::Administer => Role::Admin,
    }
}

/// What a check of rights says. `Hidden` is told to the outside as "not found".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Allowed,
    Forbidden,
    Hidden,
}

/// May somebody with this role in the deployment, and this one in the project (if any), do it?
/// An admin of the deployment may do everything. In the default project the deployment's role counts.
pub fn judge(deployment: Role, project: Option<Role>, action: Action) -> Verdict {
    if deployment == Role::Admin {
        return Verdict::Allowed;
    }
    match project {
        None => Verdict::Hidden,
        Some(role) if role >= needed(action) => Verdict::Allowed,
        Some(_) => Verdict::Forbidden,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_against_actions() {
        use Verdict as V;
        for (deployment, project, see, work, administer) in [
            (Role::Admin, None, V::Allowed, V::Allowed, V::Allowed),
            (Role::Member, None, V::Hidden, V::Hidden, V::Hidden),
            (Role::Viewer, Some(Role::Admin), V::Allowed, V::Allowed, V::Allowed),
            (Role::Member, Some(Role::Viewer), V::Allowed, V::Forbidden, V::Forbidden),
            (Role::Viewer, Some(Role::Member), V::Allowed, V::Allowed, V::Forbidden),
        ] {
            let found = [Action::See, Action::Work, Action::Administer].map(|a| judge(deployment, project, a));
            assert_eq!(found, [see, work, administer], "{deployment} with {project:?}");
        }
    }
}
