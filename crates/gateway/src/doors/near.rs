//! The side of a connection that came to a door.

use super::body::Body;
use crate::relay::End;
use bytes::Bytes;
use std::collections::VecDeque;
use std::io;

/// Pieces behind the end of a body that one visit passes over.
const MOST_DISCARDED: usize = 4;

/// A connection whose client may send no more than a body.
pub(super) struct Near {
    pub(super) stream: Box<dyn End + Send>,
    pub(super) body: Body,
    /// The client sends no more once the other side has ended its stream.
    pub(super) ends_with_far: bool,
    has_finished: bool,
}

impl Near {
    pub(super) fn new(stream: Box<dyn End + Send>) -> Self {
        Self { stream, body: Body::Endless, ends_with_far: false, has_finished: false }
    }

    /// Whether the client may say more, which is for nobody.
    pub(super) fn may_say_more(&self) -> bool {
        self.body.is_over()
    }

    /// Whether the end of the other side's stream has ended this one's as well.
    pub(super) fn is_over(&self) -> bool {
        self.has_finished && (self.ends_with_far || self.body.is_over())
    }
}

impl End for Near {
    fn beneath(&self) -> Option<&dyn End> {
        Some(&*self.stream)
    }

    fn beneath_mut(&mut self) -> Option<&mut dyn End> {
        Some(&mut *self.stream)
    }

    fn receive(&mut self) -> io::Result<Option<Bytes>> {
        if self.is_over() {
            return Ok(None);
        }
        if self.body.is_over() {
            for _ in 0..MOST_DISCARDED {
                if self.stream.receive()?.is_none() {
                    return Ok(None);
                }
            }
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let Some(mut data) = self.stream.receive()? else { return Ok(None) };
        let count = self.body.count(&data).map_err(|_| io::ErrorKind::InvalidData)?;
        data.truncate(count);
        Ok(Some(data))
    }

    fn send(&mut self, pieces: &mut VecDeque<Bytes>, most: usize) -> io::Result<usize> {
        self.stream.send(pieces, most)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.has_finished = true;
        self.stream.finish()
    }

    fn reset(&mut self) {
        self.stream.reset();
    }
}
