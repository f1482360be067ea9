//! Where the body of an HTTP request ends (RFC 9112 section 6), without I/O: what follows is not
//! for the same server.

/// Most bytes of a line with the size of a chunk, or of a trailer.
const MOST_LINE: usize = 4096;
/// Most bytes of all trailers.
const MOST_TRAILERS: usize = 16 << 10;

/// What a client may still send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// All that it wants.
    Endless,
    /// So many bytes.
    Length(u64),
    /// Chunks until the last one.
    Chunked(Chunks),
}

/// Where in its chunks a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chunks {
    /// In the line with a size: the size so far, the digits and the bytes of the line.
    Size {
        size: u64,
        digits: usize,
        line: usize,
        is_extension: bool,
    },
    /// So many bytes of a chunk are left.
    Data(u64),
    /// Behind the data of a chunk: the line that ends them, with so many bytes so far.
    Behind(usize),
    /// In the trailers: bytes of the line, and of all.
    Trailers {
        line: usize,
        all: usize,
    },
    Over,
    /// It was no body, and whatever follows makes none of it.
    Bad,
}

/// It is no body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl Chunks {
    pub(super) const FIRST: Self = Self::Size { size: 0, digits: 0, line: 0, is_extension: false };

    /// The state behind one more byte that is none of a chunk's data.
    fn after(self, byte: u8) -> Result<Self, Malformed> {
        Ok(match (self, byte) {
            (Self::Size { digits: 0, .. }, b'\n') => return Err(Malformed),
            (Self::Size { size: 0, .. }, b'\n') => Self::Trailers { line: 0, all: 0 },
            (Self::Size { size, .. }, b'\n') => Self::Data(size),
            (Self::Size { line: MOST_LINE.., .. }, _) => return Err(Malformed),
            (Self::Size { size, digits, line, is_extension }, _) => {
                let (line, digit) = (line + 1, char::from(byte).to_digit(16));
                match digit.filter(|_| !is_extension) {
                    Some(digit) if digits < 15 => Self::Size {
                        size: size << 4 | u64::from(digit),
                        digits: digits + 1,
                        line,
                        is_extension,
                    },
                    Some(_) => return Err(Malformed),
                    None if is_extension || b"; \t\r".contains(&byte) => {
                        Self::Size { size, digits, line, is_extension: true }
                    }
                    None => return Err(Malformed),
                }
            }
            (Self::Behind(0), b'\r') => Self::Behind(1),
            (Self::Behind(_), b'\n') => Self::FIRST,
            (Self::Behind(_), _) => return Err(Malformed),
            (Self::Trailers { line: 0, .. }, b'\n') => Self::Over,
            (Self::Trailers { all: MOST_TRAILERS.., .. }, _) => return Err(Malformed),
            (Self::Trailers { all, .. }, b'\n') => Self::Trailers { line: 0, all: all + 1 },
            // An empty line has nothing but this.
            (Self::Trailers { line: 0, all }, b'\r') => Self::Trailers { line: 0, all: all + 1 },
            (Self::Trailers { line, all }, _) => Self::Trailers { line: line + 1, all: all + 1 },
            (Self::Bad, _) => return Err(Malformed),
            (Self::Data(_) | Self::Over, _) => self,
        })
    }
}

impl Body {
    /// How many of these bytes are of the body. It goes on behind them.
    pub(super) fn count(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        match self {
            Self::Endless => Ok(bytes.len()),
            Self::Length(left) => {
                let count = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= count as u64;
                Ok(count)
            }
            Self::Chunked(chunks) => {
                let mut count = 0;
                while count < bytes.len() {
                    match *chunks {
                        Chunks::Over => break,
                        Chunks::Data(left) => {
                            let rest = bytes.len() - count;
                            let some = usize::try_from(left).unwrap_or(usize::MAX).min(rest);
                            count += some;
                            let left = left - some as u64;
                            *chunks =
                                if left == 0 { Chunks::Behind(0) } else { Chunks::Data(left) };
                        }
                        state => {
                            let after = state.after(bytes[count]);
                            *chunks = after.unwrap_or(Chunks::Bad);
                            after?;
                            count += 1;
                        }
                    }
                }
                Ok(count)
            }
        }
    }

    /// Whether nothing more may come.
    pub(super) fn is_over(&self) -> bool {
        matches!(self, Self::Length(0) | Self::Chunked(Chunks::Over))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_counted_down() {
        let mut body = Body::Length(5);
        assert_eq!(body.count(b"abc"), Ok(3));
        assert!(!body.is_over());
        assert_eq!(body.count(b"deGET /"), Ok(2));
        assert!(body.is_over());
        assert_eq!(body.count(b"GET /"), Ok(0));
        assert_eq!(Body::Endless.count(b"all"), Ok(3));
    }

    #[test]
    fn chunks_end_where_they_say_whatever_the_pieces() {
        for text in [
            "5\r\nhello\r\n0\r\n\r\n",
            "5;name=\"value\"\r\nhello\r\n00\r\nTrailer: x\r\n\r\n",
            "A \r\n0123456789\r\n1\r\n0\r\n0\n\n",
            "0\r\n\r\n",
        ] {
            let all = [text.as_bytes(), b"GET / HTTP/1.1\r\n"].concat();
            for size in 1..=all.len() {
                let (mut body, mut count) = (Body::Chunked(Chunks::FIRST), 0);
                for piece in all.chunks(size) {
                    count += body.count(piece).expect("chunks");
                }
                assert_eq!(count, text.len(), "{text:?} in pieces of {size}");
                assert!(body.is_over());
            }
        }
    }

    #[test]
    fn nonsense_is_no_body() {
        let long = format!("1;{}", "a".repeat(MOST_LINE));
        let trailers = format!("0\r\n{}", "a: b\r\n".repeat(MOST_TRAILERS / 6 + 1));
        for text in ["\r\n", "x\r\n", "-1\r\n", "1\r\nab", "1000000000000000", &long, &trailers] {
            let mut body = Body::Chunked(Chunks::FIRST);
            assert_eq!(body.count(text.as_bytes()), Err(Malformed));
            assert_eq!((body.count(b"0\r\n\r\n"), body.is_over()), (Err(Malformed), false));
        }
    }
}
