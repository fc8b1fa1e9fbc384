//! Submodules of a commit. Atoll does not fill them, so it reports them before the work starts.

use crate::error::Error;
use crate::repository::HostRepository;

const ACTION: &str = "looking for submodules";

/// The mode of a submodule's entry in a tree.
const SUBMODULE_MODE: &[u8] = b"160000 ";

const MAX_SUBMODULES: usize = 100;

impl HostRepository {
    /// Lists the paths of a commit's submodules; of very many, the first ones.
    pub fn list_submodules(&self, commit: &str) -> Result<Vec<String>, Error> {
        let command = self.git_command(ACTION, self.limits.bulk_timeout)?;
        let mut found = Vec::new();
        let listed = command.args(["ls-tree", "-r", "-z", "--full-tree", commit]);
        let listed = listed.read_records(self.limits.listing_bytes, &mut |record| {
            let name = record.iter().position(|byte| *byte == b'\t').map(|tab| &record[tab + 1..]);
            if let Some(name) = name.filter(|_| record.starts_with(SUBMODULE_MODE) && found.len() < MAX_SUBMODULES) {
                found.push(String::from_utf8_lossy(name).into_owned());
            }
        });
        listed?.require_success()?;
        Ok(found)
    }
}
