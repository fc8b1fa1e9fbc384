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
    let model = ScriptedModel::start_on(scripts, listen).await.map_err(|error| {
        Failure::setup("listen", error)
            .next("Name another place; a socket file on which nobody listens can be removed.")
    })?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Args;

    #[test]
    fn the_script_in_the_help_is_one() {
        let help = ModelScript::augment_args(clap::Command::new("model-script")).render_long_help().to_string();
        let (_, script) = help.split_once("\n  scripts:\n").unwrap();
        let (script, _) = script.split_once("\n\n").unwrap();
        let scripts = Scripts::parse(&format!("scripts:\n{script}\n")).unwrap();
        assert_eq!(scripts.names().collect::<Vec<_>>(), ["hello"]);
    }

    #[tokio::test]
    async fn what_is_no_script_is_refused_with_its_place() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("script.yaml");
        let command = ModelScript { file: file.clone(), listen: None, unix: None, record: None };
        let output = Output::new(false);
        let refused = run(&command, &output).await.unwrap_err();
        assert_eq!(refused.exit(), crate::failure::SETUP_FAILED);
        std::fs::write(&file, "- say: hello\n- shout: hello\n").unwrap();
        let shown = run(&command, &output).await.unwrap_err().shown(false).unwrap();
        assert!(shown.contains("step 2: unknown variant `shout`"), "{shown}");
        std::fs::write(&file, "- say: hello\n").unwrap();
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let command = ModelScript { listen: Some(taken.local_addr().unwrap()), ..command };
        assert!(run(&command, &output).await.unwrap_err().shown(false).unwrap().contains("can't listen on 127.0.0.1:"));
    }
}
