//! Cursor over the text of a script, with the place of each character for error messages.

use core::fmt;

/// Place in a script. Line and column count from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The line.
    pub line: u32,
    /// The column, in characters.
    pub column: u32,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// Error of a text that is not in the language, with its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {what}")]
pub struct SyntaxError {
    /// Place in the script.
    pub at: Position,
    /// Description of what is wrong, or of what should be there.
    pub what: String,
}

/// Result of parsing a piece of a script.
pub type Parsed<T> = Result<T, SyntaxError>;

/// Text and a place in it. Copies are cheap and serve to look ahead.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    rest: &'a str,
    at: Position,
    /// Where a comment begins that does not end.
    open_comment: Option<Position>,
}

impl<'a> Cursor<'a> {
    /// Returns a cursor at the beginning of `text`.
    pub fn new(text: &'a str) -> Self {
        Self { rest: text, at: Position { line: 1, column: 1 }, open_comment: None }
    }

    /// Returns the place where the next token begins.
    pub fn position(&mut self) -> Position {
        self.skip_blanks();
        self.at
    }

    /// Returns the text that was passed since `start`, a copy of this cursor made earlier.
    pub fn since(&self, start: &Self) -> &'a str {
        start.rest[..start.rest.len() - self.rest.len()].trim()
    }

    /// Returns an error about what comes next.
    pub fn error(&mut self, what: impl Into<String>) -> SyntaxError {
        self.skip_blanks();
        self.check_comments().err().unwrap_or(SyntaxError { at: self.at, what: what.into() })
    }

    /// Checks that the text that was passed had no comment without an end.
    ///
    /// # Errors
    /// The place where such a comment begins.
    pub fn check_comments(&self) -> Parsed<()> {
        match self.open_comment {
            None => Ok(()),
            Some(at) => Err(SyntaxError { at, what: "a comment that does not end".into() }),
        }
    }

    /// Returns an error that says what should come next and what does.
    pub fn expected(&mut self, what: &str) -> SyntaxError {
        self.skip_blanks();
        let next: String =
            self.rest.chars().take_while(|char| !char.is_whitespace()).take(20).collect();
        let next = if next.is_empty() { "the end".into() } else { format!("{next:?}") };
        self.error(format!("expected {what}, not {next}"))
    }

    /// Returns the next character, blanks and comments included.
    pub fn peek_raw(&self) -> Option<char> {
        self.rest.chars().next()
    }

    /// Returns the next character that is no blank or comment.
    pub fn peek(&mut self) -> Option<char> {
        self.skip_blanks();
        self.peek_raw()
    }

    /// Takes one character.
    pub fn bump(&mut self) -> Option<char> {
        let char = self.peek_raw()?;
        self.rest = &self.rest[char.len_utf8()..];
        if char == '\n' {
            self.at = Position { line: self.at.line + 1, column: 1 };
        } else {
            self.at.column += 1;
        }
        Some(char)
    }

    fn pass(&mut self, bytes: usize) {
        let target = self.rest.len() - bytes;
        while self.rest.len() > target {
            self.bump();
        }
    }

    /// Skips white space and comments: `//` and `#` to the end of the line, `/* */`.
    pub fn skip_blanks(&mut self) {
        loop {
            let trimmed = self.rest.trim_start();
            self.pass(self.rest.len() - trimmed.len());
            let len = if trimmed.starts_with("//") || trimmed.starts_with('#') {
                trimmed.find('\n').unwrap_or(trimmed.len())
            } else if trimmed.starts_with("/*") {
                let end = trimmed.get(2..).and_then(|inside| inside.find("*/"));
                if end.is_none() {
                    self.open_comment = Some(self.at);
                }
                end.map_or(trimmed.len(), |end| end + 4)
            } else {
                return;
            };
            self.pass(len);
        }
    }

    /// Returns whether this text comes next.
    pub fn looks_at(&mut self, text: &str) -> bool {
        self.skip_blanks();
        self.rest.starts_with(text)
    }

    /// Takes this text if it comes next.
    pub fn eat(&mut self, text: &str) -> bool {
        let found = self.looks_at(text);
        if found {
            self.pass(text.len());
        }
        found
    }

    /// Takes this text.
    ///
    /// # Errors
    /// If something else comes.
    pub fn expect(&mut self, text: &str) -> Parsed<()> {
        if self.eat(text) { Ok(()) } else { Err(self.expected(&format!("{text:?}"))) }
    }

    /// Takes characters while they satisfy `test`, from here on.
    pub fn take_while(&mut self, test: impl Fn(char) -> bool) -> &'a str {
        let len = self.rest.find(|char| !test(char)).unwrap_or(self.rest.len());
        let (taken, _) = self.rest.split_at(len);
        self.pass(len);
        taken
    }

    /// Takes everything up to `end`, and `end`.
    ///
    /// # Errors
    /// If `end` does not come.
    pub fn take_until(&mut self, end: &str) -> Parsed<&'a str> {
        let Some(len) = self.rest.find(end) else {
            return Err(self.error(format!("no {end:?} follows")));
        };
        let taken = &self.rest[..len];
        self.pass(len + end.len());
        Ok(taken)
    }

    /// Takes a name, if one comes next.
    pub fn name(&mut self) -> Option<&'a str> {
        self.skip_blanks();
        if !self.peek_raw().is_some_and(|char| char.is_ascii_alphabetic() || char == '_') {
            return None;
        }
        Some(self.take_while(|char| char.is_ascii_alphanumeric() || char == '_'))
    }

    /// Takes this name if it comes next.
    pub fn eat_name(&mut self, name: &str) -> bool {
        let mut ahead = *self;
        let found = ahead.name() == Some(name);
        if found {
            *self = ahead;
        }
        found
    }

    /// Takes an integer, decimal or hexadecimal, with an optional sign.
    ///
    /// # Errors
    /// There is none, or it does not fit.
    pub fn integer(&mut self) -> Parsed<i64> {
        self.skip_blanks();
        let start = *self;
        let negative = self.eat("-");
        let digits = self.take_while(|char| char.is_ascii_alphanumeric());
        let value = match digits.strip_prefix("0x") {
            Some(hex) => i64::from_str_radix(hex, 16),
            None => digits.parse(),
        };
        match value {
            Ok(value) => Ok(if negative { -value } else { value }),
            Err(_) => {
                *self = start;
                Err(self.expected("an integer"))
            }
        }
    }

    /// Takes an integer of 32 bits without a sign.
    ///
    /// # Errors
    /// There is none, or it does not fit.
    pub fn integer_u32(&mut self) -> Parsed<u32> {
        let start = *self;
        u32::try_from(self.integer()?).map_err(|_| {
            let mut start = start;
            start.expected("a number from 0 to 4294967295")
        })
    }

    /// Takes an integer that fits `T`.
    ///
    /// # Errors
    /// There is none, or it does not fit.
    pub fn integer_as<T: TryFrom<i64>>(&mut self) -> Parsed<T> {
        let mut start = *self;
        T::try_from(self.integer()?).map_err(|_| start.expected("a smaller number"))
    }

    /// Returns whether only blanks and comments are left.
    pub fn is_at_end(&mut self) -> bool {
        self.peek().is_none()
    }
}
