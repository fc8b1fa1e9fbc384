//! Starts the agent: the server's settings, and the command of its driver.

use super::Executor;
use super::agent_process::AgentProcess;
use super::call_denials::CallDenials;
use crate::environment::ServerVariables;
use crate::spawner::{FileToWrite, FileUpdate, ProgramSpec};
use atoll_api::events::{EventData, SettingsIgnored, UnsupportedSetting};
use atoll_dispatcher::link::heartbeat::Start;
use atoll_drivers::{AgentCommand, AgentSettings, Driver, LaunchContext};
use atoll_protocol::{Gateway, HomeFile, LeasedMessage};
use std::path::{Component, Path, PathBuf};
use tokio::time::Instant;

/// State for starting the agent.
#[derive(Default)]
pub(super) struct LaunchState {
    /// `None` until the server has sent `start`.
    pub driver: Option<Box<dyn Driver>>,
    /// The server named no agent: the sandbox is for commands.
    pub has_no_agent: bool,
    pub settings: AgentSettings,
    /// Settings that the agent does not support, once reported.
    pub unsupported_settings: Vec<UnsupportedSetting>,
    /// Path of the agent's program in the sandbox.
    pub program: Option<PathBuf>,
    pub gateway: Option<Gateway>,
    /// The agent's own id of the conversation.
    pub native_id: Option<String>,
    /// The sandbox's task, for the agent's environment.
    pub task: Option<String>,
}

impl Executor {
    pub(super) fn handle_start(&mut self, start: Start) {
        let server = ServerVariables { project_id: start.project_id, callback_url: start.callback_url };
        self.tools.environment.set_start(start.settings.clone(), server);
        self.launch.settings = start.settings;
        self.limits.set_limits(self.launch.settings.limits.unwrap_or_default(), None);
        self.denials = CallDenials::default();
        (self.launch.program, self.launch.gateway) = (start.program, start.gateway);
        self.write_home_files(start.files);
        let services = self.launch.settings.services.clone().unwrap_or_default();
        self.set_services(services, start.prompt.is_some());
        let Some(name) = start.agent else {
            self.launch.has_no_agent = true;
            return;
        };
        let driver = match start.acp {
            Some(launch) => Some(atoll_drivers::create_acp_driver(&name, launch)),
            None => atoll_drivers::create_driver(&name),
        };
        match driver {
            Some(driver) => {
                self.conversation.set_abilities(driver.abilities());
                self.launch.driver = Some(driver);
                if let Some(resume) = start.resume {
                    self.resume_conversation(resume);
                }
                if start.prompt.is_none() && !self.services.is_starting() {
                    self.next_turn.waiting_due = Some(Instant::now());
                }
            }
            None => {
                let known = atoll_drivers::AGENT_NAMES.join(", ");
                self.report_launch_failure(&format!("unknown agent `{name}`; this version has {known}"));
            }
        }
    }

    /// Writes files before any program starts.
    fn write_home_files(&self, files: Vec<HomeFile>) {
        let home = PathBuf::from(self.tools.environment.home());
        let is_inside =
            |file: &HomeFile| Path::new(&file.path).components().all(|part| matches!(part, Component::Normal(_)));
        let to_write = |file: HomeFile| FileToWrite { path: home.join(file.path), text: file.text };
        let files: Vec<FileToWrite> = files.into_iter().filter(is_inside).map(to_write).collect();
        if files.is_empty() {
            return;
        }
        let written = self.tools.spawner.update_files(FileUpdate { files, removed: Vec::new() });
        tokio::spawn(async move {
            if let Err(error) = written.await {
                tracing::warn!(error, "failed to write files of the start instructions");
            }
        });
    }

    pub(super) async fn start_agent(&mut self, message: &LeasedMessage) -> Result<(), String> {
        let launch = &mut self.launch;
        let Some(driver) = &mut launch.driver else { return Err("there is no agent".to_owned()) };
        let home = PathBuf::from(self.tools.environment.home());
        // An agent with a login uses that in place of the gateway.
        let has_login = driver.login_path().is_some_and(|path| self.logins.has_file(path));
        let context = LaunchContext {
            worker_program: &self.tools.worker,
            workspace: &self.tools.workspace,
            home: &home,
            previous_turns: self.conversation.turn(),
            settings: &launch.settings,
            agent_program: launch.program.as_deref(),
            gateway: launch.gateway.as_ref().filter(|_| !has_login),
            native_id: launch.native_id.as_deref(),
        };
        let AgentCommand { argv, env, files, unsupported_settings } = driver.build_command(&context);
        let files = files.into_iter().map(|file| (home.join(file.path), file.text)).collect();
        let task = launch.task.get_or_insert_with(|| message.content.clone());
        let env = self.tools.environment.for_agent(task, env);
        let cwd = self.tools.workspace.clone();
        let program = ProgramSpec { argv, cwd, env, kill_group_on_exit: true, terminal: None, files };
        let kills = self.tools.memory.kills();
        let started = AgentProcess::start(&self.tools.spawner, program, kills).await;
        let mut process = started.map_err(|error| error.to_string())?;
        process.write_line(&driver.handshake());
        self.agent.process = Some(process);
        if !unsupported_settings.is_empty() && launch.unsupported_settings != unsupported_settings {
            launch.unsupported_settings.clone_from(&unsupported_settings);
            let data = SettingsIgnored { settings: unsupported_settings };
            self.emit_event(&EventData::AgentSettingsIgnored(data));
        }
        Ok(())
    }
}
