//! The ids and capabilities of a process inside.

use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitiesSecureBits, CapabilitySet, CapabilitySets};

use crate::error::{AtStep, LaunchStep, StepFailure};
use crate::id_ranges::IdMap;
use crate::sandbox::{AGENT_UID, IdMapKind};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Starts and kills processes as `agent`, with no other privilege.
    Worker,
    /// A one-shot run without privileges, which dies with its launcher.
    Agent,
    /// Root in an imported root, with the capabilities that package managers need.
    Root,
}

/// Root's capabilities; they apply only to what belongs to the sandbox's user namespace.
const ROOT_CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_CHROOT);

/// Switches from the launcher's id to root inside, if root is mapped.
pub(crate) fn become_root_inside(map: &IdMap) -> Result<(), StepFailure> {
    if map.ids == IdMapKind::SingleId {
        return Ok(());
    }
    rustix::thread::set_thread_groups(&[]).at_with(LaunchStep::SwitchIds, "groups")?;
    switch_ids(0).at(LaunchStep::SwitchIds)
}

fn switch_ids(id: u32) -> rustix::io::Result<()> {
    switch_ids_to(id, id)
}

pub(crate) fn switch_ids_to(user: u32, group: u32) -> rustix::io::Result<()> {
    let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
    rustix::thread::set_thread_res_gid(group, group, group)?;
    rustix::thread::set_thread_res_uid(user, user, user)
}

/// Drops all capabilities that the role does not need, for this process and its future children.
pub(crate) fn drop_capabilities(role: Role, map: &IdMap) -> rustix::io::Result<()> {
    let retained = match role {
        Role::Worker if map.has_root() => CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::KILL,
        Role::Root if map.has_root() => ROOT_CAPABILITIES,
        Role::Worker | Role::Agent | Role::Root => CapabilitySet::empty(),
    };
    let none = CapabilitySet::empty();
    rustix::thread::clear_ambient_capability_set()?;
    // A root process gets the inheritable and bounding capabilities at exec. Nothing can become inheritable once the
    // bounding set is empty, so set that first.
    let all = rustix::thread::capabilities(None)?;
    rustix::thread::set_capabilities(None, CapabilitySets { inheritable: retained, ..all })?;
    let mut bits = CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED;
    if retained.is_empty() {
        bits |= CapabilitiesSecureBits::NO_ROOT | CapabilitiesSecureBits::NO_ROOT_LOCKED;
    }
    rustix::thread::set_capabilities_secure_bits(bits)?;
    for number in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        // A package manager's programs switch users and become root again.
        if role == Role::Root && retained.contains(capability) {
            continue;
        }
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // The kernel has no more capabilities.
            Err(rustix::io::Errno::INVAL) => break,
            outcome => outcome?,
        }
    }
    if role == Role::Agent && map.has_root() {
        switch_ids(AGENT_UID)?;
    }
    let sets = CapabilitySets {
        effective: retained,
        permitted: retained,
        inheritable: if retained.is_empty() { none } else { retained },
    };
    rustix::thread::set_capabilities(None, sets)?;
    rustix::thread::set_no_new_privs(true)?;
    if role != Role::Worker {
        // After the last change of ids, which would clear it.
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    }
    Ok(())
}
