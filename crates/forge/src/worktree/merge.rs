//! Three-way merge of trees, in the private repository: without merge drivers, attributes or settings of the user.

use super::Worktree;
use crate::error::Error;
use crate::plumbing::sync::marked_directory;
use std::collections::BTreeMap;

const MERGING: &str = "merging the sandbox's changes";

/// What to do with a file that both sides changed in the same place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    /// Report the conflict and change nothing.
    Report,
    /// Keep the worktree's version.
    Ours,
    /// Take the sandbox's version.
    Theirs,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    pub path: String,
    /// Git's name for it, such as `contents` or `modify/delete`.
    pub kind: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MergeOutcome {
    Clean { tree: String },
    Conflicts(Vec<Conflict>),
}

/// The output of `git merge-tree -z`.
#[derive(Debug, Default, PartialEq, Eq)]
struct MergeReport {
    tree: String,
    /// Mode and id by stage, for each path with a conflict.
    stages: BTreeMap<Vec<u8>, BTreeMap<u8, (String, String)>>,
    kinds: BTreeMap<Vec<u8>, String>,
    /// The merged commits. Git appends one to the path of a file that would be in the way of a directory.
    sides: [String; 2],
}

impl Worktree {
    /// Merges a tree of the worktree with a sync commit whose parent is `base`.
    pub fn merge(&self, base: &str, ours: &str, theirs: &str, resolution: Resolution) -> Result<MergeOutcome, Error> {
        let (base_tree, their_tree) = (self.tree_of(base)?, self.tree_of(theirs)?);
        if ours == base_tree || ours == their_tree {
            return Ok(MergeOutcome::Clean { tree: their_tree });
        }
        if their_tree == base_tree {
            return Ok(MergeOutcome::Clean { tree: ours.to_owned() });
        }
        let ours = self.commit_tree(ours, Some(base))?;
        let mut strategy = match resolution {
            Resolution::Report => None,
            Resolution::Ours => Some("-Xours"),
            Resolution::Theirs => Some("-Xtheirs"),
        };
        let merged = loop {
            let mut arguments = vec!["-c", "merge.directoryRenames=false", "merge-tree", "--write-tree", "-z"];
            arguments.extend(strategy);
            arguments.extend([ours.as_str(), theirs]);
            let merged = self.run_private(MERGING, &arguments)?;
            // Older versions of git have no strategy options here.
            if merged.exit_code() == Some(129) && strategy.take().is_some() {
                continue;
            }
            break merged;
        };
        let unread = || Error::Git { what: MERGING, detail: "cannot parse git's report".to_owned() };
        match merged.exit_code() {
            Some(0) => Ok(MergeOutcome::Clean { tree: parse_report(&merged.stdout).ok_or_else(unread)?.tree }),
            Some(1) => {
                let mut report = parse_report(&merged.stdout).ok_or_else(unread)?;
                report.sides = [ours, theirs.to_owned()];
                self.resolve(report, resolution)
            }
            _ => Err(Error::Git { what: MERGING, detail: merged.failure_detail() }),
        }
    }

    /// Takes one side of each file with a conflict, if each conflict is about one path.
    fn resolve(&self, report: MergeReport, resolution: Resolution) -> Result<MergeOutcome, Error> {
        let stage = match resolution {
            Resolution::Report => return Ok(MergeOutcome::Conflicts(report.list_conflicts())),
            Resolution::Ours => 2,
            Resolution::Theirs => 3,
        };
        let is_simple = |kind: &String| matches!(kind.as_str(), "contents" | "binary" | "modify/delete");
        let mut kinds = report.stages.keys().map(|path| report.kinds.get(path));
        if report.stages.is_empty() || !kinds.all(|kind| kind.is_none_or(is_simple)) {
            return Ok(MergeOutcome::Conflicts(report.list_conflicts()));
        }
        let absent = "0".repeat(self.private.format.hex_digits());
        let mut lines = Vec::new();
        for (path, stages) in &report.stages {
            let (mode, id) = stages.get(&stage).map_or(("0", absent.as_str()), |(mode, id)| (mode, id));
            // The entry is removed first: it may have another mode.
            for (mode, id) in [("0", absent.as_str()), (mode, id)] {
                lines.extend([format!("{mode} {id} 0\t").as_bytes(), path, b"\0"].concat());
            }
        }
        let index = self.dir.join("merge-index");
        let command = || Ok::<_, Error>(self.private_command(MERGING)?.env("GIT_INDEX_FILE", &index));
        let bound = self.private.limits.listing_bytes;
        command()?.args(["read-tree", &report.tree]).capture_output(bound)?.require_success()?;
        let update = command()?.args(["update-index", "-z", "--index-info"]).input_bytes(&lines)?;
        update.capture_output(bound)?.require_success()?;
        let tree = command()?.args(["write-tree"]).capture_output(bound)?.require_success()?.text();
        drop(std::fs::remove_file(&index));
        Ok(MergeOutcome::Clean { tree })
    }
}

impl MergeReport {
    /// Lists the paths with stages. Git also describes conflicts that it has resolved.
    fn list_conflicts(&self) -> Vec<Conflict> {
        let mut paths: Vec<&Vec<u8>> = self.stages.keys().collect();
        if paths.is_empty() {
            paths.extend(self.kinds.keys());
        }
        let mut found = BTreeMap::new();
        for path in paths {
            let suffixed = self.sides.iter().find_map(|side| path.strip_suffix(side.as_bytes())?.strip_suffix(b"~"));
            let own = suffixed.unwrap_or(path);
            let own = String::from_utf8_lossy(marked_directory(own).unwrap_or(own)).into_owned();
            let kind = self.kinds.get(path).cloned().unwrap_or_else(|| "contents".to_owned());
            found.entry(own).or_insert(kind);
        }
        found.into_iter().map(|(path, kind)| Conflict { path, kind }).collect()
    }
}

/// Parses the tree, the stages of conflicts, and the messages.
fn parse_report(output: &[u8]) -> Option<MergeReport> {
    let mut fields = output.split(|byte| *byte == 0);
    let mut report = MergeReport { tree: String::from_utf8(fields.next()?.to_vec()).ok()?, ..MergeReport::default() };
    for record in fields.by_ref().take_while(|record| !record.is_empty()) {
        let tab = record.iter().position(|byte| *byte == b'\t')?;
        let entry = String::from_utf8_lossy(&record[..tab]).into_owned();
        let [mode, id, stage] = entry.split(' ').collect::<Vec<_>>().try_into().ok()?;
        let stages = report.stages.entry(record[tab + 1..].to_vec()).or_default();
        stages.insert(stage.parse().ok()?, (mode.to_owned(), id.to_owned()));
    }
    while let Some(count) = fields.next().filter(|count| !count.is_empty()) {
        let count: usize = String::from_utf8_lossy(count).parse().ok()?;
        let paths: Vec<&[u8]> = fields.by_ref().take(count).collect();
        let kind = String::from_utf8_lossy(fields.next()?).into_owned();
        fields.next()?;
        if let Some(kind) = kind.strip_prefix("CONFLICT (").and_then(|kind| kind.strip_suffix(')')) {
            report.kinds.extend(paths.first().map(|path| (path.to_vec(), kind.to_owned())));
        }
    }
    Some(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_stages_and_messages() {
        let output = b"aaaa\x00100644 1111 1\ta b\x00100644 2222 2\ta b\x00100755 3333 3\ta b\x00\x001\0a b\0\
            Auto-merging\0Auto-merging a b\n\x001\0a b\0CONFLICT (contents)\0CONFLICT (content): Merge conflict in a b\n\0";
        let report = parse_report(output).unwrap();
        assert_eq!(report.tree, "aaaa");
        assert_eq!(report.stages[b"a b".as_slice()][&3], ("100755".to_owned(), "3333".to_owned()));
        assert_eq!(report.list_conflicts(), [Conflict { path: "a b".to_owned(), kind: "contents".to_owned() }]);
        assert_eq!(parse_report(b"bbbb\0").unwrap().tree, "bbbb");
        // A file in the way of a directory, and one that git removed because the other side had not changed it.
        let output = b"aaaa\x00100644 1111 2\td~f00\x00\x002\0d~f00\0d\0CONFLICT (file/directory)\0text\n\0\
            2\0e~f00\0e\0CONFLICT (file/directory)\0text\n\0";
        let sides = ["f00".to_owned(), "f11".to_owned()];
        let report = MergeReport { sides, ..parse_report(output).unwrap() };
        assert_eq!(report.list_conflicts(), [Conflict { path: "d".to_owned(), kind: "file/directory".to_owned() }]);
        assert_eq!(parse_report(b"bbbb\0nonsense\0"), None);
    }
}
