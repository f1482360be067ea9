//! `%{ assert tcpi_snd_cwnd == 10 }%`: comparisons and arithmetic over the names of `TCP_INFO`.
//!
//! The forms are the ones that Python shares, so that the text means the same to packetdrill:
//! `or`, `and`, `not`, chains of comparisons, `+ - * % & |`, integers, names.

use crate::cursor::{Cursor, Parsed, Position, SyntaxError};
use crate::tcp_info;
use neap_posix::abi;

/// Assertion about `TCP_INFO`.
#[derive(Clone, Debug)]
pub struct Assertion {
    /// Place in the script.
    pub at: Position,
    /// Text of the assertion.
    pub text: String,
    expression: Expression,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Or,
    And,
    BitOr,
    BitAnd,
    Add,
    Subtract,
    Multiply,
    Remainder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    Unequal,
    LessOrEqual,
    GreaterOrEqual,
    Less,
    Greater,
}

#[derive(Clone, Debug)]
enum Expression {
    Integer(i128),
    Name(String),
    Not(Box<Expression>),
    Negative(Box<Expression>),
    Binary(Operator, Box<Expression>, Box<Expression>),
    /// `a < b <= c`.
    Chain(Box<Expression>, Vec<(Comparison, Expression)>),
}

/// Levels of brackets and signs.
const MAX_DEPTH: u32 = 64;
/// Operators between two operands in one expression.
const MAX_OPERATORS: u32 = 1000;

/// Operators by how loosely they bind, after comparisons.
const ARITHMETIC: [&[(&str, Operator)]; 4] = [
    &[("|", Operator::BitOr)],
    &[("&", Operator::BitAnd)],
    &[("+", Operator::Add), ("-", Operator::Subtract)],
    &[("*", Operator::Multiply), ("%", Operator::Remainder)],
];

const COMPARISONS: [(&str, Comparison); 6] = [
    ("==", Comparison::Equal),
    ("!=", Comparison::Unequal),
    ("<=", Comparison::LessOrEqual),
    (">=", Comparison::GreaterOrEqual),
    ("<", Comparison::Less),
    (">", Comparison::Greater),
];

/// Parses the assertions of one block, up to its `}%`.
///
/// # Errors
/// The text is not in the language.
pub fn block(cursor: &mut Cursor<'_>) -> Parsed<Vec<Assertion>> {
    let mut assertions = Vec::new();
    loop {
        while cursor.eat(";") {}
        if cursor.eat("}%") {
            return Ok(assertions);
        }
        let at = cursor.position();
        let start = *cursor;
        if !cursor.eat_name("assert") {
            return Err(cursor.expected("assert or }%"));
        }
        let expression = Parser::new(cursor).disjunction(0)?;
        let text = cursor.since(&start).to_owned();
        // What Python prints when it fails.
        if cursor.eat(",") {
            Parser::new(cursor).disjunction(0)?;
        }
        assertions.push(Assertion { at, text, expression });
    }
}

/// Reads one expression.
struct Parser<'a, 'text> {
    cursor: &'a mut Cursor<'text>,
    /// Operators between two operands so far.
    operators: u32,
}

impl<'a, 'text> Parser<'a, 'text> {
    fn new(cursor: &'a mut Cursor<'text>) -> Self {
        Self { cursor, operators: 0 }
    }

    /// Counts an operator, as each makes the expression deeper.
    fn count(&mut self) -> Parsed<()> {
        self.operators += 1;
        if self.operators > MAX_OPERATORS {
            return Err(self.cursor.error("too long"));
        }
        Ok(())
    }

    fn disjunction(&mut self, depth: u32) -> Parsed<Expression> {
        let mut left = self.conjunction(depth)?;
        while self.cursor.eat_name("or") {
            self.count()?;
            left = binary(Operator::Or, left, self.conjunction(depth)?);
        }
        Ok(left)
    }

    fn conjunction(&mut self, depth: u32) -> Parsed<Expression> {
        let mut left = self.negation(depth)?;
        while self.cursor.eat_name("and") {
            self.count()?;
            left = binary(Operator::And, left, self.negation(depth)?);
        }
        Ok(left)
    }

    fn negation(&mut self, depth: u32) -> Parsed<Expression> {
        if depth > MAX_DEPTH {
            return Err(self.cursor.error("too deep"));
        }
        if self.cursor.eat_name("not") {
            return Ok(Expression::Not(Box::new(self.negation(depth + 1)?)));
        }
        let first = self.arithmetic(0, depth)?;
        let mut rest = Vec::new();
        while let Some(comparison) = next(self.cursor, &COMPARISONS) {
            self.count()?;
            rest.push((comparison, self.arithmetic(0, depth)?));
        }
        Ok(if rest.is_empty() { first } else { Expression::Chain(Box::new(first), rest) })
    }

    fn arithmetic(&mut self, level: usize, depth: u32) -> Parsed<Expression> {
        let Some(operators) = ARITHMETIC.get(level) else { return self.unary(depth) };
        let mut left = self.arithmetic(level + 1, depth)?;
        while let Some(operator) = next(self.cursor, operators) {
            self.count()?;
            left = binary(operator, left, self.arithmetic(level + 1, depth)?);
        }
        Ok(left)
    }

    fn unary(&mut self, depth: u32) -> Parsed<Expression> {
        let cursor = &mut *self.cursor;
        if depth > MAX_DEPTH {
            return Err(cursor.error("too deep"));
        }
        if cursor.eat("-") {
            return Ok(Expression::Negative(Box::new(self.unary(depth + 1)?)));
        }
        if cursor.eat("(") {
            let inner = self.disjunction(depth + 1)?;
            self.cursor.expect(")")?;
            return Ok(inner);
        }
        let at = cursor.position();
        if let Some(name) = cursor.name() {
            if tcp_info::field(name).is_none() && abi::number(name).is_none() {
                let what = format!("unknown name {name:?}");
                return Err(SyntaxError { at, what });
            }
            return Ok(Expression::Name(name.to_owned()));
        }
        Ok(Expression::Integer(cursor.integer()?.into()))
    }
}

fn binary(operator: Operator, left: Expression, right: Expression) -> Expression {
    Expression::Binary(operator, Box::new(left), Box::new(right))
}

/// Takes the operator that comes next, if it is one of these.
fn next<T: Copy>(cursor: &mut Cursor<'_>, among: &[(&str, T)]) -> Option<T> {
    among.iter().find(|(text, _)| cursor.eat(text)).map(|&(_, operator)| operator)
}

/// A field in the bytes of a `struct tcp_info`; `None` if the host does not report it.
fn reported(name: &str, info: &[u8]) -> Option<i128> {
    tcp_info::field(name)?.read(info).map(i128::from)
}

impl Assertion {
    /// Returns whether the assertion holds for the bytes of a `struct tcp_info`.
    ///
    /// # Errors
    /// The host does not report a field, or arithmetic has no result.
    pub fn holds(&self, info: &[u8]) -> Result<bool, String> {
        self.expression.evaluate(info).map(|value| value != 0)
    }

    /// Returns the fields of the assertion with their values in the bytes of a `struct tcp_info`.
    pub fn values(&self, info: &[u8]) -> String {
        let mut found = Vec::new();
        self.expression.names(&mut found);
        let show = |name: &String| match reported(name, info) {
            Some(value) => format!("{name} = {value}"),
            None => format!("{name} is not reported"),
        };
        found.iter().map(show).collect::<Vec<_>>().join(", ")
    }
}

impl Expression {
    fn names(&self, found: &mut Vec<String>) {
        match self {
            Self::Integer(_) => {}
            Self::Name(name) => {
                if tcp_info::field(name).is_some() && !found.contains(name) {
                    found.push(name.clone());
                }
            }
            Self::Not(inner) | Self::Negative(inner) => inner.names(found),
            Self::Binary(_, left, right) => {
                left.names(found);
                right.names(found);
            }
            Self::Chain(first, rest) => {
                first.names(found);
                rest.iter().for_each(|(_, next)| next.names(found));
            }
        }
    }

    fn evaluate(&self, info: &[u8]) -> Result<i128, String> {
        match self {
            Self::Integer(value) => Ok(*value),
            Self::Name(name) => reported(name, info)
                .or_else(|| abi::number(name).map(i128::from))
                .ok_or_else(|| format!("{name} is not reported by this host")),
            Self::Not(inner) => Ok(i128::from(inner.evaluate(info)? == 0)),
            Self::Negative(inner) => Ok(inner.evaluate(info)?.saturating_neg()),
            Self::Binary(operator, left, right) => {
                let left = left.evaluate(info)?;
                match operator {
                    Operator::Or if left != 0 => return Ok(left),
                    Operator::And if left == 0 => return Ok(left),
                    _ => {}
                }
                operator.apply(left, right.evaluate(info)?)
            }
            Self::Chain(first, rest) => {
                let mut left = first.evaluate(info)?;
                for (comparison, next) in rest {
                    let right = next.evaluate(info)?;
                    if !comparison.holds(left, right) {
                        return Ok(0);
                    }
                    left = right;
                }
                Ok(1)
            }
        }
    }
}

impl Comparison {
    fn holds(self, left: i128, right: i128) -> bool {
        match self {
            Self::Equal => left == right,
            Self::Unequal => left != right,
            Self::LessOrEqual => left <= right,
            Self::GreaterOrEqual => left >= right,
            Self::Less => left < right,
            Self::Greater => left > right,
        }
    }
}

impl Operator {
    fn apply(self, left: i128, right: i128) -> Result<i128, String> {
        match self {
            Self::Or | Self::And => Some(right),
            Self::BitOr => Some(left | right),
            Self::BitAnd => Some(left & right),
            Self::Add => left.checked_add(right),
            Self::Subtract => left.checked_sub(right),
            Self::Multiply => left.checked_mul(right),
            Self::Remainder => remainder(left, right),
        }
        .ok_or_else(|| "arithmetic without result".to_owned())
    }
}

/// What is left of a division, with the sign of the divisor, as in Python.
fn remainder(left: i128, right: i128) -> Option<i128> {
    let rest = left.checked_rem(right)?;
    Some(if rest != 0 && (rest < 0) != (right < 0) { rest + right } else { rest })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window of 10 segments, of which 4 are not acknowledged.
    fn info() -> [u8; 104] {
        let mut info = [0; 104];
        (info[80], info[24]) = (10, 4);
        info
    }

    fn holds(text: &str) -> bool {
        let text = format!("assert {text} }}%");
        let parsed = block(&mut Cursor::new(&text)).expect(&text);
        parsed[0].holds(&info()).expect(&text)
    }

    #[test]
    fn precedence_is_pythons() {
        for text in [
            "tcpi_snd_cwnd == 10",
            "1 + 2 * 3 == 7 and not 1 > 2",
            "0 or 1 and 1",
            "1 < tcpi_unacked <= 4",
            "(tcpi_snd_cwnd - tcpi_unacked) % 4 == 2",
            "tcpi_snd_cwnd & 2 | 1 == 3, tcpi_snd_cwnd",
            "-1 < 0",
            "7 % -3 == -2 and -7 % 3 == 2 and -7 % -3 == -1 and 6 % -3 == 0",
        ] {
            assert!(holds(text), "{text}");
        }
        assert!(!holds("1 < tcpi_unacked < 4"));
        assert!(!holds("not tcpi_unacked"));
    }

    #[test]
    fn errors_name_the_place() {
        for (text, column) in [("assert tcpi_nothing == 1 }%", 8), ("assert 1 == }%", 13)] {
            let error = block(&mut Cursor::new(text)).unwrap_err();
            assert_eq!(error.at.column, column, "{error}");
        }
        let deep = format!("assert {}1 }}%", "(".repeat(1000));
        assert!(block(&mut Cursor::new(&deep)).is_err());
        for operator in ["+", "*", "|", " and ", " or ", "<"] {
            let sum = |terms| format!("assert {} }}%", vec!["1"; terms].join(operator));
            let error = block(&mut Cursor::new(&sum(100_000))).expect_err(operator);
            assert!(error.what.contains("too long"), "{error}");
            let longest = block(&mut Cursor::new(&sum(1001))).expect(operator);
            longest[0].holds(&info()).expect(operator);
            block(&mut Cursor::new(&sum(1002))).expect_err(operator);
        }
        let zero = block(&mut Cursor::new("assert 1 % 0 }%")).unwrap();
        assert!(zero[0].holds(&info()).is_err());
    }
}
