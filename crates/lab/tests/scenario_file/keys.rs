//! The keys that a scenario may have, as its types tell serde: each type says which it has before
//! it reads any.

use neap_lab::scenario::Scenario;
use serde::de::value::{BorrowedStrDeserializer, Error};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Names that a type has.
type Names = &'static [&'static str];

/// What a scenario may have.
#[derive(Default)]
pub(crate) struct Keys {
    /// Keys of each table by its path, in which `NAME` stands for a name of the file's own.
    pub(crate) tables: BTreeMap<String, Names>,
    /// Words that are the values of a key, by its path.
    pub(crate) words: BTreeMap<String, Names>,
}

/// Every table that can be reached from the top of a file.
pub(crate) fn all() -> Keys {
    let found = RefCell::default();
    let mut ways: Vec<Vec<&'static str>> = vec![Vec::new()];
    while let Some(way) = ways.pop() {
        let seen = RefCell::default();
        let place = Place { way: &way, path: String::new(), seen: &seen, found: &found };
        // It is of no use as a scenario: it has one key.
        drop(Scenario::deserialize(place));
        let keys: Option<Names> = seen.into_inner();
        ways.extend(keys.into_iter().flatten().map(|key| [&way[..], &[*key]].concat()));
    }
    found.into_inner()
}

/// A place in a file that has what is on the way to one table, and nothing else.
struct Place<'a> {
    /// The keys from here to that table.
    way: &'a [&'static str],
    path: String,
    /// The keys of that table.
    seen: &'a RefCell<Option<Names>>,
    found: &'a RefCell<Keys>,
}

impl Place<'_> {
    fn within(self, name: &str) -> Self {
        let dot = if self.path.is_empty() { "" } else { "." };
        Self { path: format!("{}{dot}{name}", self.path), ..self }
    }
}

/// Whether a struct is a value with its place in the file, and which of its keys has the value.
fn spanned(keys: Names) -> Option<&'static str> {
    keys.iter().find(|key| key.starts_with("$__serde_spanned") && key.ends_with("value")).copied()
}

impl<'de> Deserializer<'de> for Place<'_> {
    type Error = Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        keys: Names,
        visitor: V,
    ) -> Result<V::Value, Error> {
        if let Some(value) = spanned(keys) {
            return visitor.visit_map(Entry { key: Some(value), place: Some(self) });
        }
        match self.way.split_first() {
            Some((key, rest)) => {
                let place = Place { way: rest, ..self }.within(key);
                visitor.visit_map(Entry { key: Some(key), place: Some(place) })
            }
            None => {
                self.found.borrow_mut().tables.insert(self.path, keys);
                *self.seen.borrow_mut() = Some(keys);
                Err(Error::custom("seen"))
            }
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        words: Names,
        _: V,
    ) -> Result<V::Value, Error> {
        self.found.borrow_mut().words.insert(self.path, words);
        Err(Error::custom("seen"))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_map(Entry { key: Some("NAME"), place: Some(self.within("NAME")) })
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(One(Some(self)))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("no table"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct newtype_struct tuple tuple_struct identifier ignored_any
    }
}

/// A table of one key.
struct Entry<'a> {
    key: Option<&'static str>,
    place: Option<Place<'a>>,
}

impl<'de> MapAccess<'de> for Entry<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        self.key.take().map(|key| seed.deserialize(Key(key))).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(self.place.take().ok_or_else(|| Error::custom("one key"))?)
    }
}

/// A list of one entry.
struct One<'a>(Option<Place<'a>>);

impl<'de> SeqAccess<'de> for One<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        self.0.take().map(|place| seed.deserialize(place)).transpose()
    }
}

/// A key, which may have its place in the file as well.
struct Key(&'static str);

impl<'de> Deserializer<'de> for Key {
    type Error = Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        keys: Names,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_map(Spanned { text: self.0, keys: keys.iter(), key: "" })
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_borrowed_str(self.0)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// A text with a place: begin, end and value.
struct Spanned {
    text: &'static str,
    keys: std::slice::Iter<'static, &'static str>,
    key: &'static str,
}

impl<'de> MapAccess<'de> for Spanned {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let Some(key) = self.keys.next() else { return Ok(None) };
        self.key = key;
        seed.deserialize(BorrowedStrDeserializer::new(key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        if self.key.ends_with("value") {
            return seed.deserialize(BorrowedStrDeserializer::new(self.text));
        }
        seed.deserialize(serde::de::value::UsizeDeserializer::new(0))
    }
}
