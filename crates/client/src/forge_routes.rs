//! Routes of forges.
use crate::error::Result;
use crate::http::{Client, EMPTY_BODY, NO_QUERY};
use atoll_api::{Forge, ForgeList, ForgeLoginProgress, StartedForgeLogin};
use atoll_core::forge::ForgeKind;

impl Client {
    /// Lists the forges with the caller's logins: `GET /forges`.
    pub async fn list_forges(&self) -> Result<ForgeList> {
        self.get("/forges", NO_QUERY).await
    }

    /// Starts a login: `POST /forges/{forge}/login`.
    pub async fn start_forge_login(&self, forge: ForgeKind) -> Result<StartedForgeLogin> {
        self.post_long(&format!("/forges/{forge}/login"), &EMPTY_BODY).await
    }

    /// Checks whether the user confirmed the login: `POST /forges/{forge}/login/poll`.
    pub async fn poll_forge_login(&self, forge: ForgeKind) -> Result<ForgeLoginProgress> {
        self.post_long(&format!("/forges/{forge}/login/poll"), &EMPTY_BODY).await
    }

    /// Removes the caller's login: `DELETE /forges/{forge}/login`.
    pub async fn remove_forge_login(&self, forge: ForgeKind) -> Result<Forge> {
        self.delete(&format!("/forges/{forge}/login"), NO_QUERY).await
    }
}
