//! The command line is a contract: what every command says about itself is looked at in review.

use super::Cli;
use clap::{Command, CommandFactory};

fn walk(command: &Command, path: &str, seen: &mut Vec<(String, String)>) {
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        let path = format!("{path} {}", sub.get_name());
        let mut sub = sub.clone().bin_name(path.clone());
        seen.push((path.clone(), sub.render_long_help().to_string()));
        walk(&sub, &path, seen);
    }
}

fn every_help() -> Vec<(String, String)> {
    let mut root = Cli::command().term_width(110);
    root.build();
    let mut seen = vec![("atoll".to_owned(), root.render_long_help().to_string())];
    walk(&root, "atoll", &mut seen);
    seen
}

#[test]
fn the_tree_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn every_command_says_what_it_takes() {
    let pages = every_help().into_iter().map(|(path, help)| format!("──── {path} ────\n\n{}\n", help.trim_end()));
    insta::assert_snapshot!("help", pages.collect::<Vec<_>>().join("\n"));
}

#[test]
fn every_command_that_does_something_has_an_example() {
    for (path, help) in every_help() {
        let group = help.contains("\nCommands:\n") && path != "atoll";
        assert!(group || help.contains("\nExamples:\n"), "{path} has no example");
    }
}
