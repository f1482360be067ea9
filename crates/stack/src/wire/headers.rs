//! Headers of one packet, written from the innermost to the outermost.

/// Room for the headers of a frame, in bytes: Ethernet 14, IPv6 40 with a fragment header 8, TCP
/// 60.
pub const HEADER_ROOM: usize = 128;

/// Headers of a packet, built back to front so that each layer prepends its own without moving
/// bytes.
#[derive(Clone)]
pub struct Headers {
    bytes: [u8; HEADER_ROOM],
    start: u8,
}

impl Default for Headers {
    fn default() -> Self {
        Self { bytes: [0; HEADER_ROOM], start: HEADER_ROOM as u8 }
    }
}

impl Headers {
    /// Reserves `len` zeroed bytes in front of the headers and returns them.
    ///
    /// # Panics
    /// If the headers exceed [`HEADER_ROOM`]. The largest sum of header sizes is a constant below
    /// it.
    pub fn prepend(&mut self, len: usize) -> &mut [u8] {
        let start = usize::from(self.start).checked_sub(len).expect("headers fit their room");
        self.start = start as u8;
        &mut self.bytes[start..start + len]
    }

    /// Returns the header bytes, first layer first.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[usize::from(self.start)..]
    }

    /// Returns the header bytes, to be filled in.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[usize::from(self.start)..]
    }

    /// Returns the size of all headers, in bytes.
    pub fn len(&self) -> usize {
        HEADER_ROOM - usize::from(self.start)
    }

    /// Returns whether there is no header yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl core::fmt::Debug for Headers {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Headers").field(&self.as_slice()).finish()
    }
}
