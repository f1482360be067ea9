//! Which congestion controllers there are: those of neap, and those that a user brings.

use super::CongestionControl;
use super::{bbr::Bbr, bbr3::Bbr3, cubic::Cubic, reno::Reno};
use core::fmt;
use std::sync::Arc;
use thiserror::Error;

/// The controllers that neap has.
pub const BUILT_IN: [&str; 4] = ["reno", "cubic", "bbr", "bbr3"];

/// The longest name in bytes (`TCP_CA_NAME_MAX`, less the zero that ends it).
const MAX_NAME: usize = 15;

/// Makes the state of one connection.
type Factory = dyn Fn() -> Box<dyn CongestionControl> + Send + Sync;

/// A controller that a user brought.
#[derive(Clone)]
struct Own {
    name: &'static str,
    factory: Arc<Factory>,
}

/// The controllers of one host, by name: those of neap, and those that were registered.
///
/// Cost: a comparison per controller where a connection is opened or told to change, and nothing
/// per packet. Clones share the factories.
#[derive(Clone, Default)]
pub struct Controllers {
    own: Arc<[Own]>,
}

impl Controllers {
    /// Adds a controller. `factory` is called for each connection that chooses `name`, on the
    /// thread that opens it, and once here.
    ///
    /// # Errors
    /// [`RegisterError`] for a name that is taken or makes no sense, or that is not the one the
    /// controller calls itself by. Nothing has changed then.
    pub fn register(
        &mut self,
        name: &'static str,
        factory: impl Fn() -> Box<dyn CongestionControl> + Send + Sync + 'static,
    ) -> Result<(), RegisterError> {
        if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(RegisterError::Name(name));
        }
        if self.names().any(|known| known == name) {
            return Err(RegisterError::Taken(name));
        }
        let called = factory().name();
        if called != name {
            return Err(RegisterError::Mismatch { name, called });
        }
        let new = Own { name, factory: Arc::new(factory) };
        self.own = self.own.iter().cloned().chain([new]).collect();
        Ok(())
    }

    /// Adds what was registered in `others`.
    ///
    /// # Errors
    /// [`RegisterError::Taken`] for a name that both have. Nothing has changed then.
    pub fn extend(&mut self, others: &Self) -> Result<(), RegisterError> {
        if let Some(own) = others.own.iter().find(|own| self.find(own.name).is_ok()) {
            return Err(RegisterError::Taken(own.name));
        }
        self.own = self.own.iter().chain(&*others.own).cloned().collect();
        Ok(())
    }

    /// A new controller for one connection.
    ///
    /// # Errors
    /// [`UnknownController`] if none has this name.
    pub fn make(&self, name: &str) -> Result<Box<dyn CongestionControl>, UnknownController> {
        Ok(match name {
            "bbr" => Box::new(Bbr::default()),
            "bbr3" => Box::new(Bbr3::default()),
            "cubic" => Box::new(Cubic::default()),
            "reno" => Box::new(Reno),
            _ => {
                let own = self.own.iter().find(|own| own.name == name);
                (own.ok_or_else(|| self.unknown(name))?.factory)()
            }
        })
    }

    /// The name as the controller itself knows it.
    ///
    /// # Errors
    /// [`UnknownController`] if none has this name.
    pub fn find(&self, name: &str) -> Result<&'static str, UnknownController> {
        self.names().find(|&known| known == name).ok_or_else(|| self.unknown(name))
    }

    /// The names of all controllers, in the order of `tcp_available_congestion_control`.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        BUILT_IN.into_iter().chain(self.own.iter().map(|own| own.name))
    }

    fn unknown(&self, name: &str) -> UnknownController {
        let available = self.names().collect::<Vec<_>>().join(", ");
        UnknownController { name: name.to_owned(), available }
    }
}

impl fmt::Debug for Controllers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

/// Equal if they have the same names and the same factories.
impl PartialEq for Controllers {
    fn eq(&self, other: &Self) -> bool {
        let mut pairs = self.own.iter().zip(&*other.own);
        self.own.len() == other.own.len()
            && pairs.all(|(a, b)| a.name == b.name && Arc::ptr_eq(&a.factory, &b.factory))
    }
}

impl Eq for Controllers {}

/// No congestion controller has this name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown congestion control {name:?}: use one of {available}")]
pub struct UnknownController {
    /// What was asked for.
    pub name: String,
    /// What there is.
    pub available: String,
}

/// Why a congestion controller could not be registered.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The name is empty, longer than 15 bytes, or has a character that cannot be seen.
    #[error("congestion control name {0:?}: use 1 to 15 visible ASCII characters")]
    Name(&'static str),
    /// Another controller has the name.
    #[error("congestion control name {0:?} is taken: choose another one")]
    Taken(&'static str),
    /// The controller calls itself something else.
    #[error("the congestion control {name:?} calls itself {called:?}: register it by that name")]
    Mismatch {
        /// The name in the registration.
        name: &'static str,
        /// What [`CongestionControl::name`] answers.
        called: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::{AckSample, CongestionEvent, Window};
    use crate::time::Instant;

    #[derive(Debug)]
    struct Fixed;

    impl CongestionControl for Fixed {
        fn name(&self) -> &'static str {
            "fixed"
        }

        fn on_ack(&mut self, _sample: &AckSample, _window: &mut Window) {}

        fn ssthresh(&mut self, _now: Instant, window: &Window) -> u32 {
            window.cwnd
        }

        fn on_event(&mut self, _event: CongestionEvent, _now: Instant, _window: &mut Window) {}
    }

    fn with_fixed() -> Controllers {
        let mut controllers = Controllers::default();
        controllers.register("fixed", || Box::new(Fixed)).expect("a free name");
        controllers
    }

    #[test]
    fn a_registered_controller_is_made_by_its_name_and_listed_last() {
        let controllers = with_fixed();
        for name in controllers.names() {
            assert_eq!(controllers.make(name).expect("listed").name(), name);
            assert_eq!(controllers.find(name), Ok(name));
        }
        let names: Vec<_> = controllers.names().collect();
        assert_eq!(names, ["reno", "cubic", "bbr", "bbr3", "fixed"]);
        assert_eq!(controllers, controllers.clone());
        assert_ne!(controllers, Controllers::default());
        assert_ne!(controllers, with_fixed(), "another factory");

        let mut both = Controllers::default();
        assert_eq!(both.extend(&controllers), Ok(()));
        assert_eq!(both, controllers);
        assert_eq!(both.extend(&controllers), Err(RegisterError::Taken("fixed")));
        assert_eq!(both, controllers);
    }

    #[test]
    fn names_are_checked_when_they_are_registered() {
        let mut controllers = with_fixed();
        let mut error = |name| {
            let error = controllers.register(name, || Box::new(Fixed)).expect_err("refused");
            error.to_string()
        };
        assert_eq!(
            error("cubic"),
            "congestion control name \"cubic\" is taken: choose another one"
        );
        assert!(error("fixed").ends_with("is taken: choose another one"));
        for name in ["", "two words", "sixteen-bytes-xx", "ümlaut"] {
            assert!(error(name).ends_with("use 1 to 15 visible ASCII characters"), "{name:?}");
        }
        assert_eq!(
            error("other"),
            "the congestion control \"other\" calls itself \"fixed\": register it by that name"
        );
        assert_eq!(controllers.names().count(), 5);
    }

    #[test]
    fn an_unknown_name_is_told_with_all_that_there_are() {
        let error = with_fixed().make("vegas").expect_err("unknown").to_string();
        assert_eq!(
            error,
            "unknown congestion control \"vegas\": use one of reno, cubic, bbr, bbr3, fixed"
        );
    }
}
