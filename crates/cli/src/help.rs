//! Arranges the help texts: groups commands by use, and lets clap wrap paragraphs at the terminal's width.

use clap::Command;

/// A heading and the commands under it.
type CommandGroup = (&'static str, &'static [&'static str]);

const ROOT_GROUPS: &[CommandGroup] = &[
    ("Run agents", &["run", "code", "attach", "send", "approvals", "approve", "deny", "messages", "message"]),
    ("Sandboxes and sessions", &["ls", "sandbox", "session", "task", "ticket", "pr", "snapshot", "cache", "image"]),
    ("Look at the work", &["monitor", "logs", "replay", "events", "compare", "guardian"]),
    ("Set up", &["agents", "secret", "forge", "setup", "providers", "doctor", "verify", "config"]),
    ("Run a server", &["serve", "open", "project", "user", "token", "sign-in", "backup", "gc"]),
    ("For programs", &["model-script", "completions", "openapi", "help"]),
];

const SANDBOX_GROUPS: &[CommandGroup] = &[
    ("Create and list", &["new", "ls", "show", "fork"]),
    ("Work inside", &["exec", "shell", "files", "cp", "ports", "preview"]),
    ("Look at the work", &["diff", "transcript", "blob", "usage"]),
    ("Control", &["pause", "resume", "snapshot", "network", "limits", "worker-token"]),
    ("End", &["stop", "results", "rm"]),
];

/// Arranges the help of all commands.
pub fn arrange_help(command: Command) -> Command {
    let command = command.mut_subcommand("sandbox", |sandbox| group_commands(sandbox, SANDBOX_GROUPS));
    reflow_command(group_commands(command, ROOT_GROUPS))
}

/// Replaces the one list of subcommands by groups.
fn group_commands(command: Command, groups: &[CommandGroup]) -> Command {
    let names = groups.iter().flat_map(|(_, names)| names.iter());
    let width = names.map(|name| name.len()).max().unwrap_or(0);
    let header = *command.get_styles().get_header();
    let literal = *command.get_styles().get_literal();
    let mut text = String::new();
    for (heading, names) in groups {
        text.push_str(&format!("{header}{heading}:{header:#}\n"));
        for name in *names {
            let about = match command.find_subcommand(name) {
                Some(sub) => sub.get_about().map(ToString::to_string).unwrap_or_default(),
                None => "Print this message or the help of a command".to_owned(),
            };
            text.push_str(&format!("  {literal}{name:width$}{literal:#}  {about}\n"));
        }
        text.push('\n');
    }
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{text}{header}Options:{header:#}\n{{options}}{{after-help}}"
    );
    command.help_template(template)
}

/// Joins the lines of each paragraph after the options, so that clap wraps it at the terminal's width.
fn reflow_command(command: Command) -> Command {
    let text = command.get_after_help().map(|text| reflow_paragraphs(&text.to_string()));
    let command = match text {
        Some(text) => command.after_help(text),
        None => command,
    };
    command.mut_subcommands(reflow_command)
}

/// Joins lines that belong to one paragraph. Indented lines and headings stay as they are.
fn reflow_paragraphs(text: &str) -> String {
    let mut joined = String::new();
    let mut is_open = false;
    for line in text.lines() {
        let is_plain = !line.is_empty() && !line.starts_with(' ') && !line.ends_with(':');
        if !joined.is_empty() {
            joined.push(if is_open && is_plain { ' ' } else { '\n' });
        }
        joined.push_str(line);
        is_open = is_plain;
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    #[test]
    fn every_command_is_in_one_group() {
        let root = Cli::command();
        let sandbox = root.find_subcommand("sandbox").unwrap().clone();
        for (command, groups) in [(root, ROOT_GROUPS), (sandbox, SANDBOX_GROUPS)] {
            let mut grouped: Vec<_> =
                groups.iter().flat_map(|(_, names)| names.iter().copied()).filter(|name| *name != "help").collect();
            let mut commands: Vec<_> = command.get_subcommands().map(Command::get_name).collect();
            grouped.sort_unstable();
            commands.sort_unstable();
            assert_eq!(grouped, commands, "{}", command.get_name());
        }
    }

    #[test]
    fn joins_paragraphs_and_keeps_examples() {
        let text = "Examples:\n  one\n  two\n\nA long\nparagraph.\n\nExit codes: 0\nor 1.";
        assert_eq!(reflow_paragraphs(text), "Examples:\n  one\n  two\n\nA long paragraph.\n\nExit codes: 0 or 1.");
    }

    #[test]
    fn positional_arguments_and_server_flags_are_in_their_groups() {
        fn check(command: &Command, path: &str) {
            for argument in command.get_arguments() {
                let heading = argument.get_help_heading();
                let id = argument.get_id().as_str();
                assert!(!argument.is_positional() || heading.is_none(), "{path}: {id} is in {heading:?}");
                let is_of_server = ["server", "token_file", "data_dir", "config"].contains(&id);
                assert!(heading != Some("Server") || is_of_server, "{path}: {id} is in the group of the server");
            }
            command.get_subcommands().for_each(|sub| check(sub, &format!("{path} {}", sub.get_name())));
        }
        check(&Cli::command(), "atoll");
    }
}
