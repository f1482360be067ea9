//! Messages of a stream that carries urgent ones between frames of bulk data.

use bytes::Bytes;

/// Bytes of a message's header in a mixed stream: one bit says urgent, the rest is the length.
const HEADER: usize = 8;

/// A message of a mixed stream.
pub(super) fn message(is_urgent: bool, bytes: u64) -> Bytes {
    let bytes = bytes.max(1);
    let mut all = (u64::from(is_urgent) << 63 | bytes).to_be_bytes().to_vec();
    all.resize(HEADER + bytes as usize, 0);
    all.into()
}

/// Finds the messages of a mixed stream.
#[derive(Debug, Default)]
pub(super) struct Parser {
    header: Vec<u8>,
    left: u64,
    is_urgent: bool,
}

impl Parser {
    /// Takes what came; how many urgent messages that completed.
    pub(super) fn take(&mut self, mut data: &[u8]) -> usize {
        let mut urgent = 0;
        while !data.is_empty() {
            if self.left == 0 {
                let need = (HEADER - self.header.len()).min(data.len());
                self.header.extend_from_slice(&data[..need]);
                data = &data[need..];
                if let Some(header) = self.header.first_chunk::<HEADER>() {
                    let word = u64::from_be_bytes(*header);
                    (self.is_urgent, self.left) = (word >> 63 == 1, word << 1 >> 1);
                    self.header.clear();
                }
                continue;
            }
            let part = self.left.min(data.len() as u64);
            self.left -= part;
            data = &data[part as usize..];
            urgent += usize::from(self.left == 0 && self.is_urgent);
        }
        urgent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_however_they_are_cut() {
        let stream: Vec<u8> = [(true, 3), (false, 100), (true, 1), (true, 20)]
            .into_iter()
            .flat_map(|(is_urgent, bytes)| message(is_urgent, bytes))
            .collect();
        for cut in 1..stream.len() {
            let mut parser = Parser::default();
            let found: usize = stream.chunks(cut).map(|part| parser.take(part)).sum();
            assert_eq!(found, 3, "cut at {cut}");
        }
    }
}
