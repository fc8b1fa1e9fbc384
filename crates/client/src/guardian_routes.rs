//! Routes of the guardian.

use crate::error::Result;
use crate::http::{Client, NO_QUERY};
use atoll_api::{GuardianReplay, GuardianStatus, Intervention, InterventionListQuery, Page, PageQuery, ReplayGuardian};
use atoll_core::id::{InterventionId, SandboxId};

impl Client {
    /// Lists the guardian's interventions, newest first: `GET /interventions`.
    pub async fn list_interventions(&self, query: &InterventionListQuery) -> Result<Page<Intervention>> {
        self.get("/interventions", query).await
    }

    /// Returns one intervention: `GET /interventions/{intervention}`.
    pub async fn get_intervention(&self, intervention: InterventionId) -> Result<Intervention> {
        self.get(&format!("/interventions/{intervention}"), NO_QUERY).await
    }

    /// Lists the interventions in a sandbox, newest first: `GET /sandboxes/{sandbox}/interventions`.
    pub async fn list_sandbox_interventions(
        &self,
        sandbox: SandboxId,
        query: &PageQuery,
    ) -> Result<Page<Intervention>> {
        self.get(&format!("/sandboxes/{sandbox}/interventions"), query).await
    }

    /// Returns the guardian's settings and counts for a sandbox: `GET /sandboxes/{sandbox}/guardian`.
    pub async fn get_guardian(&self, sandbox: SandboxId) -> Result<GuardianStatus> {
        self.get(&format!("/sandboxes/{sandbox}/guardian"), NO_QUERY).await
    }

    /// Replays a sandbox's log with other settings of the guardian: `POST /sandboxes/{sandbox}/guardian/replay`.
    pub async fn replay_guardian(&self, sandbox: SandboxId, request: &ReplayGuardian) -> Result<GuardianReplay> {
        self.post(&format!("/sandboxes/{sandbox}/guardian/replay"), request).await
    }
}
