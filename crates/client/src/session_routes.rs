//! Routes of sessions.
use crate::error::Result;
use crate::http::{Client, NO_QUERY};
use atoll_api::{
    ChangeMessage, ChangeSession, ForkSession, Message, MessageListQuery, NewMessage, Page, ResumeSession, Sandbox,
    SentToSession, Session, SessionListQuery,
};
use atoll_core::id::{MessageId, SessionId};

impl Client {
    /// Lists sessions, newest first: `GET /sessions`.
    pub async fn list_sessions(&self, query: &SessionListQuery) -> Result<Page<Session>> {
        self.get("/sessions", query).await
    }

    /// Returns one session: `GET /sessions/{session}`.
    pub async fn get_session(&self, session: SessionId) -> Result<Session> {
        self.get(&format!("/sessions/{session}"), NO_QUERY).await
    }

    /// Renames or closes a session: `PATCH /sessions/{session}`.
    pub async fn change_session(&self, session: SessionId, request: &ChangeSession) -> Result<Session> {
        self.patch(&format!("/sessions/{session}"), request).await
    }

    /// Continues a session in a new sandbox: `POST /sessions/{session}/resume`.
    pub async fn resume_session(&self, session: SessionId, request: &ResumeSession) -> Result<Sandbox> {
        self.post(&format!("/sessions/{session}/resume"), request).await
    }

    /// Creates a session that continues from another one: `POST /sessions/{session}/fork`.
    pub async fn fork_session(&self, session: SessionId, request: &ForkSession) -> Result<Session> {
        self.post(&format!("/sessions/{session}/fork"), request).await
    }

    /// Sends a message to a session, which gets a sandbox if it has none: `POST /sessions/{session}/messages`.
    pub async fn send_session_message(&self, session: SessionId, request: &NewMessage) -> Result<SentToSession> {
        self.post(&format!("/sessions/{session}/messages"), request).await
    }

    /// Lists the messages of a session: `GET /sessions/{session}/messages`.
    pub async fn list_session_messages(&self, session: SessionId, query: &MessageListQuery) -> Result<Page<Message>> {
        self.get(&format!("/sessions/{session}/messages"), query).await
    }

    /// Changes a queued message: `PATCH /sessions/{session}/messages/{message}`.
    pub async fn change_session_message(
        &self,
        session: SessionId,
        message: MessageId,
        request: &ChangeMessage,
    ) -> Result<Message> {
        self.patch(&format!("/sessions/{session}/messages/{message}"), request).await
    }

    /// Cancels a queued message: `DELETE /sessions/{session}/messages/{message}`.
    pub async fn cancel_session_message(&self, session: SessionId, message: MessageId) -> Result<Message> {
        self.delete(&format!("/sessions/{session}/messages/{message}"), NO_QUERY).await
    }
}
