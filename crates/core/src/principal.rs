//! Principals and their permissions.

use crate::id::{ProjectId, SandboxId, TokenId, UserId};
use crate::string_enum;

string_enum! {
    /// Role of a user or program, in the deployment or in one project.
    "role"
    Role { Viewer = "viewer", Member = "member", Admin = "admin" }
}

string_enum! {
    "token kind"
    TokenKind { User = "user", Service = "service" }
}

/// An authenticated caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Principal {
    /// A person.
    User { token: TokenId, user: UserId, role: Role },
    /// A program; `project` restricts it to one project.
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

    /// Returns the principal's name as an actor in the log.
    pub fn actor(&self) -> String {
        match self {
            Self::User { user, .. } => format!("user:{user}"),
            Self::Service { token, .. } => format!("service:{token}"),
            Self::Worker { sandbox, .. } => format!("worker:{sandbox}"),
        }
    }
}

/// The user that an actor of the log is, if it is one.
pub fn user_of_actor(actor: &str) -> Option<UserId> {
    actor.strip_prefix("user:")?.parse().ok()
}

/// An operation on something that belongs to a project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProjectAction {
    /// View it.
    View,
    /// Start, stop and talk to sandboxes.
    UseSandboxes,
    /// Change the project itself.
    Administer,
}

/// Returns the minimum role for an action.
pub const fn required_role(action: ProjectAction) -> Role {
    match action {
        ProjectAction::View => Role::Viewer,
        ProjectAction::UseSandboxes => Role::Member,
        ProjectAction::Administer => Role::Admin,
    }
}

/// Result of a permission check. The API reports `Hidden` as "not found".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PermissionVerdict {
    Allowed,
    Forbidden,
    Hidden,
}

/// Checks an action against the caller's role in the deployment and in the project, if any.
///
/// An admin of the deployment may do everything. In the default project the deployment's role applies.
pub fn check_permission(deployment: Role, project: Option<Role>, action: ProjectAction) -> PermissionVerdict {
    if deployment == Role::Admin {
        return PermissionVerdict::Allowed;
    }
    match project {
        None => PermissionVerdict::Hidden,
        Some(role) if role >= required_role(action) => PermissionVerdict::Allowed,
        Some(_) => PermissionVerdict::Forbidden,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_actor_names_its_user() {
        let user = UserId::new();
        let principal = Principal::User { token: TokenId::new(), user, role: Role::Member };
        assert_eq!(user_of_actor(&principal.actor()), Some(user));
        let service = Principal::Service { token: TokenId::new(), role: Role::Member, project: None };
        assert_eq!(user_of_actor(&service.actor()), None);
    }

    #[test]
    fn each_action_has_its_minimum_role() {
        use PermissionVerdict as V;
        for (deployment, project, see, work, administer) in [
            (Role::Admin, None, V::Allowed, V::Allowed, V::Allowed),
            (Role::Member, None, V::Hidden, V::Hidden, V::Hidden),
            (Role::Viewer, Some(Role::Admin), V::Allowed, V::Allowed, V::Allowed),
            (Role::Member, Some(Role::Viewer), V::Allowed, V::Forbidden, V::Forbidden),
            (Role::Viewer, Some(Role::Member), V::Allowed, V::Allowed, V::Forbidden),
        ] {
            let found = [ProjectAction::View, ProjectAction::UseSandboxes, ProjectAction::Administer]
                .map(|a| check_permission(deployment, project, a));
            assert_eq!(found, [see, work, administer], "{deployment} with {project:?}");
        }
    }
}
