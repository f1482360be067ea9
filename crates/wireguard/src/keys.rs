//! Keys: base64 as `wg(8)` prints it, secrets that are zeroed and never shown.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use core::fmt;
use core::str::FromStr;
use zeroize::Zeroizing;

/// Bytes of every key.
const LEN: usize = 32;

/// A text that is no key. It never has the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The text is not 32 bytes in base64.
    #[error("a key is 32 bytes in base64: 43 letters, digits, + or /, and one =")]
    Form,
    /// The system gave no random bytes.
    #[error("the system gave no random bytes for a key")]
    Random,
}

fn decode(text: &str) -> Result<Zeroizing<[u8; LEN]>, KeyError> {
    let mut bytes = Zeroizing::new([0; LEN + 2]);
    let text = text.trim();
    if text.len() != LEN.div_ceil(3) * 4 {
        return Err(KeyError::Form);
    }
    match STANDARD.decode_slice(text, &mut bytes[..]) {
        Ok(LEN) => {
            let mut key = Zeroizing::new([0; LEN]);
            key.copy_from_slice(&bytes[..LEN]);
            Ok(key)
        }
        _ => Err(KeyError::Form),
    }
}

fn random() -> Result<Zeroizing<[u8; LEN]>, KeyError> {
    let mut bytes = Zeroizing::new([0; LEN]);
    let flags = rustix::rand::GetRandomFlags::empty();
    match rustix::rand::getrandom(&mut bytes[..], flags) {
        Ok(LEN) => Ok(bytes),
        _ => Err(KeyError::Random),
    }
}

/// The private key of an interface. It is zeroed when dropped, and its `Debug` shows nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKey(Zeroizing<[u8; LEN]>);

impl PrivateKey {
    /// A new key of the system's random bytes.
    ///
    /// # Errors
    /// [`KeyError::Random`].
    pub fn generate() -> Result<Self, KeyError> {
        random().map(Self)
    }

    /// Returns the public key that peers know this interface by.
    pub fn public_key(&self) -> PublicKey {
        PublicKey(sanstun::PublicKey::from(&self.secret()).to_bytes())
    }

    /// The key as the protocol's crate takes it.
    pub(crate) fn secret(&self) -> sanstun::StaticSecret {
        sanstun::StaticSecret::from(self.0.clone())
    }
}

impl From<[u8; LEN]> for PrivateKey {
    fn from(bytes: [u8; LEN]) -> Self {
        Self(Zeroizing::new(bytes))
    }
}

impl FromStr for PrivateKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        decode(text).map(Self)
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(hidden)")
    }
}

/// A key that two peers share beside their own. It is zeroed when dropped, and its `Debug` shows
/// nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct PresharedKey(Zeroizing<[u8; LEN]>);

impl PresharedKey {
    /// A new key of the system's random bytes.
    ///
    /// # Errors
    /// [`KeyError::Random`].
    pub fn generate() -> Result<Self, KeyError> {
        random().map(Self)
    }

    /// The key as the protocol's crate takes it.
    pub(crate) fn secret(&self) -> sanstun::PresharedKey {
        sanstun::PresharedKey::from(self.0.clone())
    }
}

impl From<[u8; LEN]> for PresharedKey {
    fn from(bytes: [u8; LEN]) -> Self {
        Self(Zeroizing::new(bytes))
    }
}

impl FromStr for PresharedKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        decode(text).map(Self)
    }
}

impl fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PresharedKey(hidden)")
    }
}

/// The public key of a peer, which is its name. It is shown in base64.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey([u8; LEN]);

impl PublicKey {
    /// Returns the bytes of the key.
    pub fn as_bytes(&self) -> &[u8; LEN] {
        &self.0
    }

    /// Whether it can be a peer's: a few points have the same secret with every private key.
    pub(crate) fn is_usable(&self) -> bool {
        let (any, now) = (Zeroizing::new([1; LEN]), std::time::Instant::now());
        let interface = sanstun::Interface::new(any.clone(), now, std::time::Duration::ZERO);
        let mut interface = interface.with_static_private(sanstun::StaticSecret::from(any));
        let config = sanstun::TunnelConfig::default();
        interface.new_tunnel(sanstun::PublicKey::from(self.0), config, now).is_ok()
    }
}

impl From<[u8; LEN]> for PublicKey {
    fn from(bytes: [u8; LEN]) -> Self {
        Self(bytes)
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        decode(text).map(|bytes| Self(*bytes))
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_both_ways() {
        let text = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";
        let key: PublicKey = text.parse().expect("a key");
        assert_eq!(key.to_string(), text);
        assert_eq!(format!("{key:?}"), format!("PublicKey({text})"));
    }

    #[test]
    fn a_pair_of_wg_belongs_together() {
        // `wg genkey | tee /dev/stderr | wg pubkey`.
        let private: PrivateKey =
            "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=".parse().expect("a key");
        let public = "HIgo9xNzJMWLKASShiTqIybxZ0U3wGLiUeJ1PKf8ykw=";
        assert_eq!(private.public_key().to_string(), public);
    }

    #[test]
    fn a_key_that_belongs_to_no_private_key_is_no_peers() {
        for (first, is_usable) in [(0, false), (1, false), (9, true)] {
            let mut bytes = [0; LEN];
            bytes[0] = first;
            assert_eq!(PublicKey::from(bytes).is_usable(), is_usable);
        }
        assert!(PrivateKey::from([7; LEN]).public_key().is_usable());
    }

    #[test]
    fn other_texts_are_refused_and_not_repeated() {
        for text in ["", "abc", "AAAA", &"A".repeat(43), &"A".repeat(44), &"!".repeat(44)] {
            let error = text.parse::<PublicKey>().expect_err(text);
            assert_eq!(error, KeyError::Form);
            assert!(text.len() < 3 || !error.to_string().contains(text));
        }
    }

    #[test]
    fn secrets_are_wiped() {
        fn wiped<T: zeroize::ZeroizeOnDrop>(_: &T) {}
        wiped(&PrivateKey::from([7; LEN]).0);
        wiped(&PresharedKey::from([7; LEN]).0);
        wiped(&random().expect("random bytes"));
    }

    #[test]
    fn secrets_are_not_shown() {
        let (private, shared) = (PrivateKey::from([0xab; 32]), PresharedKey::from([0xab; 32]));
        assert_eq!(format!("{private:?} {shared:?}"), "PrivateKey(hidden) PresharedKey(hidden)");
        assert_ne!(PrivateKey::generate(), PrivateKey::generate());
    }
}
