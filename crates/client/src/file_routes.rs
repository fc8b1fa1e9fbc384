//! Routes of a sandbox's files. Contents are streams in both directions.

use crate::error::Result;
use crate::http::{Client, NO_QUERY};
use atoll_api::events::{FileMoved, FilePath};
use atoll_api::{
    DeleteFileQuery, FileListQuery, FilePathQuery, MoveFile, NewDirectory, Page, SandboxFile, WriteFileQuery,
};
use atoll_core::id::SandboxId;
use atoll_core::provider::files::UploadSummary;
use bytes::Bytes;
use reqwest::{Body, Method, Response};

fn path_query(path: &str) -> FilePathQuery {
    FilePathQuery { path: path.to_owned() }
}

impl Client {
    /// Lists a directory, sorted by name: `GET /sandboxes/{sandbox}/files/list`.
    pub async fn list_files(&self, sandbox: SandboxId, query: &FileListQuery) -> Result<Page<SandboxFile>> {
        self.get(&format!("/sandboxes/{sandbox}/files/list"), query).await
    }

    /// Returns one entry, without following a link: `GET /sandboxes/{sandbox}/files/stat`.
    pub async fn stat_file(&self, sandbox: SandboxId, path: &str) -> Result<SandboxFile> {
        self.get(&format!("/sandboxes/{sandbox}/files/stat"), &path_query(path)).await
    }

    /// Downloads a file: `GET /sandboxes/{sandbox}/files`. Read the response with [`Client::read_chunk`].
    ///
    /// ```no_run
    /// # async fn example(client: &atoll_client::Client, sandbox: &atoll_client::api::Sandbox) -> Result<(), atoll_client::Error> {
    /// let mut response = client.download_file(sandbox.id, "README.md").await?;
    /// while let Some(chunk) = client.read_chunk(&mut response).await? {
    ///     println!("{} bytes", chunk.len());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn download_file(&self, sandbox: SandboxId, path: &str) -> Result<Response> {
        self.send(self.request(Method::GET, &format!("/sandboxes/{sandbox}/files"), &path_query(path))).await
    }

    /// Writes a file: `PUT /sandboxes/{sandbox}/files`. It replaces an existing one when all bytes have arrived.
    pub async fn upload_file(
        &self,
        sandbox: SandboxId,
        query: &WriteFileQuery,
        content: Body,
    ) -> Result<UploadSummary> {
        let request = self.request(Method::PUT, &format!("/sandboxes/{sandbox}/files"), query);
        self.send_bytes(request, content).await
    }

    /// Downloads a directory as a tar archive: `GET /sandboxes/{sandbox}/files/tar`.
    pub async fn download_directory(&self, sandbox: SandboxId, path: &str) -> Result<Response> {
        self.send(self.request(Method::GET, &format!("/sandboxes/{sandbox}/files/tar"), &path_query(path))).await
    }

    /// Unpacks a tar archive into a directory: `PUT /sandboxes/{sandbox}/files/tar`.
    pub async fn upload_directory(&self, sandbox: SandboxId, path: &str, archive: Body) -> Result<UploadSummary> {
        let request = self.request(Method::PUT, &format!("/sandboxes/{sandbox}/files/tar"), &path_query(path));
        self.send_bytes(request, archive).await
    }

    /// Moves or renames a file or directory: `POST /sandboxes/{sandbox}/files/move`.
    pub async fn move_file(&self, sandbox: SandboxId, request: &MoveFile) -> Result<FileMoved> {
        self.post(&format!("/sandboxes/{sandbox}/files/move"), request).await
    }

    /// Creates a directory and its parents: `POST /sandboxes/{sandbox}/files/directory`.
    pub async fn create_directory(&self, sandbox: SandboxId, path: &str) -> Result<FilePath> {
        let request = NewDirectory { path: path.to_owned() };
        self.post(&format!("/sandboxes/{sandbox}/files/directory"), &request).await
    }

    /// Deletes a file, a link or a directory: `DELETE /sandboxes/{sandbox}/files`.
    pub async fn delete_file(&self, sandbox: SandboxId, query: &DeleteFileQuery) -> Result<FilePath> {
        self.delete(&format!("/sandboxes/{sandbox}/files"), query).await
    }

    /// Downloads a blob, such as a stored transcript: `GET /sandboxes/{sandbox}/blobs/{sha256}`.
    pub async fn download_blob(&self, sandbox: SandboxId, sha256: &str) -> Result<Response> {
        self.send(self.request(Method::GET, &format!("/sandboxes/{sandbox}/blobs/{sha256}"), NO_QUERY)).await
    }

    /// Reads the next chunk of a download; `None` after the last.
    pub async fn read_chunk(&self, response: &mut Response) -> Result<Option<Bytes>> {
        response.chunk().await.map_err(|error| self.broken_response(&error))
    }
}
