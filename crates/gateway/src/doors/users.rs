//! Who may use a proxy.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use std::fmt;
use subtle::{Choice, ConstantTimeEq};
use zeroize::Zeroizing;

/// Most bytes of a name and of a password: what SOCKS5 can say (RFC 1929).
const MOST: usize = 255;

/// Names and passwords of those who may use a proxy. Passwords are never printed, and wiped from
/// memory when they are dropped.
#[derive(Clone, Default)]
pub struct Users(Vec<(Secret, Secret)>);

/// Text of at most [`MOST`] bytes, padded, so that a comparison takes the same time for all. It is
/// at one place in memory from its beginning to its end.
#[derive(Clone)]
struct Secret {
    bytes: Zeroizing<Vec<u8>>,
    length: u8,
}

impl Secret {
    fn new(text: &[u8]) -> Option<Self> {
        let mut bytes = Zeroizing::new(vec![0; MOST]);
        bytes.get_mut(..text.len())?.copy_from_slice(text);
        Some(Self { bytes, length: u8::try_from(text.len()).ok()? })
    }

    fn is(&self, other: &Self) -> Choice {
        self.bytes.as_slice().ct_eq(other.bytes.as_slice()) & self.length.ct_eq(&other.length)
    }
}

impl Users {
    /// Adds a user. Whether there was one to add: name and password have at most 255 bytes, and one
    /// of them is not empty. Clients that speak HTTP cannot say a name with a colon (RFC 7617
    /// section 2).
    #[must_use]
    pub fn add(&mut self, name: &str, password: &str) -> bool {
        let is_user = !(name.is_empty() && password.is_empty());
        let (Some(name), Some(password)) =
            (Secret::new(name.as_bytes()), Secret::new(password.as_bytes()))
        else {
            return false;
        };
        if is_user {
            self.0.push((name, password));
        }
        is_user
    }

    /// Whether everybody may use the proxy.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it is a user with the right password. It takes the same time for all names and
    /// passwords.
    pub(crate) fn allow(&self, name: &[u8], password: &[u8]) -> bool {
        let (Some(name), Some(password)) = (Secret::new(name), Secret::new(password)) else {
            return false;
        };
        let mut is_known = Choice::from(0);
        for (own_name, own_password) in &self.0 {
            is_known |= own_name.is(&name) & own_password.is(&password);
        }
        is_known.into()
    }

    /// The same of the value of `Proxy-Authorization` (RFC 7617).
    pub(crate) fn allow_basic(&self, value: &[u8]) -> bool {
        let Some((scheme, encoded)) = value.split_at_checked(6) else { return false };
        if !scheme.eq_ignore_ascii_case(b"basic ") {
            return false;
        }
        let Ok(pair) = BASE64_STANDARD.decode(encoded.trim_ascii()) else { return false };
        let pair = Zeroizing::new(pair);
        let Some(colon) = pair.iter().position(|&byte| byte == b':') else { return false };
        self.allow(&pair[..colon], &pair[colon + 1..])
    }
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Users({})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_wiped() {
        fn wiped<T: zeroize::ZeroizeOnDrop>(_: &T) {}
        wiped(&Secret::new(b"open sesame").expect("short").bytes);
    }

    #[test]
    fn only_a_known_pair_is_allowed() {
        let mut users = Users::default();
        assert!(users.is_empty());
        assert!(users.add("Aladdin", "open sesame") && users.add("me", ""));
        assert!(!users.add("", "") && users.add("", "x") && users.add("a:b", "x"));
        assert!(users.allow(b"", b"x") && users.allow_basic(b"Basic Ong="));
        assert!(users.allow(b"a:b", b"x") && !users.allow_basic(b"Basic YTpiOng="));
        assert!(!users.add("me", &"x".repeat(256)));
        assert!(users.allow(b"Aladdin", b"open sesame") && users.allow(b"me", b""));
        for (name, password) in [("me", "open sesame"), ("me", "\0"), ("Aladdin", "open"), ("", "")]
        {
            assert!(!users.allow(name.as_bytes(), password.as_bytes()), "{name} {password}");
        }
        // The example of RFC 7617 section 2.
        assert!(users.allow_basic(b"Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="));
        assert!(users.allow_basic(b"basic   QWxhZGRpbjpvcGVuIHNlc2FtZQ== "));
        for value in ["Basic", "Basic !", "Digest QWxhZGRpbjpvcGVuIHNlc2FtZQ==", "Basic bWU="] {
            assert!(!users.allow_basic(value.as_bytes()), "{value}");
        }
        assert!(!format!("{users:?}").contains("sesame"));
    }
}
