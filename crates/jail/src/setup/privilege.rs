//! Who the process is inside, and what it may do there.

use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitiesSecureBits, CapabilitySet, CapabilitySets};

use crate::error::{AtStep, Failure, Step};
use crate::ids::Map;
use crate::place::{AGENT, Ids};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Starts processes as `agent` and ends them, and may do nothing else that `agent` may not.
    Worker,
    /// A one-shot: has no privilege at all and ends with its launcher.
    Agent,
    /// The sandbox's own root, in an imported root: may do to its files what package managers do.
    Root,
}

/// What root may do inside; none of it counts for anything that doesn't belong to the sandbox.
const OF_ROOT: CapabilitySet = CapabilitySet::CHOWN
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

/// From the launcher's id to root inside, where there is one: until here files could be reached as the launcher can.
pub(crate) fn become_root_inside(map: &Map) -> Result<(), Failure> {
    if map.ids == Ids::Single {
        return Ok(());
    }
    rustix::thread::set_thread_groups(&[]).at_with(Step::Ids, "groups")?;
    switch(0).at(Step::Ids)
}

fn switch(id: u32) -> rustix::io::Result<()> {
    let (user, group) = (Uid::from_raw(id), Gid::from_raw(id));
    rustix::thread::set_thread_res_gid(group, group, group)?;
    rustix::thread::set_thread_res_uid(user, user, user)
}

/// Leaves only what the role needs, for this process and all it will start.
pub(crate) fn give_up(role: Role, map: &Map) -> rustix::io::Result<()> {
    let kept = match role {
        Role::Worker if map.has_root() => CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::KILL,
        Role::Root if map.has_root() => OF_ROOT,
        Role::Worker | Role::Agent | Role::Root => CapabilitySet::empty(),
    };
    let none = CapabilitySet::empty();
    rustix::thread::clear_ambient_capability_set()?;
    // Root that executes a program gets what is inheritable or in the bounding set. Nothing can become inheritable once
    // the bounding set is empty, so it comes first.
    let all = rustix::thread::capabilities(None)?;
    rustix::thread::set_capabilities(None, CapabilitySets { inheritable: kept, ..all })?;
    let mut bits = CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED;
    if kept.is_empty() {
        bits |= CapabilitiesSecureBits::NO_ROOT | CapabilitiesSecureBits::NO_ROOT_LOCKED;
    }
    rustix::thread::set_capabilities_secure_bits(bits)?;
    for number in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        // A package manager's programs become another user and root again.
        if role == Role::Root && kept.contains(capability) {
            continue;
        }
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // The kernel knows no more.
            Err(rustix::io::Errno::INVAL) => break,
            outcome => outcome?,
        }
    }
    if role == Role::Agent && map.has_root() {
        switch(AGENT)?;
    }
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: if kept.is_empty() { none } else { kept } };
    rustix::thread::set_capabilities(None, sets)?;
    rustix::thread::set_no_new_privs(true)?;
    if role != Role::Worker {
        // After the last change of ids, which would undo it.
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    }
    Ok(())
}
