//! `atoll model-script`: a model that plays a script, for trying real agents without a real model.

use crate::failure::{Failure, Result};
use crate::output::Output;
use atoll_model_script::{Listen, ScriptedModel, Scripts};
use serde_json::json;
use std::net::SocketAddr;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll model-script hello.yaml --listen 127.0.0.1:8080
  ANTHROPIC_BASE_URL=http://127.0.0.1:8080 ANTHROPIC_API_KEY=none claude -p \"go #script:hello\"
  curl -s 127.0.0.1:8080/requests | jq '.requests[].path'

A script is a list of steps, in YAML or JSON:

  scripts:
    - name: hello
      steps:
        - say: I make a file.
        - write: {file: hello.txt, content: \"hello\\n\"}
        - edit: {file: hello.txt, old: hello, new: goodbye}
        - run: cat hello.txt
        - expect: goodbye
        - say: Done.

It speaks the Anthropic Messages API, OpenAI chat completions and Responses, and Gemini's generateContent. A prompt
with #script:NAME in it chooses among the scripts of the file; else the first is played. Every request is kept with
its headers, credentials too: give it no real key. docs/model-script.md describes every step.")]
pub struct ModelScript {
    /// The script, as YAML or JSON
    file: PathBuf,
    /// Where to listen [default: a free port of 127.0.0.1, unless --unix is given]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Listen on a socket file, too
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,
    /// Append every request to a file, as a line of JSON
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// Plays until it is interrupted.
pub async fn run(model_script: &ModelScript, output: &Output) -> Result {
    let file = &model_script.file;
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::input(format!("can't read the script {}: {error}", file.display())))?;
    let scripts = Scripts::parse(&text).map_err(|error| {
        Failure::input(format!("{} is no script: {error}", file.display()))
            .next("`atoll model-script --help` shows one.")
    })?;
    let names: Vec<_> = scripts.names().map(str::to_owned).collect();
    let tcp = match (model_script.listen, &model_script.unix) {
        (None, None) => Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        (listen, _) => listen,
    };
    let listen = Listen { tcp, unix: model_script.unix.clone(), record: model_script.record.clone() };
    let model = ScriptedModel::start_on(scripts, listen).await.map_err(|error| Failure::setup("listen", error))?;
    let unix = model.unix().map(|path| path.display().to_string());
    if output.json {
        output.object(&json!({ "type": "listening", "url": model.base_url(), "unix": unix, "scripts": names }))?;
    } else {
        let places: Vec<_> =
            [Some(model.base_url()).filter(|url| !url.is_empty()), unix].into_iter().flatten().collect();
        output.line(&format!("Playing {} on {}", names.join(", "), places.join(" and ")))?;
    }
    output.flush()?;
    // An interrupt ends the command from outside; a service manager says it another way.
    let mut terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    terminated.recv().await;
    Ok(())
}
