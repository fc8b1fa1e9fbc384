//! The async runtime of a command.

use crate::failure::{Failure, Result};
use tokio::runtime::{Builder, Runtime};

pub fn build_runtime(mut builder: Builder) -> Result<Runtime> {
    let built = builder.enable_all().build();
    built.map_err(|error| Failure::setup("runtime", format!("can't start the runtime: {error}")))
}
