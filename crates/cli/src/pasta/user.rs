//! The user that the face becomes when it has what it needs.

use nix::unistd::{Gid, Group, Uid, User, setgid, setgroups, setuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_keep_capabilities,
};
use serde::{Deserialize, Serialize};
use std::fs;

/// Who is nobody.
const NOBODY: &str = "nobody";

/// A user and a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u32, u32)", into = "(u32, u32)")]
pub(super) struct Identity {
    user: Uid,
    group: Gid,
}

impl From<(u32, u32)> for Identity {
    fn from((user, group): (u32, u32)) -> Self {
        Self { user: Uid::from_raw(user), group: Gid::from_raw(group) }
    }
}

impl From<Identity> for (u32, u32) {
    fn from(Identity { user, group }: Identity) -> Self {
        (user.as_raw(), group.as_raw())
    }
}

impl Identity {
    /// That of `--runas`: numbers or names. A user without a group has that of the same number, or
    /// his own one if he is named.
    ///
    /// # Errors
    /// What is expected.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("--runas {text}: expected UID, UID:GID, LOGIN or LOGIN:GROUP");
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        let (user, own_group) = match user.parse::<u32>() {
            Ok(number) => (Uid::from_raw(number), Gid::from_raw(number)),
            Err(_) => {
                let known = User::from_name(user).ok().flatten().ok_or_else(wrong)?;
                (known.uid, known.gid)
            }
        };
        let group = match group.map(|group| (group, group.parse::<u32>())) {
            None => own_group,
            Some((_, Ok(number))) => Gid::from_raw(number),
            Some((name, Err(_))) => Group::from_name(name).ok().flatten().ok_or_else(wrong)?.gid,
        };
        Ok(Self { user, group })
    }

    /// Whom to become: that of the option, or nobody if this is the machine's root.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub(super) fn wanted(option: Option<&str>) -> Result<Option<Self>, String> {
        match option {
            Some(text) => Self::parse(text).map(Some),
            None if is_root_of_machine() => Self::parse(NOBODY).map(Some),
            None => Ok(None),
        }
    }

    /// Whether it is that of this process.
    pub(super) fn is_own(self) -> bool {
        (self.user, self.group) == (Uid::effective(), Gid::effective())
    }

    /// Becomes that user, with all threads.
    ///
    /// # Errors
    /// This process may not.
    pub(super) fn assume(self) -> Result<(), String> {
        if self.is_own() {
            return Ok(());
        }
        let become_other = || {
            setgroups(&[])?;
            setgid(self.group)?;
            setuid(self.user)
        };
        become_other().map_err(|error| {
            let (user, group) = (self.user, self.group);
            format!("--runas: cannot become user {user} and group {group}: {error}")
        })
    }

    /// Becomes that user with those of these capabilities that this thread has. Nothing else of the
    /// machine's root is left.
    ///
    /// # Errors
    /// This process may not.
    pub(super) fn assume_with_capabilities(self, kept: CapabilitySet) -> Result<(), String> {
        if kept.is_empty() || self.is_own() {
            return self.assume();
        }
        let failed = |error| format!("--runas: capabilities cannot be kept: {error}");
        let CapabilitySets { permitted, inheritable, .. } = capabilities(None).map_err(failed)?;
        set_keep_capabilities(true).map_err(failed)?;
        self.assume()?;
        set_keep_capabilities(false).map_err(failed)?;
        let permitted = permitted & kept;
        // Another user has all of them, and none in effect (capabilities(7)).
        let kept = CapabilitySets { effective: permitted, permitted, inheritable };
        set_capabilities(None, kept).map_err(failed)
    }
}

/// Whether this is root, and not the root of a user namespace.
fn is_root_of_machine() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let all = ["0", "0", "4294967295"];
    Uid::effective().is_root() && map.split_whitespace().eq(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_understood() {
        let identity =
            |user, group| Ok(Identity { user: Uid::from_raw(user), group: Gid::from_raw(group) });
        assert_eq!(Identity::parse("12"), identity(12, 12));
        assert_eq!(Identity::parse("12:34"), identity(12, 34));
        assert_eq!(Identity::parse("root"), identity(0, 0));
        assert_eq!(Identity::parse("root:5"), identity(0, 5));
        for wrong in ["", "no such user", "12:no such group", "-1"] {
            let error = Identity::parse(wrong).expect_err(wrong);
            assert!(error.contains("LOGIN:GROUP"), "{error}");
        }
    }
}
