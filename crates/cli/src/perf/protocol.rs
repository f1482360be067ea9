//! iperf3's control channel: the cookie, one-byte states and JSON behind a length.
//!
//! Whatever arrives here was written by a peer: lengths are checked before memory is taken, numbers
//! before use.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use serde::de::{DeserializeOwned, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::interrupt::Interrupt;
use super::net::TcpStream;

/// Longest JSON text of test parameters, bytes.
pub(crate) const MAX_PARAMETERS: u32 = 64 << 10;
/// Longest JSON text of results, bytes: the 128 streams of a test need 20 KiB, a peer may add the
/// text of its report.
pub(crate) const MAX_RESULTS: u32 = 4 << 20;
/// Most parallel streams of a test, as in iperf3.
pub(crate) const MAX_STREAMS: u32 = 128;
/// Largest block of one write, bytes, as in iperf3.
pub(crate) const MAX_BLOCK: u32 = 1 << 20;
/// Largest socket buffer that may be asked for, bytes, as in iperf3.
pub(crate) const MAX_WINDOW: u32 = 512 << 20;
/// Longest test, seconds, as in iperf3.
pub(crate) const MAX_TIME: u32 = 86_400;
/// Longest omitted start, seconds, as in iperf3.
pub(crate) const MAX_OMIT: u32 = 600;
/// Largest MSS that may be asked for, bytes, as in iperf3.
pub(crate) const MAX_MSS: u32 = 32_767;
/// A peer that owes a message of the control channel for so long is given up.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often a wait on the control channel looks whether the user has interrupted the program.
const SLICE: Duration = Duration::from_millis(100);

/// What went wrong on the control channel.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProtocolError {
    #[error("the peer closed the control connection early")]
    Closed,
    #[error("the peer has been silent on the control connection for {} s", PATIENCE.as_secs())]
    Silent,
    #[error("interrupted")]
    Interrupted,
    #[error("byte {0} is no state of the iperf3 protocol; is the peer an iperf3?")]
    UnknownState(i8),
    #[error("the peer is in state {got:?}, expected {expected:?}")]
    UnexpectedState { expected: State, got: State },
    #[error("the peer announces {length} bytes of JSON, at most {limit} are accepted")]
    JsonTooLong { length: u32, limit: u32 },
    #[error("the peer's JSON is not what the iperf3 protocol asks for: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the server is busy with another test; try again later")]
    AccessDenied,
    #[error("the server reports: {}{}", error_code::words(*.code), errno_words(*.errno))]
    ServerError { code: u32, errno: u32 },
    #[error("the server has ended the test")]
    ServerTerminated,
    #[error("the client has ended the test")]
    ClientTerminated,
    #[error("the peer's results lack stream {0}")]
    StreamMissing(u32),
    #[error("control connection: {0}")]
    Io(#[from] io::Error),
}

fn errno_words(errno: u32) -> String {
    match i32::try_from(errno) {
        Ok(0) | Err(_) => String::new(),
        Ok(errno) => format!(": {}", io::Error::from_raw_os_error(errno)),
    }
}

/// The numbers by which an iperf3 names an error to its peer.
pub(crate) mod error_code {
    pub(crate) const DURATION: u32 = 5;
    pub(crate) const STREAMS: u32 = 6;
    pub(crate) const BLOCK_SIZE: u32 = 7;
    pub(crate) const BUFFER_SIZE: u32 = 8;
    pub(crate) const MSS: u32 = 10;
    pub(crate) const OMIT: u32 = 12;
    pub(crate) const NOT_IMPLEMENTED: u32 = 13;
    pub(crate) const END_CONDITIONS: u32 = 16;
    pub(crate) const RECEIVE_PARAMETERS: u32 = 114;
    pub(crate) const SET_OPTIONS: u32 = 134;

    /// What a code means to whoever has to act on it.
    pub(crate) fn words(code: u32) -> String {
        let words = match code {
            DURATION => "the duration is out of range",
            STREAMS => "too many parallel streams",
            BLOCK_SIZE => "the block size is out of range",
            BUFFER_SIZE => "the socket buffer size is out of range",
            9 => "the report interval is out of range",
            MSS => "the MSS is out of range",
            OMIT => "the omitted time is out of range",
            NOT_IMPLEMENTED => "it lacks an option of this test",
            END_CONDITIONS => "more than one of time, bytes and blocks was given",
            22 | 23 | 142 => "it wants a user name and password (authentication is not supported)",
            26 | 27 => "the total rate asked for is above its limit",
            37 | 160 => "the test is longer than it allows",
            101 => "it could not set the test up",
            102 | 202 => "it could not listen for the streams",
            105 | 106 => "the cookie did not get across",
            107..=112 => "its control connection failed",
            113 | RECEIVE_PARAMETERS => "it could not read the test parameters",
            115..=117 => "the results did not get across",
            122 => "it could not set TCP_NODELAY",
            123 => "it could not set the MSS",
            124 | 130 | 141 => "it could not set the socket buffers to the size asked for",
            SET_OPTIONS => "it does not know the congestion control asked for",
            200 | 201 => "it could not create a stream",
            203 | 204 => "a stream did not connect",
            205 | 206 => "a stream failed",
            _ => return format!("error {code}"),
        };
        words.to_owned()
    }
}

/// A state of the protocol: one signed byte on the control connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i8)]
pub(crate) enum State {
    TestStart = 1,
    TestRunning = 2,
    TestEnd = 4,
    ParamExchange = 9,
    CreateStreams = 10,
    ServerTerminate = 11,
    ClientTerminate = 12,
    ExchangeResults = 13,
    DisplayResults = 14,
    IperfDone = 16,
    AccessDenied = -1,
    ServerError = -2,
}

impl State {
    fn from_byte(byte: u8) -> Result<Self, ProtocolError> {
        Ok(match byte.cast_signed() {
            1 => Self::TestStart,
            2 => Self::TestRunning,
            4 => Self::TestEnd,
            9 => Self::ParamExchange,
            10 => Self::CreateStreams,
            11 => Self::ServerTerminate,
            12 => Self::ClientTerminate,
            13 => Self::ExchangeResults,
            14 => Self::DisplayResults,
            16 => Self::IperfDone,
            -1 => Self::AccessDenied,
            -2 => Self::ServerError,
            other => return Err(ProtocolError::UnknownState(other)),
        })
    }

    pub(crate) fn byte(self) -> u8 {
        (self as i8).cast_unsigned()
    }
}

/// Ties the streams of a test to its control connection: 36 characters and a NUL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cookie([u8; 37]);

impl Cookie {
    /// A cookie of random letters and digits.
    pub(crate) fn random() -> io::Result<Self> {
        const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
        let mut bytes = [0; 37];
        let mut filled = 0;
        while filled < 36 {
            filled += rustix::rand::getrandom(
                &mut bytes[filled..36],
                rustix::rand::GetRandomFlags::empty(),
            )?;
        }
        for byte in &mut bytes[..36] {
            *byte = ALPHABET[usize::from(*byte % 32)];
        }
        Ok(Self(bytes))
    }

    pub(crate) fn read(from: &mut impl Read) -> Result<Self, ProtocolError> {
        let mut bytes = [0; 37];
        read_exact(from, &mut bytes)?;
        Ok(Self(bytes))
    }

    pub(crate) fn write(&self, to: &mut impl Write) -> Result<(), ProtocolError> {
        Ok(to.write_all(&self.0)?)
    }

    /// The text before the NUL, with whatever is not printable replaced.
    pub(crate) fn text(&self) -> String {
        self.0
            .iter()
            .take_while(|&&byte| byte != 0)
            .map(|&byte| if byte.is_ascii_graphic() { char::from(byte) } else { '?' })
            .collect()
    }
}

fn read_exact(from: &mut impl Read, buf: &mut [u8]) -> Result<(), ProtocolError> {
    from.read_exact(buf).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => ProtocolError::Closed,
        io::ErrorKind::TimedOut => ProtocolError::Silent,
        _ => interrupted_or_io(error),
    })
}

fn interrupted_or_io(error: io::Error) -> ProtocolError {
    if error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<UserInterrupt>) {
        ProtocolError::Interrupted
    } else {
        ProtocolError::Io(error)
    }
}

/// Reads one state; an error that a server announces, or either side's end of the test, becomes
/// that error.
pub(crate) fn read_state(from: &mut impl Read) -> Result<State, ProtocolError> {
    let mut byte = [0];
    read_exact(from, &mut byte)?;
    let state = State::from_byte(byte[0])?;
    match state {
        State::AccessDenied => Err(ProtocolError::AccessDenied),
        State::ServerTerminate => Err(ProtocolError::ServerTerminated),
        State::ClientTerminate => Err(ProtocolError::ClientTerminated),
        State::ServerError => {
            let mut pair = [[0; 4]; 2];
            read_exact(from, &mut pair[0])?;
            read_exact(from, &mut pair[1])?;
            Err(ProtocolError::ServerError {
                code: u32::from_be_bytes(pair[0]),
                errno: u32::from_be_bytes(pair[1]),
            })
        }
        state => Ok(state),
    }
}

/// Reads JSON behind its length of four bytes; memory grows with what arrives, never with what is
/// announced.
pub(crate) fn read_json<T: DeserializeOwned>(
    from: &mut impl Read,
    limit: u32,
) -> Result<T, ProtocolError> {
    let mut length = [0; 4];
    read_exact(from, &mut length)?;
    let length = u32::from_be_bytes(length);
    if length > limit {
        return Err(ProtocolError::JsonTooLong { length, limit });
    }
    let mut text = Vec::new();
    let got = from.take(u64::from(length)).read_to_end(&mut text).map_err(|error| {
        match error.kind() {
            io::ErrorKind::TimedOut => ProtocolError::Silent,
            _ => interrupted_or_io(error),
        }
    })?;
    if got < length as usize {
        return Err(ProtocolError::Closed);
    }
    // Some peers count the NUL that ends their string.
    while text.last() == Some(&0) {
        text.pop();
    }
    Ok(serde_json::from_slice(&text)?)
}

/// Writes JSON behind its length of four bytes.
pub(crate) fn write_json<T: Serialize>(
    to: &mut impl Write,
    value: &T,
) -> Result<(), ProtocolError> {
    let text = serde_json::to_vec(value)?;
    let length = u32::try_from(text.len()).map_err(io::Error::other)?;
    let mut message = length.to_be_bytes().to_vec();
    message.extend_from_slice(&text);
    Ok(to.write_all(&message)?)
}

/// The control connection of one test.
pub(crate) struct Control {
    socket: TcpStream,
    interrupt: Interrupt,
}

impl Control {
    /// Takes a connected socket; waits end when the peer is silent for half a minute or the user
    /// interrupts.
    pub(crate) fn new(socket: TcpStream, interrupt: Interrupt) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(SLICE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { socket, interrupt })
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    fn patient(&mut self) -> Patient<'_> {
        Patient {
            socket: &mut self.socket,
            interrupt: &self.interrupt,
            until: Instant::now() + PATIENCE,
        }
    }

    pub(crate) fn read_cookie(&mut self) -> Result<Cookie, ProtocolError> {
        Cookie::read(&mut self.patient())
    }

    pub(crate) fn write_cookie(&mut self, cookie: &Cookie) -> Result<(), ProtocolError> {
        cookie.write(&mut self.socket)
    }

    pub(crate) fn send_state(&mut self, state: State) -> Result<(), ProtocolError> {
        Ok(self.socket.write_all(&[state.byte()])?)
    }

    /// Tells the peer by iperf3's number and the system's why there will be no test.
    pub(crate) fn send_error(&mut self, code: u32, errno: u32) -> Result<(), ProtocolError> {
        let mut message = vec![State::ServerError.byte()];
        message.extend_from_slice(&code.to_be_bytes());
        message.extend_from_slice(&errno.to_be_bytes());
        Ok(self.socket.write_all(&message)?)
    }

    pub(crate) fn expect_state(&mut self, expected: State) -> Result<(), ProtocolError> {
        match read_state(&mut self.patient())? {
            got if got == expected => Ok(()),
            got => Err(ProtocolError::UnexpectedState { expected, got }),
        }
    }

    /// A state if one has arrived; does not wait for it. Costs one read that would block.
    pub(crate) fn try_state(&mut self) -> Result<Option<State>, ProtocolError> {
        let mut byte = [0];
        self.socket.set_nonblocking(true)?;
        let got = self.socket.read(&mut byte);
        self.socket.set_nonblocking(false)?;
        match got {
            Ok(0) => Err(ProtocolError::Closed),
            Ok(_) => read_state(&mut byte.as_slice().chain(self.patient())).map(Some),
            Err(error) if is_transient(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn read_json<T: DeserializeOwned>(
        &mut self,
        limit: u32,
    ) -> Result<T, ProtocolError> {
        read_json(&mut self.patient(), limit)
    }

    pub(crate) fn write_json<T: Serialize>(&mut self, value: &T) -> Result<(), ProtocolError> {
        write_json(&mut self.socket, value)
    }
}

/// True for errors that mean "not now": no data, no room, a timeout, a signal.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

#[derive(Debug, thiserror::Error)]
#[error("interrupted by the user")]
struct UserInterrupt;

/// Reads a socket whose timeout is short until data arrive, the patience ends or the user
/// interrupts.
struct Patient<'a> {
    socket: &'a mut TcpStream,
    interrupt: &'a Interrupt,
    until: Instant,
}

impl Read for Patient<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.socket.read(buf) {
                Err(error) if is_transient(&error) => {
                    if self.interrupt.is_set() {
                        return Err(io::Error::other(UserInterrupt));
                    }
                    if Instant::now() >= self.until {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                result => return result,
            }
        }
    }
}

/// The test that a client asks for, as it crosses the wire.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Parameters {
    pub tcp: bool,
    #[serde(skip_serializing)]
    pub udp: bool,
    #[serde(skip_serializing)]
    pub sctp: bool,
    #[serde(deserialize_with = "count")]
    pub omit: u64,
    #[serde(deserialize_with = "count")]
    pub time: u64,
    #[serde(deserialize_with = "count")]
    pub num: u64,
    #[serde(deserialize_with = "count")]
    pub blockcount: u64,
    #[serde(rename = "MSS", deserialize_with = "count", skip_serializing_if = "is_zero")]
    pub mss: u64,
    #[serde(skip_serializing_if = "is_false")]
    pub nodelay: bool,
    #[serde(deserialize_with = "count")]
    pub parallel: u64,
    #[serde(skip_serializing_if = "is_false")]
    pub reverse: bool,
    #[serde(skip_serializing)]
    pub bidirectional: bool,
    #[serde(deserialize_with = "count", skip_serializing_if = "is_zero")]
    pub window: u64,
    /// bit/s to which each sender's socket is paced; 0 is no limit.
    #[serde(deserialize_with = "count", skip_serializing_if = "is_zero")]
    pub fqrate: u64,
    #[serde(deserialize_with = "count")]
    pub len: u64,
    /// bit/s that each sender shall not exceed; 0 is no limit.
    #[serde(skip_serializing, deserialize_with = "count")]
    pub bandwidth: u64,
    /// Traffic class of the packets of data.
    #[serde(rename = "TOS", skip_serializing, deserialize_with = "count")]
    pub tos: u64,
    /// Flow label of IPv6 of the packets of data.
    #[serde(skip_serializing, deserialize_with = "count")]
    pub flowlabel: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub congestion: Option<String>,
    pub client_version: String,
}

/// One side's figures at the end of a test, as they cross the wire.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Results {
    #[serde(default)]
    pub cpu_util_total: f64,
    #[serde(default)]
    pub cpu_util_user: f64,
    #[serde(default)]
    pub cpu_util_system: f64,
    /// 1: `retransmits` of the streams is known; 0 or -1: it is not.
    #[serde(default, deserialize_with = "signed")]
    pub sender_has_retransmits: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion_used: Option<String>,
    pub streams: Vec<StreamResults>,
}

/// One stream of [`Results`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct StreamResults {
    #[serde(deserialize_with = "count")]
    pub id: u64,
    #[serde(deserialize_with = "count")]
    pub bytes: u64,
    /// -1 where it is not known.
    #[serde(default, deserialize_with = "signed")]
    pub retransmits: i64,
    #[serde(default)]
    pub jitter: f64,
    #[serde(default, deserialize_with = "count")]
    pub errors: u64,
    #[serde(default, deserialize_with = "count")]
    pub packets: u64,
    #[serde(default)]
    pub start_time: f64,
    #[serde(default)]
    pub end_time: f64,
}

impl Results {
    /// The figures of one stream.
    pub(crate) fn stream(&self, id: u32) -> Result<&StreamResults, ProtocolError> {
        self.streams
            .iter()
            .find(|stream| stream.id == u64::from(id))
            .ok_or(ProtocolError::StreamMissing(id))
    }
}

// serde passes a reference to what it may skip.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(value: &bool) -> bool {
    !*value
}

/// A number as C programs write it: integer or floating point, saturated into `i128`.
struct AnyNumber;

impl Visitor<'_> for AnyNumber {
    type Value = i128;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a number")
    }

    fn visit_u64<E>(self, value: u64) -> Result<i128, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<i128, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<i128, E> {
        Ok(value as i128)
    }
}

/// A count; negative ones are an error, large ones saturate.
fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let value = deserializer.deserialize_any(AnyNumber)?;
    if value < 0 {
        return Err(serde::de::Error::custom("a count is negative"));
    }
    Ok(u64::try_from(value).unwrap_or(u64::MAX))
}

/// A signed number; iperf3 writes -1 as the largest 64-bit number.
fn signed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    let value = deserializer.deserialize_any(AnyNumber)?;
    Ok(i64::try_from(value).unwrap_or(-1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &[u8]) -> Vec<u8> {
        let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
        bytes.extend_from_slice(text);
        bytes
    }

    #[test]
    fn every_state_survives_the_wire() {
        for byte in 0..=u8::MAX {
            if let Ok(state) = State::from_byte(byte) {
                assert_eq!(state.byte(), byte);
            }
        }
        assert!(matches!(read_state(&mut [3].as_slice()), Err(ProtocolError::UnknownState(3))));
        assert_eq!(read_state(&mut [9].as_slice()).unwrap(), State::ParamExchange);
    }

    #[test]
    fn announced_errors_are_errors() {
        assert!(matches!(read_state(&mut [0xff].as_slice()), Err(ProtocolError::AccessDenied)));
        assert!(matches!(read_state(&mut [11].as_slice()), Err(ProtocolError::ServerTerminated)));
        let error = [0xfe, 0, 0, 0, 134, 0, 0, 0, 2];
        let got = read_state(&mut error.as_slice()).unwrap_err();
        assert!(matches!(got, ProtocolError::ServerError { code: 134, errno: 2 }));
        assert!(got.to_string().contains("congestion control"), "{got}");
        assert!(got.to_string().contains("No such file"), "{got}");
        for cut in 0..error.len() {
            assert!(matches!(read_state(&mut &error[..cut]), Err(ProtocolError::Closed)), "{cut}");
        }
        let strange = ProtocolError::ServerError { code: u32::MAX, errno: u32::MAX };
        assert_eq!(strange.to_string(), "the server reports: error 4294967295");
    }

    #[test]
    fn cookies_differ_and_are_printable() {
        let (one, two) = (Cookie::random().unwrap(), Cookie::random().unwrap());
        assert_ne!(one, two);
        assert_eq!(one.text().len(), 36);
        let mut wire = Vec::new();
        one.write(&mut wire).unwrap();
        assert_eq!(wire.len(), 37);
        assert_eq!(wire[36], 0);
        assert_eq!(Cookie::read(&mut wire.as_slice()).unwrap(), one);
        assert!(matches!(Cookie::read(&mut &wire[..36]), Err(ProtocolError::Closed)));
        assert_eq!(Cookie([0x1b; 37]).text(), "?".repeat(37));
    }

    #[test]
    fn json_lengths_are_checked_before_memory_is_taken() {
        let huge = u32::MAX.to_be_bytes();
        let got = read_json::<Parameters>(&mut huge.as_slice(), MAX_PARAMETERS);
        assert!(matches!(
            got,
            Err(ProtocolError::JsonTooLong { length: u32::MAX, limit: MAX_PARAMETERS })
        ));
        let short = [&1000_u32.to_be_bytes()[..], b"{"].concat();
        assert!(matches!(
            read_json::<Parameters>(&mut short.as_slice(), MAX_PARAMETERS),
            Err(ProtocolError::Closed)
        ));
        assert!(matches!(
            read_json::<Parameters>(&mut [0, 0].as_slice(), MAX_PARAMETERS),
            Err(ProtocolError::Closed)
        ));
    }

    #[test]
    fn garbage_is_a_typed_error() {
        let deep = "[".repeat(60_000);
        for text in [
            "",
            "nonsense",
            "{\"tcp\":",
            "[]x",
            "{\"time\":-1}",
            "{\"time\":\"10\"}",
            "{\"num\":{}}",
            "\u{0}\u{0}",
            &deep,
        ] {
            let wire = message(text.as_bytes());
            let got = read_json::<Parameters>(&mut wire.as_slice(), MAX_PARAMETERS);
            assert!(matches!(got, Err(ProtocolError::Json(_))), "{text:.20}: {got:?}");
        }
        let invalid = message(&[b'"', 0xff, b'"']);
        assert!(matches!(
            read_json::<Results>(&mut invalid.as_slice(), MAX_RESULTS),
            Err(ProtocolError::Json(_))
        ));
    }

    #[test]
    fn numbers_may_be_written_as_c_writes_them() {
        let wire = message(
            br#"{"tcp":true,"num":1e+12,"time":0,"parallel":2,"len":131072.0,"MSS":1400,"reverse":true,"new":[1]}"#,
        );
        let got: Parameters = read_json(&mut wire.as_slice(), MAX_PARAMETERS).unwrap();
        assert_eq!(
            (got.num, got.len, got.mss, got.parallel),
            (1_000_000_000_000, 131_072, 1400, 2)
        );
        assert!(got.tcp && got.reverse && !got.udp);
        let wire = message(
            br#"{"cpu_util_total":1,"sender_has_retransmits":18446744073709551615,
                "streams":[{"id":1,"bytes":1e300,"retransmits":18446744073709551615}]}"#,
        );
        let got: Results = read_json(&mut wire.as_slice(), MAX_RESULTS).unwrap();
        assert_eq!(got.sender_has_retransmits, -1);
        assert_eq!(got.stream(1).unwrap().bytes, u64::MAX);
        assert_eq!(got.stream(1).unwrap().retransmits, -1);
        assert!(matches!(got.stream(3), Err(ProtocolError::StreamMissing(3))));
    }

    #[test]
    fn parameters_and_results_survive_the_wire() {
        let sent =
            Parameters { tcp: true, time: 10, parallel: 4, len: 1 << 17, ..Parameters::default() };
        let mut wire = Vec::new();
        write_json(&mut wire, &sent).unwrap();
        let got: Parameters = read_json(&mut wire.as_slice(), MAX_PARAMETERS).unwrap();
        assert_eq!((got.time, got.parallel, got.len, got.window), (10, 4, 1 << 17, 0));
        for cut in 0..wire.len() {
            assert!(matches!(
                read_json::<Parameters>(&mut &wire[..cut], MAX_PARAMETERS),
                Err(ProtocolError::Closed)
            ));
        }
    }
}
