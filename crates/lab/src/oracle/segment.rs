//! What a host may put on the wire: each segment that leaves is held against what its peer has said
//! (RFC 9293, RFC 2018, RFC 2883, RFC 6691, RFC 7323).

use crate::link::{Captured, FourTuple, four_tuple};
use bytes::Bytes;
use neap_stack::wire::tcp;
use neap_tcp::segment::{Flags, Options, Segment};
use neap_tcp::seq::SeqNumber;
use std::collections::BTreeMap;

/// The MSS of one that did not say it (RFC 9293 section 3.7.1).
const DEFAULT_MSS_V4: u32 = 536;
const DEFAULT_MSS_V6: u32 = 1220;

/// No peer makes segments smaller than this: a SYN cookie knows no smaller MSS, and without one
/// `tcp_min_snd_mss` is 48.
const LEAST_MSS: u32 = 88;

/// A fault only if no queue of the host has dropped a packet.
const HOLE: &str = "a hole in what was sent";

/// A fault only if no packet overtakes another. `fq` lets pure ACKs pass data whose time has not
/// come, as in Linux.
const BACK: &str = "an ACK goes back";
const SHRINKS: &str = "a window is taken back";

/// A fault only if a SYN-ACK says the same when it comes again.
const BEFORE: &str = "before the stream";

/// A fault only if no packet overtakes another, and nobody forges segments.
const AFTER_RESET: &str = "data after a reset";

/// A fault only if nobody forges the SYN that is answered.
const NEVER_SENT: &str = "acknowledges what was never sent";
const UNOPENED: &str = "a segment before both SYNs";

/// The sender of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// A host: it must keep to the rules.
    Host {
        /// MTU of the card that the packet left.
        mtu: u16,
        /// Its queues keep the order of a connection's packets and of resets that no socket sends,
        /// and connections are made of its own memory, not of cookies that may come twice.
        is_strict: bool,
    },
    /// An actor: what it says counts, and nothing is expected of it.
    Actor,
}

/// What one end has said in its SYN.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hello {
    isn: SeqNumber,
    options: Options,
}

/// One direction of a connection.
#[derive(Clone, Debug, Default)]
struct Side {
    hello: Option<Hello>,
    /// Behind everything that was sent.
    end: SeqNumber,
    fin: Option<SeqNumber>,
    ack: Option<SeqNumber>,
    /// Behind everything that was ever offered.
    edge: Option<SeqNumber>,
    stamp: Option<u32>,
    has_reset: bool,
    /// It may say anything.
    is_actor: bool,
    /// It has answered one SYN in two different ways, of which only the peer knows the one that
    /// counts; or it has answered a SYN that somebody forged.
    is_vague: bool,
}

/// Watches segments of all connections. A step costs a look into a tree per segment.
#[derive(Debug, Default)]
pub(crate) struct SegmentOracle {
    sides: BTreeMap<FourTuple, Side>,
    /// Nobody forges segments, which hosts would answer.
    is_quiet: bool,
    /// Segments that were judged.
    pub(crate) segments: u64,
}

/// Whether `a` is after `b`; not if that is not known.
fn is_beyond(a: SeqNumber, b: Option<SeqNumber>) -> bool {
    b.is_some_and(|b| a.after(b))
}

impl SegmentOracle {
    /// `is_quiet` says that nobody forges segments.
    pub(crate) fn new(is_quiet: bool) -> Self {
        Self { is_quiet, ..Self::default() }
    }

    /// A packet that has left. `drops` says whether the queues of its host have dropped any.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub(crate) fn look(
        &mut self,
        packet: &Captured,
        sender: Sender,
        drops: &dyn Fn() -> bool,
    ) -> Result<(), String> {
        let Some(flow) = four_tuple(&packet.headers) else { return Ok(()) };
        let at = if flow.0.is_ipv4() { 20 } else { 40 };
        let Some(header) = packet.headers.get(at..) else { return Ok(()) };
        let (_, segment) = tcp::parse(Bytes::copy_from_slice(header), None)
            .map_err(|error| format!("rfc: {flow:?}: {error}"))?;
        let len = (packet.len as usize).saturating_sub(packet.headers.len()) as u32;
        self.segments += 1;
        let (mut own, peer) = self.meet(flow, &segment, sender);
        let is_strict = matches!(sender, Sender::Host { is_strict: true, .. });
        let is_strict = is_strict && self.is_quiet && !own.is_vague;
        let verdict = match sender {
            Sender::Host { mtu, .. } if packet.len > u32::from(mtu) => Err("larger than the MTU"),
            Sender::Host { .. } if !packet.is_sound => Err("a wrong checksum"),
            Sender::Host { .. } => judge(&own, &peer, &segment, len, flow.0.is_ipv4()),
            Sender::Actor => Ok(()),
        };
        let verdict = match verdict {
            Err(HOLE) if drops() => Ok(()),
            Err(NEVER_SENT | UNOPENED) if !self.is_quiet && peer.ack.is_none() => Ok(()),
            Err(HOLE | BACK | SHRINKS | AFTER_RESET | BEFORE) if !is_strict => Ok(()),
            other => other,
        };
        let verdict = verdict.map_err(|rule| {
            let Segment { seq, ack, flags, window, options, .. } = &segment;
            let (from, to) = flow;
            format!(
                "rfc: {rule}: {from} to {to}, at {:?}: {flags:?} seq {} len {len} ack {} win \
                 {window} {options:?}; own {own:?}; peer {peer:?}",
                packet.at, seq.0, ack.0
            )
        });
        own.is_actor = sender == Sender::Actor;
        own.is_vague |= !self.is_quiet && answers_another(&peer, &segment);
        own.take(&peer, &segment, len);
        self.sides.insert(flow, own);
        verdict
    }

    /// Both directions of the connection that a segment belongs to; a SYN begins it anew.
    fn meet(&mut self, flow: FourTuple, segment: &Segment, sender: Sender) -> (Side, Side) {
        let back = (flow.1, flow.0);
        let is_syn = segment.flags.contains(Flags::SYN);
        let own = self.sides.get(&flow);
        let is_new =
            own.and_then(|own| own.hello.as_ref()).is_none_or(|old| old.isn != segment.seq);
        if is_syn && is_new {
            let answers = segment.flags.contains(Flags::ACK);
            let is_vague = answers && own.is_some();
            let opens_too = |peer: &Side| peer.hello.is_some() && peer.ack.is_none();
            let is_other = !answers && !self.sides.get(&back).is_some_and(opens_too);
            if is_other && sender != Sender::Actor {
                self.sides.remove(&back);
            }
            let peer = self.sides.get(&back).cloned().unwrap_or_default();
            return (Side { is_vague, ..Side::default() }, peer);
        }
        let side = |flow| self.sides.get(flow).cloned().unwrap_or_default();
        (side(&flow), side(&back))
    }
}

impl Side {
    fn scale(&self, peer: &Self) -> Option<u8> {
        let shift = |side: &Self| side.hello.as_ref()?.options.window_scale;
        shift(peer).and(shift(self)).map(|shift| shift.min(14))
    }

    /// Takes note of what was sent.
    fn take(&mut self, peer: &Self, segment: &Segment, len: u32) {
        let flags = segment.flags;
        if flags.contains(Flags::RST) {
            // In SYN-SENT a reset answers somebody else's segment. One without an acknowledgment is
            // the host's answer for a connection that it has given up. It has no socket's priority,
            // so it may pass what the connection left in a queue.
            let is_of_connection = flags.contains(Flags::ACK);
            self.has_reset |= is_of_connection && self.ack.is_some();
            return;
        }
        let syn = u32::from(flags.contains(Flags::SYN));
        let end = segment.seq + syn + len + u32::from(flags.contains(Flags::FIN));
        if syn == 1 {
            let mut options = segment.options.clone();
            // The path may have been found narrow meanwhile: the peer knows one of the two.
            let before = self.hello.as_ref().and_then(|hello| hello.options.mss);
            options.mss = options.mss.max(before);
            self.hello = Some(Hello { isn: segment.seq, options });
        }
        let is_first = self.ack.is_none() && self.edge.is_none() && syn == 1;
        self.end = if is_first { end } else { self.end.later(end) };
        if flags.contains(Flags::FIN) {
            self.fin.get_or_insert(segment.seq + syn + len);
        }
        if let Some(timestamps) = segment.options.timestamps {
            self.stamp = Some(timestamps.value);
        }
        // What an actor acknowledges must make sense, at the latest when it arrives, or else its
        // window says nothing.
        let is_near = (peer.end + (1 << 20)).bytes_since(segment.ack) < 1 << 24;
        let is_sound = !self.is_actor || is_near;
        if flags.contains(Flags::ACK) && is_sound {
            self.ack = Some(self.ack.map_or(segment.ack, |ack| ack.later(segment.ack)));
            let shift = if syn == 1 { 0 } else { self.scale(peer).unwrap_or(0) };
            let edge = segment.ack + (u32::from(segment.window) << shift);
            self.edge = Some(self.edge.map_or(edge, |old| old.later(edge)));
        }
    }
}

/// Whether this answers a SYN that the peer has not sent. A forged one that crosses the SYN of a
/// client opens the connection from both ends, until the peer's own segments end it.
fn answers_another(peer: &Side, segment: &Segment) -> bool {
    let is_answer = segment.flags.contains(Flags::SYN | Flags::ACK);
    is_answer && peer.hello.as_ref().is_none_or(|hello| hello.isn + 1 != segment.ack)
}

/// Whether a host may send this.
fn judge(
    own: &Side,
    peer: &Side,
    segment: &Segment,
    len: u32,
    v4: bool,
) -> Result<(), &'static str> {
    let flags = segment.flags;
    let holds = |holds: bool, rule| if holds { Ok(()) } else { Err(rule) };
    if flags.contains(Flags::RST) {
        return holds(len == 0, "a reset with data");
    }
    if flags.contains(Flags::SYN) {
        let is_same = own.hello.as_ref().is_none_or(|old| old.isn == segment.seq);
        holds(is_same, "a SYN with another number")?;
        return holds(len == 0 && !flags.contains(Flags::FIN), "a SYN with data or FIN");
    }
    let (Some(hello), Some(theirs)) = (&own.hello, &peer.hello) else {
        return Err(UNOPENED);
    };
    holds(!own.has_reset || len == 0, AFTER_RESET)?;
    holds(flags.contains(Flags::ACK), "no ACK in an open connection")?;
    let end = segment.seq + len;
    holds(segment.seq.at_or_before(own.end), HOLE)?;
    holds(segment.seq.at_or_after(hello.isn), BEFORE)?;
    holds(len == 0 || segment.seq.after(hello.isn), BEFORE)?;
    holds(len == 0 || !is_beyond(end, own.fin), "data behind the FIN")?;
    let is_fin = flags.contains(Flags::FIN);
    holds(!is_fin || own.fin.is_none_or(|fin| fin == end), "another FIN")?;
    // A vague peer may have offered a window to somebody else.
    holds(len == 0 || peer.is_vague || !is_beyond(end, peer.edge), "beyond the window")?;
    // Of an end that has answered SYNs in different ways nobody here knows what was agreed: that of
    // an attacker may hold the half-open connection while the peer's own comes by.
    let is_agreed = !own.is_vague && !peer.is_vague;
    if is_agreed {
        judge_size(theirs, segment, len, v4)?;
    }
    judge_ack(own, peer, segment)?;
    judge_options(segment)?;
    if is_agreed { judge_agreement(hello, theirs, &segment.options) } else { Ok(()) }
}

fn judge_size(theirs: &Hello, segment: &Segment, len: u32, v4: bool) -> Result<(), &'static str> {
    let default = if v4 { DEFAULT_MSS_V4 } else { DEFAULT_MSS_V6 };
    let mss = theirs.options.mss.map_or(default, u32::from).max(LEAST_MSS);
    let options = segment.options.wire_len() as u32;
    // What an MSS below the options leaves is at least a few bytes.
    let most = mss.saturating_sub(options).max(8);
    if len <= most { Ok(()) } else { Err("larger than the MSS") }
}

fn judge_ack(own: &Side, peer: &Side, segment: &Segment) -> Result<(), &'static str> {
    let holds = |holds: bool, rule| if holds { Ok(()) } else { Err(rule) };
    let is_known = !peer.is_actor && !peer.is_vague && !own.is_vague;
    let was_sent = !is_known || segment.ack.at_or_before(peer.end);
    holds(was_sent, NEVER_SENT)?;
    holds(own.ack.is_none_or(|ack| segment.ack.at_or_after(ack)), BACK)?;
    let shift = own.scale(peer).unwrap_or(0);
    let edge = segment.ack + (u32::from(segment.window) << shift);
    // What is offered is rounded to what the scale can say.
    let least = own.edge.map(|edge| edge + (1u32 << shift).wrapping_neg());
    holds(least.is_none_or(|least| edge.at_or_after(least)), SHRINKS)
}

fn judge_agreement(own: &Hello, theirs: &Hello, options: &Options) -> Result<(), &'static str> {
    let holds = |holds: bool, rule| if holds { Ok(()) } else { Err(rule) };
    let may_stamp = own.options.timestamps.is_some() && theirs.options.timestamps.is_some();
    holds(may_stamp == options.timestamps.is_some(), "timestamps are not as agreed")?;
    let may_sack = own.options.sack_permitted && theirs.options.sack_permitted;
    holds(may_sack || options.sack.is_empty(), "SACK was not agreed")
}

fn judge_options(segment: &Segment) -> Result<(), &'static str> {
    let holds = |holds: bool, rule| if holds { Ok(()) } else { Err(rule) };
    let Options { mss, window_scale, sack_permitted, sack, .. } = &segment.options;
    let is_plain = mss.is_none() && window_scale.is_none() && !sack_permitted;
    holds(is_plain, "options of a SYN without SYN")?;
    for (index, block) in sack.iter().enumerate() {
        holds(block.left.before(block.right), "an empty SACK block")?;
        // The first may be a DSACK.
        let is_above = block.left.after(segment.ack);
        holds(index == 0 || is_above, "a SACK block below the ACK")?;
    }
    Ok(())
}
