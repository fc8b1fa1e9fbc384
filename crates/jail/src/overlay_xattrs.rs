//! The kind of extended attributes that a layer's overlay uses.

use std::fs;

use crate::error::Error;
use crate::layers::{LayerPart, LayerStack, LayerStore};

/// The extended attributes in which overlayfs records what a layer hides and moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OverlayXattrs {
    /// Of the namespace `user`, for an overlay that is mounted inside the sandbox's user namespace.
    User,
    /// Of the namespace `trusted`, for an overlay that the launcher mounts as root: directories can be renamed.
    Trusted,
}

/// Marks a layer with [`OverlayXattrs::Trusted`]. Layers of earlier versions have no mark.
const TRUSTED_MARK: &str = "trusted-xattrs";

impl LayerStore {
    /// Marks a new layer.
    pub fn mark_xattrs(&self, id: &str, xattrs: OverlayXattrs) -> Result<(), Error> {
        let mark = self.layer_dir(id).join(TRUSTED_MARK);
        match xattrs {
            OverlayXattrs::User => Ok(()),
            OverlayXattrs::Trusted => fs::write(&mark, "").map_err(|error| Error::file("create", &mark, error)),
        }
    }

    /// The extended attributes of a layer's overlay.
    pub fn xattrs_of(&self, id: &str) -> OverlayXattrs {
        let is_marked = self.layer_dir(id).join(TRUSTED_MARK).exists();
        if is_marked { OverlayXattrs::Trusted } else { OverlayXattrs::User }
    }

    /// True if renaming a directory of a lower layer of this stack's files fails with `EXDEV`.
    pub fn has_fixed_dirs(&self, stack: &LayerStack) -> bool {
        !stack.below.is_empty() && stack.volume.is_none() && self.xattrs_of(&stack.top) == OverlayXattrs::User
    }

    /// True if the layer can be below one with the given attributes: overlayfs reads one kind only.
    pub fn is_compatible(&self, id: &str, xattrs: OverlayXattrs) -> bool {
        let is_upper = |part: LayerPart| self.layer_dir(id).join(part.work_dir_name()).exists();
        self.xattrs_of(id) == xattrs || !(is_upper(LayerPart::Files) || is_upper(LayerPart::System))
    }
}
