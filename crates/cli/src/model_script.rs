//! `atoll model-script`: serves a scripted model, to test real agents.

use crate::failure::{Failure, Result};
use crate::output::Output;
use atoll_model_script::{ListenOptions, ScriptedModel, Scripts};
use serde_json::json;
use std::net::SocketAddr;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll model-script hello.yaml --listen 127.0.0.1:8080
  ANTHROPIC_BASE_URL=http://127.0.0.1:8080 ANTHROPIC_API_KEY=none claude -p \"go #script:hello\"
  curl -s 127.0.0.1:8080/requests | jq '.requests[].path'

A script is a list of steps in YAML or JSON:

  scripts:
    - name: hello
      steps:
        - say: I make a file.
        - write: {file: hello.txt, content: \"hello\\n\"}
        - edit: {file: hello.txt, old: hello, new: goodbye}
        - run: cat hello.txt
        - expect: goodbye
        - say: Done.

The server speaks the Anthropic Messages API, OpenAI chat completions and Responses, and Gemini's
generateContent. #script:NAME in a prompt selects a script of the file; the default is the first. The
server records every request with its headers, including credentials: do not use a real key.
docs/model-script.md describes every step.")]
pub struct ModelScript {
    /// Script file, YAML or JSON
    file: PathBuf,
    /// Listen on this address [default: a free port of 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Listen on this Unix socket
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,
    /// Append every request to this file as NDJSON
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// Serves until a signal ends it.
pub async fn run(model_script: &ModelScript, output: &Output) -> Result {
    let file = &model_script.file;
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::input(format!("cannot read the script {}: {error}", file.display())))?;
    let scripts = Scripts::parse(&text).map_err(|error| {
        Failure::input(format!("{} is not a valid script: {error}", file.display()))
            .with_hint("`atoll model-script --help` shows an example.")
    })?;
    let names: Vec<_> = scripts.names().map(str::to_owned).collect();
    let tcp = match (model_script.listen, &model_script.unix) {
        (None, None) => Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        (listen, _) => listen,
    };
    let listen =
        ListenOptions { tcp, unix_socket: model_script.unix.clone(), record_file: model_script.record.clone() };
    let model = ScriptedModel::start_with(scripts, listen).await.map_err(|error| {
        Failure::setup("listen", error).with_hint("Choose another address; remove a stale socket file.")
    })?;
    let unix = model.unix_socket().map(|path| path.display().to_string());
    if output.json {
        output
            .print_object(&json!({ "type": "listening", "url": model.base_url(), "unix": unix, "scripts": names }))?;
    } else {
        let places: Vec<_> =
            [Some(model.base_url()).filter(|url| !url.is_empty()), unix].into_iter().flatten().collect();
        output.print_line(&format!("Playing {} on {}", names.join(", "), places.join(" and ")))?;
    }
    output.flush()?;
    // `cli::run` handles SIGINT; service managers send SIGTERM.
    let mut terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    terminated.recv().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Args;

    #[test]
    fn the_script_in_the_help_is_valid() {
        let help = ModelScript::augment_args(clap::Command::new("model-script")).render_long_help().to_string();
        let (_, script) = help.split_once("\n  scripts:\n").unwrap();
        let (script, _) = script.split_once("\n\n").unwrap();
        let scripts = Scripts::parse(&format!("scripts:\n{script}\n")).unwrap();
        assert_eq!(scripts.names().collect::<Vec<_>>(), ["hello"]);
    }

    #[tokio::test]
    async fn reports_where_a_script_is_invalid() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("script.yaml");
        let command = ModelScript { file: file.clone(), listen: None, unix: None, record: None };
        let output = Output::new(false);
        let refused = run(&command, &output).await.unwrap_err();
        assert_eq!(refused.exit_code(), crate::failure::SETUP_FAILED);
        std::fs::write(&file, "- say: hello\n- shout: hello\n").unwrap();
        let text = run(&command, &output).await.unwrap_err().to_text(false).unwrap();
        assert!(text.contains("step 2: unknown variant `shout`"), "{text}");
        std::fs::write(&file, "- say: hello\n").unwrap();
        let occupied = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let command = ModelScript { listen: Some(occupied.local_addr().unwrap()), ..command };
        assert!(
            run(&command, &output).await.unwrap_err().to_text(false).unwrap().contains("cannot listen on 127.0.0.1:")
        );
    }
}
