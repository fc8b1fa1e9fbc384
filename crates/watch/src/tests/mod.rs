mod everyday_changes;
mod git_baseline;
mod large_tree;
pub mod patch;
mod property;
mod rules;
mod unusual_files;
mod workspace;
