//! Which kinds of qdiscs there are: those of neap, and those that a user brings.

use super::Qdisc;
use super::config::{QdiscConfig, QdiscError};
use crate::device::Capabilities;
use core::fmt;
use std::sync::Arc;

/// The kinds that neap has, as errors list them.
pub(super) const BUILT_IN: &str = "pfifo_fast, fq, fq_codel, codel, tbf and mq";

/// Place for which a qdisc of the user's own is made.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct QdiscSetup<'a> {
    /// Value that [`Qdisc::config`] has to return.
    pub config: &'a QdiscConfig,
    /// Abilities of the device.
    pub capabilities: &'a Capabilities,
    /// Differs from queue to queue and cannot be guessed, for hashes of what peers choose.
    pub seed: u64,
}

/// Makes the qdisc of one queue of a device.
type Factory = dyn Fn(&QdiscSetup<'_>) -> Box<dyn Qdisc> + Send + Sync;

/// A kind of qdisc that a user brought: a name and what makes one.
#[derive(Clone)]
pub struct CustomQdisc {
    name: &'static str,
    factory: Arc<Factory>,
}

impl CustomQdisc {
    pub(super) fn new(
        name: &'static str,
        factory: impl Fn(&QdiscSetup<'_>) -> Box<dyn Qdisc> + Send + Sync + 'static,
    ) -> Self {
        Self { name, factory: Arc::new(factory) }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn build(&self, setup: &QdiscSetup<'_>) -> Box<dyn Qdisc> {
        (self.factory)(setup)
    }
}

impl fmt::Debug for CustomQdisc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CustomQdisc").field(&self.name).finish()
    }
}

/// Equal if the name and the factory are the same.
impl PartialEq for CustomQdisc {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && Arc::ptr_eq(&self.factory, &other.factory)
    }
}

impl Eq for CustomQdisc {}

/// Kinds of qdiscs by name: those of neap, and those that were registered.
///
/// Cost: a comparison per kind where a qdisc is set, and nothing per packet.
#[derive(Clone, Debug, Default)]
pub struct QdiscKinds {
    own: Vec<CustomQdisc>,
}

impl QdiscKinds {
    /// Adds a kind. `factory` is called for each queue of a device that gets one.
    ///
    /// # Errors
    /// [`QdiscError::Name`] for a name that is not one visible word, [`QdiscError::Taken`] for one
    /// that another kind has. Nothing has changed then.
    pub fn register(
        &mut self,
        name: &'static str,
        factory: impl Fn(&QdiscSetup<'_>) -> Box<dyn Qdisc> + Send + Sync + 'static,
    ) -> Result<(), QdiscError> {
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(QdiscError::Name(name));
        }
        // Any answer but "unknown kind" means that a kind of this name exists.
        if !matches!(self.parse(name), Err(QdiscError::UnknownKind { .. })) {
            return Err(QdiscError::Taken(name));
        }
        self.own.push(CustomQdisc::new(name, factory));
        Ok(())
    }

    /// A qdisc in the words of `tc`, or by the name of a registered kind, which takes no
    /// parameters.
    ///
    /// # Errors
    /// [`QdiscError`], with all kinds that there are if the kind is unknown.
    pub fn parse(&self, text: &str) -> Result<QdiscConfig, QdiscError> {
        let mut words = text.split_ascii_whitespace();
        let name = words.next().unwrap_or_default();
        if let Some(own) = self.own.iter().find(|own| own.name == name) {
            return match words.next() {
                None => Ok(QdiscConfig::Custom(own.clone())),
                Some(word) => {
                    Err(QdiscError::UnknownParameter { kind: own.name, name: word.to_owned() })
                }
            };
        }
        text.parse().map_err(|error| match error {
            QdiscError::UnknownKind { kind, mut available } => {
                for own in &self.own {
                    available = format!("{}, {available}", own.name);
                }
                QdiscError::UnknownKind { kind, available }
            }
            error => error,
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::net::qdisc::fifo::PfifoFast;

    fn kinds() -> QdiscKinds {
        let mut kinds = QdiscKinds::default();
        kinds.register("mine", |_| Box::new(PfifoFast::new(7))).expect("a free name");
        kinds
    }

    #[test]
    fn a_registered_kind_is_found_by_its_name_and_the_others_as_before() {
        let mine = kinds().parse(" mine ").expect("registered");
        assert_eq!((mine.kind(), mine.to_string().as_str()), ("mine", "mine"));
        let fq = kinds().parse("fq limit 10").expect("built in");
        assert_eq!(fq, "fq limit 10".parse().expect("built in"));
    }

    #[test]
    fn names_and_words_are_checked() {
        let mut kinds = kinds();
        let mut error = |name| {
            kinds.register(name, |_| Box::new(PfifoFast::new(7))).expect_err("refused").to_string()
        };
        for name in ["mine", "fq", "mq", "tbf"] {
            assert_eq!(
                error(name),
                format!("a qdisc {name:?} is there already: choose another name")
            );
        }
        for name in ["", "two words"] {
            assert_eq!(error(name), format!("qdisc name {name:?}: use one visible word"));
        }
        let error = |text| kinds.parse(text).expect_err("refused").to_string();
        assert_eq!(error("mine limit 3"), "mine has no parameter \"limit\"");
        assert_eq!(
            error("red"),
            "unknown qdisc \"red\"; there are mine, pfifo_fast, fq, fq_codel, codel, tbf and mq"
        );
        assert_eq!(
            error(""),
            "no qdisc is named; there are pfifo_fast, fq, fq_codel, codel, tbf and mq"
        );
    }
}
