//! Routes of projects, users, tokens, secrets, snapshots, images and the server itself.
use crate::error::Result;
use crate::http::{Client, EMPTY_BODY, NO_QUERY};
use atoll_api::events::Empty;
use atoll_api::{
    AgentList, CacheList, ChangeProject, ChangeUser, GcReport, GcRequest, ImageList, ImportImageQuery, KeyRotation,
    Member, MonitoringStatus, NewProject, NewSecret, NewToken, NewUser, Page, PageQuery, Project, ProviderList,
    PruneCaches, PrunedCaches, RemoveCacheQuery, RemoveSecretQuery, RemoveSnapshotQuery, RemovedCache, RemovedImage,
    RemovedSnapshot, Secret, SecretListQuery, SetMember, SnapshotList, Token, User, WebSocketTicket,
};
use atoll_core::id::{ProjectId, TokenId, UserId};
use atoll_core::provider::ImageRef;
use reqwest::{Body, Method};

impl Client {
    /// Lists the agents that the server knows: `GET /agents`.
    pub async fn list_agents(&self) -> Result<AgentList> {
        self.get("/agents", NO_QUERY).await
    }

    /// Shows what each live agent does: `GET /sandboxes/monitoring/status`.
    pub async fn monitoring_status(&self) -> Result<MonitoringStatus> {
        self.get("/sandboxes/monitoring/status", NO_QUERY).await
    }

    /// Lists the providers with their capabilities and limits: `GET /providers`.
    pub async fn list_providers(&self) -> Result<ProviderList> {
        self.get("/providers", NO_QUERY).await
    }

    /// Lists projects: `GET /projects`.
    pub async fn list_projects(&self, query: &PageQuery) -> Result<Page<Project>> {
        self.get("/projects", query).await
    }

    /// Creates a project: `POST /projects`.
    pub async fn create_project(&self, request: &NewProject) -> Result<Project> {
        self.post("/projects", request).await
    }

    /// Returns one project: `GET /projects/{project}`.
    pub async fn get_project(&self, project: ProjectId) -> Result<Project> {
        self.get(&format!("/projects/{project}"), NO_QUERY).await
    }

    /// Changes a project: `PATCH /projects/{project}`.
    pub async fn change_project(&self, project: ProjectId, request: &ChangeProject) -> Result<Project> {
        self.patch(&format!("/projects/{project}"), request).await
    }

    /// Removes a project: `DELETE /projects/{project}`.
    pub async fn remove_project(&self, project: ProjectId) -> Result<Project> {
        self.delete(&format!("/projects/{project}"), NO_QUERY).await
    }

    /// Lists the members of a project: `GET /projects/{project}/members`.
    pub async fn list_members(&self, project: ProjectId) -> Result<Page<Member>> {
        self.get(&format!("/projects/{project}/members"), NO_QUERY).await
    }

    /// Gives a user a role in a project: `PUT /projects/{project}/members/{user}`.
    pub async fn set_member(&self, project: ProjectId, user: UserId, request: &SetMember) -> Result<Member> {
        self.put(&format!("/projects/{project}/members/{user}"), request).await
    }

    /// Removes a user from a project: `DELETE /projects/{project}/members/{user}`.
    pub async fn remove_member(&self, project: ProjectId, user: UserId) -> Result<()> {
        self.delete::<Empty>(&format!("/projects/{project}/members/{user}"), NO_QUERY).await.map(drop)
    }

    /// Lists users: `GET /users`.
    pub async fn list_users(&self, query: &PageQuery) -> Result<Page<User>> {
        self.get("/users", query).await
    }

    /// Creates a user: `POST /users`.
    pub async fn create_user(&self, request: &NewUser) -> Result<User> {
        self.post("/users", request).await
    }

    /// Returns one user: `GET /users/{user}`.
    pub async fn get_user(&self, user: UserId) -> Result<User> {
        self.get(&format!("/users/{user}"), NO_QUERY).await
    }

    /// Renames a user or changes their role: `PATCH /users/{user}`.
    pub async fn change_user(&self, user: UserId, request: &ChangeUser) -> Result<User> {
        self.patch(&format!("/users/{user}"), request).await
    }

    /// Removes a user and their tokens: `DELETE /users/{user}`.
    pub async fn remove_user(&self, user: UserId) -> Result<User> {
        self.delete(&format!("/users/{user}"), NO_QUERY).await
    }

    /// Lists API tokens: `GET /tokens`.
    pub async fn list_tokens(&self, query: &PageQuery) -> Result<Page<Token>> {
        self.get("/tokens", query).await
    }

    /// Creates an API token: `POST /tokens`.
    pub async fn create_token(&self, request: &NewToken) -> Result<Token> {
        self.post("/tokens", request).await
    }

    /// Revokes an API token: `DELETE /tokens/{token}`.
    pub async fn revoke_token(&self, token: TokenId) -> Result<Token> {
        self.delete(&format!("/tokens/{token}"), NO_QUERY).await
    }

    /// Creates a one-time ticket for a WebSocket: `POST /ws-tickets`.
    pub async fn create_websocket_ticket(&self) -> Result<WebSocketTicket> {
        self.post("/ws-tickets", &EMPTY_BODY).await
    }

    /// Lists secrets, without their values: `GET /secrets`.
    pub async fn list_secrets(&self, query: &SecretListQuery) -> Result<Page<Secret>> {
        self.get("/secrets", query).await
    }

    /// Creates or replaces a secret: `PUT /secrets/{name}`.
    pub async fn set_secret(&self, name: &str, request: &NewSecret) -> Result<Secret> {
        self.put(&format!("/secrets/{name}"), request).await
    }

    /// Removes a secret: `DELETE /secrets/{name}`.
    pub async fn remove_secret(&self, name: &str, query: &RemoveSecretQuery) -> Result<Secret> {
        self.delete(&format!("/secrets/{name}"), query).await
    }

    /// Seals all secrets with a new key: `POST /secrets/rotate`.
    pub async fn rotate_secret_key(&self) -> Result<KeyRotation> {
        self.post_long("/secrets/rotate", &EMPTY_BODY).await
    }

    /// Lists snapshots: `GET /snapshots`.
    pub async fn list_snapshots(&self) -> Result<SnapshotList> {
        self.get("/snapshots", NO_QUERY).await
    }

    /// Removes a snapshot: `DELETE /snapshots/{name}`.
    pub async fn remove_snapshot(&self, name: &str, query: &RemoveSnapshotQuery) -> Result<RemovedSnapshot> {
        self.delete(&format!("/snapshots/{name}"), query).await
    }

    /// Lists set-up layers: `GET /caches`.
    pub async fn list_caches(&self) -> Result<CacheList> {
        self.get("/caches", NO_QUERY).await
    }

    /// Removes a set-up layer: `DELETE /caches/{name}`.
    pub async fn remove_cache(&self, name: &str, query: &RemoveCacheQuery) -> Result<RemovedCache> {
        self.delete(&format!("/caches/{name}"), query).await
    }

    /// Removes unused set-up layers: `POST /caches/prune`.
    pub async fn prune_caches(&self, request: &PruneCaches) -> Result<PrunedCaches> {
        self.post("/caches/prune", request).await
    }

    /// Lists imported images: `GET /images`.
    pub async fn list_images(&self) -> Result<ImageList> {
        self.get("/images", NO_QUERY).await
    }

    /// Removes an image: `DELETE /images/{name}`.
    pub async fn remove_image(&self, name: &str) -> Result<RemovedImage> {
        self.delete(&format!("/images/{name}"), NO_QUERY).await
    }

    /// Removes data that retention no longer keeps: `POST /gc`.
    pub async fn collect_garbage(&self, request: &GcRequest) -> Result<GcReport> {
        self.post_long("/gc", request).await
    }

    /// Imports a root file system from an archive: `POST /images`.
    pub async fn import_image(&self, name: &str, archive: Body) -> Result<ImageRef> {
        let query = ImportImageQuery { name: name.to_owned() };
        self.send_bytes(self.request(Method::POST, "/images", &query), archive).await
    }
}
