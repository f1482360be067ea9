//! What a script says, as parsed.

use super::cursor::Position;
use super::expression::Assertion;
use neap_stack::wire::Protocol;
use neap_tcp::segment::Ecn;
use neap_tcp::time::Nanos;

/// When something happens. Times count from the start of the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At this time.
    At(Nanos),
    /// So long after the event before.
    After(Nanos),
    /// Between two times.
    Between(Nanos, Nanos),
    /// Between two lengths of time after the event before.
    AfterBetween(Nanos, Nanos),
    /// At any time.
    Any,
}

/// A whole script.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// `--name=value` lines.
    pub options: Vec<Setting>,
    /// `sysctl -q name=value` between back quotes.
    pub sysctls: Vec<Setting>,
    /// Line of the event where Linux differs: the one that a `linux: differs` remark stands beside or above.
    pub differs_on_linux: Option<u32>,
    /// The reason that a `# linux: skip` line gives: nothing of the kernel's to compare with.
    pub not_for_linux: Option<String>,
    /// What happens, in order.
    pub events: Vec<Event>,
}

/// A name with a value, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Where.
    pub at: Position,
    /// Name.
    pub name: String,
    /// Value.
    pub value: String,
}

impl Setting {
    /// Whether packets are IPv6 because of it.
    pub fn is_v6(&self) -> bool {
        self.name == "ip_version" && self.value == "ipv6"
    }
}

/// One event.
#[derive(Clone, Debug)]
pub struct Event {
    /// Where it stands.
    pub at: Position,
    /// When it happens.
    pub when: When,
    /// Until when a system call blocks; counts from the same time as `when`.
    pub until: Option<Nanos>,
    /// Its text.
    pub text: String,
    /// What happens.
    pub kind: EventKind,
}

/// What can happen.
#[derive(Clone, Debug)]
pub enum EventKind {
    /// The peer sends this.
    Inject(PacketSpec),
    /// The host is to send this.
    Expect(PacketSpec),
    /// The application does this.
    Call(CallSpec),
    /// This must hold for `TCP_INFO`.
    Assert(Vec<Assertion>),
}

/// A packet as written.
#[derive(Clone, Debug)]
pub struct PacketSpec {
    /// Ports of its connection, as in the packet; without, it belongs to the connection under test.
    pub ports: Option<(u16, u16)>,
    /// ECN codepoint.
    pub ecn: Option<Ecn>,
    /// Above IP.
    pub body: Body,
}

/// What is above IP.
#[derive(Clone, Debug)]
pub enum Body {
    /// A segment.
    Tcp(TcpSpec),
    /// An ICMP error.
    Icmp(IcmpSpec),
}

/// A TCP segment as written; numbers count from the initial ones.
#[derive(Clone, Debug)]
pub struct TcpSpec {
    /// Control bits, NS as 0x100.
    pub flags: u16,
    /// First sequence number.
    pub seq: u32,
    /// Payload bytes.
    pub len: u32,
    /// Acknowledgement.
    pub ack: Option<u32>,
    /// Window field as on the wire.
    pub window: Option<u16>,
    /// Urgent pointer.
    pub urgent: Option<u16>,
    /// Options in order; `None` for `<...>`: any.
    pub options: Option<Vec<OptionSpec>>,
}

/// One TCP option.
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
    /// Bytes that it takes in a header.
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

/// An ICMP error as written.
#[derive(Clone, Debug)]
pub struct IcmpSpec {
    /// Of which family: `Protocol::ICMP` or `Protocol::ICMPV6`.
    pub protocol: Protocol,
    /// Type.
    pub kind: u8,
    /// Code.
    pub code: u8,
    /// MTU of the next hop.
    pub mtu: u32,
    /// First sequence number and length of the segment that it quotes.
    pub quoted: (u32, u32),
}

/// A value with its place.
#[derive(Clone, Debug)]
pub struct Value {
    /// Where.
    pub at: Position,
    /// What.
    pub kind: ValueKind,
}

/// An argument or result.
#[derive(Clone, Debug, PartialEq)]
pub enum ValueKind {
    /// A number.
    Integer(i64),
    /// A constant's name.
    Name(String),
    /// Bytes in quotes.
    Text(Vec<u8>),
    /// `...`: any.
    Any,
    /// `[a, b]`.
    List(Vec<Value>),
    /// `{a=b, c}`.
    Fields(Vec<Field>),
    /// `htons(8080)`.
    Call(String, Vec<Value>),
    /// `A | B`.
    Or(Vec<Value>),
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind
    }
}

/// One field of a structure.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// Name, if it has one.
    pub name: Option<String>,
    /// `2` of `msg_iov(2)`.
    pub count: Option<i64>,
    /// Value.
    pub value: Value,
}

/// A system call as written.
#[derive(Clone, Debug)]
pub struct CallSpec {
    /// Its name.
    pub name: String,
    /// Arguments.
    pub arguments: Vec<Value>,
    /// What it returns.
    pub result: Value,
    /// Name of the error.
    pub errno: Option<String>,
}
