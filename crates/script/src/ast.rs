//! Syntax tree of a script.

use crate::cursor::Position;
use crate::expression::Assertion;
use neap_stack::wire::Protocol;
use neap_tcp::segment::Ecn;
use neap_tcp::time::Nanos;

/// Control bits of TCP that have a meaning for whoever runs a script.
pub(crate) const SYN: u16 = 0x02;
pub(crate) const RST: u16 = 0x04;
pub(crate) const ACK: u16 = 0x10;
pub(crate) const URG: u16 = 0x20;

/// Letters of all control bits, in the order in which they are shown.
pub(crate) const FLAG_LETTERS: [(u16, char); 9] = [
    (SYN, 'S'),
    (0x01, 'F'),
    (RST, 'R'),
    (0x08, 'P'),
    (URG, 'U'),
    (ACK, '.'),
    (0x40, 'E'),
    (0x80, 'W'),
    (0x100, 'A'),
];

/// Time of an event, from the start of the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At a time from the start of the script.
    At(Nanos),
    /// At a length of time after the event before.
    After(Nanos),
    /// Between two times from the start of the script.
    Between(Nanos, Nanos),
    /// Between two lengths of time after the event before.
    AfterBetween(Nanos, Nanos),
    /// At any time.
    Any,
}

/// Script: options, sysctls and events.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// Options, written as `--name=value` lines.
    pub options: Vec<Setting>,
    /// Sysctls, written as `sysctl -q name=value` between back quotes.
    pub sysctls: Vec<Setting>,
    /// Line of the event where Linux differs: the event beside or below a `linux: differs` remark.
    pub differs_on_linux: Option<u32>,
    /// Reason for not running the script on Linux, from a `linux: skip` remark.
    pub not_for_linux: Option<String>,
    /// Events, in order.
    pub events: Vec<Event>,
}

/// Name with a value, and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Place in the script.
    pub at: Position,
    /// Name of an option or of a sysctl.
    pub name: String,
    /// The value as it is written.
    pub value: String,
}

impl Setting {
    /// Returns whether packets are IPv6.
    pub fn is_v6(&self) -> bool {
        self.name == "ip_version" && self.value == "ipv6"
    }
}

/// Event of a script.
#[derive(Clone, Debug)]
pub struct Event {
    /// Place in the script.
    pub at: Position,
    /// Time of the event.
    pub when: When,
    /// Time until which a system call blocks, counted as `when` is.
    pub until: Option<Nanos>,
    /// Text of the event on one line.
    pub text: String,
    /// Action of the event.
    pub kind: EventKind,
}

/// Action of an event.
#[derive(Clone, Debug)]
pub enum EventKind {
    /// The peer sends this packet.
    Inject(PacketSpec),
    /// The host must send this packet.
    Expect(PacketSpec),
    /// The application makes this call.
    Call(CallSpec),
    /// These assertions about `TCP_INFO` must hold.
    Assert(Vec<Assertion>),
}

/// Packet as written.
#[derive(Clone, Debug)]
pub struct PacketSpec {
    /// Ports in the packet, the sender's first. Without them it belongs to the connection under
    /// test.
    pub ports: Option<(u16, u16)>,
    /// ECN codepoint, if the script names one.
    pub ecn: Option<Ecn>,
    /// Contents of the packet.
    pub body: Body,
}

/// Contents of an IP packet.
#[derive(Clone, Debug)]
pub enum Body {
    /// A segment.
    Tcp(TcpSpec),
    /// An ICMP error.
    Icmp(IcmpSpec),
}

/// TCP segment as written. Sequence numbers count from the initial ones.
#[derive(Clone, Debug)]
pub struct TcpSpec {
    /// Control bits, with NS as 0x100.
    pub flags: u16,
    /// Sequence number of the first byte.
    pub seq: u32,
    /// Payload bytes.
    pub len: u32,
    /// Acknowledgement number.
    pub ack: Option<u32>,
    /// Window field as on the wire.
    pub window: Option<u16>,
    /// Urgent pointer.
    pub urgent: Option<u16>,
    /// Options in order; `None` for `<...>`, which stands for any.
    pub options: Option<Vec<OptionSpec>>,
}

/// TCP option as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OptionSpec {
    /// `nop`.
    Nop,
    /// `eol`.
    End,
    /// `mss N`.
    Mss(u16),
    /// `wscale N`.
    WindowScale(u8),
    /// `sackOK`.
    SackPermitted,
    /// `sack A:B ...`.
    Sack(Vec<(u32, u32)>),
    /// `TS val N ecr N`.
    Timestamps(u32, u32),
    /// `FO hex`, empty to ask for a cookie.
    FastOpen(Vec<u8>),
    /// Any other kind with its bytes.
    Other(u8, Vec<u8>),
}

impl OptionSpec {
    /// Returns the bytes of a header that the option takes.
    pub fn wire_len(&self) -> usize {
        2 + match self {
            Self::Nop | Self::End => return 1,
            Self::Mss(_) => 2,
            Self::WindowScale(_) => 1,
            Self::SackPermitted => 0,
            Self::Sack(blocks) => 8 * blocks.len(),
            Self::Timestamps(..) => 8,
            Self::FastOpen(value) | Self::Other(_, value) => value.len(),
        }
    }
}

/// ICMP error as written.
#[derive(Clone, Debug)]
pub struct IcmpSpec {
    /// `Protocol::ICMP` or `Protocol::ICMPV6`.
    pub protocol: Protocol,
    /// The type of the message.
    pub kind: u8,
    /// The code of the message.
    pub code: u8,
    /// MTU of the next hop, 0 if the script names none.
    pub mtu: u32,
    /// Sequence number of the segment that the message quotes.
    pub quoted_seq: u32,
    /// Payload bytes of the segment that the message quotes.
    pub quoted_len: u32,
}

/// Value with its place.
#[derive(Clone, Debug)]
pub struct Value {
    /// Its place in the script.
    pub at: Position,
    /// The value.
    pub kind: ValueKind,
}

/// Kind of a value: an argument or a result.
#[derive(Clone, Debug, PartialEq)]
pub enum ValueKind {
    /// A number.
    Integer(i64),
    /// The name of a constant.
    Name(String),
    /// Bytes in quotes.
    Text(Vec<u8>),
    /// `...`, which stands for anything.
    Any,
    /// `[a, b]`.
    List(Vec<Value>),
    /// `{a=b, c}`.
    Fields(Vec<Field>),
    /// `htons(8080)`.
    Function(String, Vec<Value>),
    /// `A | B`.
    Or(Vec<Value>),
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind
    }
}

/// Field of a structure.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// Name of the field, if it has one.
    pub name: Option<String>,
    /// Number in brackets behind the name: 2 in `msg_iov(2)`.
    pub count: Option<i64>,
    /// The value of the field.
    pub value: Value,
}

/// System call as written.
#[derive(Clone, Debug)]
pub struct CallSpec {
    /// The name of the call.
    pub name: String,
    /// The arguments in order.
    pub arguments: Vec<Value>,
    /// The value that the call returns.
    pub result: Value,
    /// The name of the error, if the call fails.
    pub errno: Option<String>,
}
