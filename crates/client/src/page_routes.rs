//! Routes of sign-ins to the web page, of ports and of previews.
use crate::error::Result;
use crate::http::{Client, EMPTY_BODY, NO_QUERY};
use atoll_api::{Me, NewPreview, PortList, Preview, PreviewList, SignIn, SignInLink, SignInList};
use atoll_core::id::{PreviewId, SandboxId, SignInId};

impl Client {
    /// Returns who the caller is: `GET /me`.
    pub async fn get_me(&self) -> Result<Me> {
        self.get("/me", NO_QUERY).await
    }

    /// Issues a link that signs a browser in once: `POST /sign-in-links`.
    pub async fn create_sign_in_link(&self) -> Result<SignInLink> {
        self.post("/sign-in-links", &EMPTY_BODY).await
    }

    /// Lists the caller's sign-ins to the page: `GET /sign-in-sessions`.
    pub async fn list_sign_ins(&self) -> Result<SignInList> {
        self.get("/sign-in-sessions", NO_QUERY).await
    }

    /// Ends a sign-in to the page: `DELETE /sign-in-sessions/{id}`.
    pub async fn end_sign_in(&self, id: SignInId) -> Result<SignIn> {
        self.delete(&format!("/sign-in-sessions/{id}"), NO_QUERY).await
    }

    /// Lists the ports on which programs in a sandbox listen: `GET /sandboxes/{sandbox}/ports`.
    pub async fn list_ports(&self, sandbox: SandboxId) -> Result<PortList> {
        self.get(&format!("/sandboxes/{sandbox}/ports"), NO_QUERY).await
    }

    /// Creates a link to a port of a sandbox: `POST /sandboxes/{sandbox}/previews`.
    pub async fn create_preview(&self, sandbox: SandboxId, request: &NewPreview) -> Result<Preview> {
        self.post(&format!("/sandboxes/{sandbox}/previews"), request).await
    }

    /// Lists the links to ports of a sandbox: `GET /sandboxes/{sandbox}/previews`.
    pub async fn list_previews(&self, sandbox: SandboxId) -> Result<PreviewList> {
        self.get(&format!("/sandboxes/{sandbox}/previews"), NO_QUERY).await
    }

    /// Revokes a link to a port: `DELETE /sandboxes/{sandbox}/previews/{preview}`.
    pub async fn revoke_preview(&self, sandbox: SandboxId, preview: PreviewId) -> Result<Preview> {
        self.delete(&format!("/sandboxes/{sandbox}/previews/{preview}"), NO_QUERY).await
    }
}
