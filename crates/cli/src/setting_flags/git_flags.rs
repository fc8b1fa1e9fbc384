//! The flags of a branch: its publication and merge.

use crate::arguments::parse_word;
use atoll_core::git_settings::{GitSettings, Publication, UpdateMethod};
use atoll_core::pull_request::MergeMethod;

#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Sandbox")]
pub struct GitFlags {
    /// Publish the results of a repository with a URL: none, push or pull_request [default: none]
    #[arg(long, value_name = "WHAT", value_parser = parse_word::<Publication>)]
    publish: Option<Publication>,
    /// Merge the pull request when its checks and reviews allow it [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    merge: Option<bool>,
    /// Merge method: squash, merge or rebase [default: squash]
    #[arg(long, value_name = "METHOD", value_parser = parse_word::<MergeMethod>)]
    merge_method: Option<MergeMethod>,
    /// Update of a branch that needs its base: merge or rebase [default: merge]
    #[arg(long, value_name = "METHOD", value_parser = parse_word::<UpdateMethod>)]
    update: Option<UpdateMethod>,
}

impl GitFlags {
    /// The git settings of the request; `None` without any flag.
    pub fn settings(&self) -> Option<GitSettings> {
        let Self { publish, merge, merge_method, update } = *self;
        let settings = GitSettings { publish, merge, merge_method, update, ..GitSettings::default() };
        (settings != GitSettings::default()).then_some(settings)
    }
}
