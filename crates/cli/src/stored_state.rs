//! Reads the store in this process, for commands that only read and find no running server.

use crate::connect::{Connect, ConnectedClient};
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::serve::{server_options, start_failure};
use crate::settings::{self, ConfigFiles};
use atoll_server::ReadOnlyServer;
use std::ops::Deref;
use std::time::Duration;

/// A server on this machine responds at once.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// A client of the running server, or of the stored state.
pub struct ReadingClient {
    client: ConnectedClient,
    /// Ends with the client.
    _stored: Option<ReadOnlyServer>,
}

impl From<ConnectedClient> for ReadingClient {
    fn from(client: ConnectedClient) -> Self {
        Self { client, _stored: None }
    }
}

impl Deref for ReadingClient {
    type Target = ConnectedClient;

    fn deref(&self) -> &ConnectedClient {
        &self.client
    }
}

impl ReadingClient {
    /// Finds the server as `ConnectedClient::find` does; without one, opens the store of the data directory.
    pub async fn find(connect: &Connect, output: &Output) -> Result<Self> {
        let found = ConnectedClient::find(connect);
        let is_named = connect.server.as_deref().is_some_and(|server| !server.trim().is_empty());
        let missing = match found {
            Ok(client) if is_named || client.address.local.is_none() || is_answering(&client).await => {
                return Ok(Self { client, _stored: None });
            }
            Ok(_) => no_server_failure(),
            Err(failure) if failure.has_code("no_server") => failure,
            Err(failure) => return Err(failure),
        };
        let loaded = settings::load_with_data_dir(connect.data_dir.as_deref(), &ConfigFiles::default())?;
        let database = loaded.config.database();
        if matches!(&database, atoll_config::Database::Sqlite { path } if !path.exists()) {
            return Err(missing);
        }
        let launcher = Err("this command starts no sandboxes".to_owned());
        let options = server_options::server_options("atoll", &loaded.config, launcher);
        let stored = ReadOnlyServer::start(&options).await.map_err(start_failure)?;
        let connect = Connect {
            server: Some(stored.url.clone()),
            token_file: Some(stored.admin_token.clone()),
            data_dir: Some(loaded.config.data_dir),
        };
        let mut client = ConnectedClient::find(&connect)?;
        client.address.local = connect.data_dir;
        if !output.json {
            output.print_note("no server runs; this is the stored state");
        }
        Ok(Self { client, _stored: Some(stored) })
    }
}

fn no_server_failure() -> Failure {
    Failure::setup("no_server", "no server answers").with_hint("Start one with `atoll serve`.")
}

/// The recorded server accepts connections; the record of a killed server stays.
async fn is_answering(client: &ConnectedClient) -> bool {
    let url = &client.address.url;
    let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else { return true };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let connecting = tokio::net::TcpStream::connect((host, port));
    tokio::time::timeout(PROBE_TIMEOUT, connecting).await.is_ok_and(|connected| connected.is_ok())
}
