//! Snapshot of all help texts: a change of the command line shows in review.

use super::Cli;
use clap::Command;

fn collect_help(command: &Command, path: &str, pages: &mut Vec<(String, String)>) {
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        let path = format!("{path} {}", sub.get_name());
        let mut sub = sub.clone().bin_name(path.clone());
        pages.push((path.clone(), sub.render_long_help().to_string()));
        collect_help(&sub, &path, pages);
    }
}

fn all_help_pages() -> Vec<(String, String)> {
    let mut root = Cli::build_command().term_width(110);
    root.build();
    let mut pages = vec![("atoll".to_owned(), root.render_long_help().to_string())];
    collect_help(&root, "atoll", &mut pages);
    pages
}

#[test]
fn the_command_tree_is_valid() {
    Cli::build_command().debug_assert();
}

#[test]
fn help_of_every_command() {
    let pages = all_help_pages().into_iter().map(|(path, help)| format!("──── {path} ────\n\n{}\n", help.trim_end()));
    insta::assert_snapshot!("help", pages.collect::<Vec<_>>().join("\n"));
}

#[test]
fn every_command_has_an_example() {
    for (path, help) in all_help_pages() {
        let group = (help.contains("\nCommands:\n") || path == "atoll sandbox") && path != "atoll";
        assert!(group || help.contains("\nExamples:\n"), "{path} has no example");
    }
}

/// The units start the server with valid arguments, and leave the sandboxes running when it stops.
#[test]
fn the_systemd_units_are_valid() {
    let units =
        [include_str!("../../../packaging/atoll.service"), include_str!("../../../packaging/atoll-user.service")];
    for unit in units {
        let setting = |name: &str| unit.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        assert_eq!((setting("KillMode"), setting("Delegate")), (Some("process"), Some("yes")), "{unit}");
        let arguments = setting("ExecStart").unwrap_or_default().split(' ');
        let parsed = Cli::build_command().try_get_matches_from(arguments);
        assert!(parsed.is_ok_and(|parsed| parsed.subcommand_name() == Some("serve")), "{unit}");
    }
}
