//! The connections of a script: which one a packet belongs to, and its numbers as a script counts
//! them, from the initial ones.

use crate::ast::{ACK, OptionSpec, SYN, TcpSpec};
use crate::packet::{Flow, Segment};
use crate::settings::Settings;
use crate::stream::PEER_BYTES;
use core::net::SocketAddr;
use neap_tcp::time::Nanos;

/// The peer's first sequence number; the numbers of a long script pass zero.
const REMOTE_ISN: u32 = 0xffff_c000;

/// Port of the first peer that connects.
const REMOTE_PORT: u16 = 40_001;

/// How closely the host's timestamps must follow time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimestampClock {
    /// What one step stands for; without it timestamps may have any value.
    pub(crate) tick: Option<Nanos>,
    /// How far from its time a timestamp may be.
    pub(crate) tolerance: Nanos,
}

/// One connection, as the peer sees it.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    /// The host's address; unknown before its SYN if it connects from any.
    local: Option<SocketAddr>,
    /// The peer's address.
    remote: SocketAddr,
    /// The host's first sequence number, once its SYN was seen.
    local_isn: Option<u32>,
    /// The next SYN of the host begins a new sequence.
    awaits_isn: bool,
    /// The script's number of the peer's first byte.
    first_byte: u32,
    /// Timestamps of the host, each as the script names it and as it is; others are counted from
    /// the first.
    timestamps: Vec<(u32, u32)>,
}

impl Connection {
    fn new(local: Option<SocketAddr>, remote: SocketAddr) -> Self {
        Self {
            local,
            remote,
            local_isn: None,
            awaits_isn: true,
            first_byte: 1,
            timestamps: Vec::new(),
        }
    }

    /// The flow of the peer's segments.
    fn inbound(&self, settings: &Settings) -> Flow {
        let local = self.local.unwrap_or_else(|| settings.bind_address());
        Flow { from: self.remote, to: local }
    }

    /// The host's first sequence number, 0 before its SYN.
    fn isn(&self) -> u32 {
        self.local_isn.unwrap_or(0)
    }

    /// The real timestamp that the script calls `value`. 0 is none.
    fn echo(&self, value: u32) -> u32 {
        if value == 0 {
            return 0;
        }
        match self.timestamps.iter().rev().find(|(script, _)| *script == value) {
            Some(&(_, real)) => real,
            None => match self.timestamps.first() {
                Some(&(script, real)) => value.wrapping_sub(script).wrapping_add(real),
                None => value,
            },
        }
    }

    /// The peer's segment with the numbers of the wire.
    fn segment(&mut self, spec: &TcpSpec) -> Segment {
        if spec.flags & SYN != 0 {
            self.awaits_isn = true;
            self.first_byte = spec.seq.wrapping_add(1);
        }
        let isn = self.isn();
        let options = spec.options.iter().flatten().map(|option| match option {
            OptionSpec::Sack(blocks) => OptionSpec::Sack(
                blocks.iter().map(|&(l, r)| (l.wrapping_add(isn), r.wrapping_add(isn))).collect(),
            ),
            OptionSpec::Timestamps(value, echo) => OptionSpec::Timestamps(*value, self.echo(*echo)),
            other => other.clone(),
        });
        let has_ack = spec.flags & ACK != 0;
        Segment {
            flags: spec.flags,
            seq: spec.seq.wrapping_add(REMOTE_ISN),
            ack: if has_ack { spec.ack.unwrap_or(0).wrapping_add(isn) } else { 0 },
            window: spec.window.unwrap_or(0),
            urgent: spec.urgent.unwrap_or(0),
            options: options.collect(),
            payload: PEER_BYTES
                .bytes(spec.seq.wrapping_sub(self.first_byte).into(), spec.len as usize),
        }
    }

    /// The host's segment with the script's numbers.
    pub(crate) fn relative(&mut self, segment: &Segment) -> Segment {
        if segment.flags & SYN != 0 && self.awaits_isn {
            self.local_isn = Some(segment.seq);
            self.awaits_isn = false;
        }
        let options = segment.options.iter().map(|option| match option {
            OptionSpec::Sack(blocks) => OptionSpec::Sack(
                blocks
                    .iter()
                    .map(|&(l, r)| (l.wrapping_sub(REMOTE_ISN), r.wrapping_sub(REMOTE_ISN)))
                    .collect(),
            ),
            other => other.clone(),
        });
        let has_ack = segment.flags & ACK != 0;
        Segment {
            seq: segment.seq.wrapping_sub(self.isn()),
            ack: if has_ack { segment.ack.wrapping_sub(REMOTE_ISN) } else { segment.ack },
            options: options.collect(),
            ..segment.clone()
        }
    }

    /// Notes that the script calls this real timestamp `script`; the error says why that cannot be.
    pub(crate) fn note_timestamp(
        &mut self,
        script: u32,
        real: u32,
        clock: TimestampClock,
    ) -> Result<(), String> {
        let first = *self.timestamps.first().unwrap_or(&(script, real));
        if let Some(tick) = clock.tick {
            let passed = i64::from(real.wrapping_sub(first.1) as i32);
            let wanted = i64::from(script.wrapping_sub(first.0) as i32);
            let slack = (clock.tolerance.0 / tick.0.max(1)) as i64 + 1;
            if (passed - wanted).abs() > slack {
                let is = i64::from(first.0) + passed;
                return Err(format!("TS val is {is}, expected {script}"));
            }
        }
        self.timestamps.push((script, real));
        Ok(())
    }

    /// What a script would call a real timestamp, counted from the first one that it named.
    pub(crate) fn show_timestamp(&self, real: u32) -> u32 {
        match self.timestamps.first() {
            Some(&(script, first)) => real.wrapping_sub(first).wrapping_add(script),
            None => real,
        }
    }
}

/// All connections of a script, in the order in which they began.
#[derive(Debug)]
pub(crate) struct Connections {
    settings: Settings,
    list: Vec<Connection>,
    /// Where the application listens, if it bound a socket there.
    listening: Option<SocketAddr>,
    /// The next segment of the peer without ports begins a connection.
    begins_with_next: bool,
    /// The connection that packets without ports belong to.
    under_test: Option<usize>,
}

impl Connections {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            list: Vec::new(),
            listening: None,
            begins_with_next: true,
            under_test: None,
        }
    }

    /// The application listens at this address, or at the default: the next segment of the peer
    /// begins a connection.
    pub(crate) fn listen(&mut self, local: Option<SocketAddr>) {
        self.listening = local;
        self.begins_with_next = true;
    }

    /// The application connects to `remote`.
    pub(crate) fn connect(&mut self, local: Option<SocketAddr>, remote: SocketAddr) {
        self.under_test = Some(self.list.len());
        self.list.push(Connection::new(local, remote));
        self.begins_with_next = false;
    }

    /// A peer that no other connection has begins one, which is under test from now on.
    fn begin(&mut self) {
        let taken = self.list.len() as u16;
        let local = self.listening.unwrap_or_else(|| self.settings.bind_address());
        let remote = (self.settings.remote_ip, REMOTE_PORT.wrapping_add(taken)).into();
        self.under_test = Some(self.list.len());
        self.list.push(Connection::new(Some(local), remote));
        self.begins_with_next = false;
    }

    /// Number of the connection that a segment of the peer belongs to. A connection that begins
    /// with ports of its own is not the one under test.
    fn of_peer(&mut self, ports: Option<(u16, u16)>) -> Result<usize, String> {
        let Some((from, to)) = ports else {
            if self.begins_with_next {
                self.begin();
            }
            return self.under_test.ok_or_else(|| "there is no connection yet".into());
        };
        let mut local = self.listening.unwrap_or_else(|| self.settings.bind_address());
        local.set_port(to);
        let remote = (self.settings.remote_ip, from).into();
        let known =
            self.list.iter().position(|one| (one.local, one.remote) == (Some(local), remote));
        if known.is_none() {
            self.list.push(Connection::new(Some(local), remote));
        }
        Ok(known.unwrap_or(self.list.len() - 1))
    }

    /// The peer's segment with the numbers of the wire, and its flow.
    pub(crate) fn segment(
        &mut self,
        ports: Option<(u16, u16)>,
        spec: &TcpSpec,
    ) -> Result<(Flow, Segment), String> {
        let index = self.of_peer(ports)?;
        let connection = &mut self.list[index];
        Ok((connection.inbound(&self.settings), connection.segment(spec)))
    }

    /// The host's flow and the wire's number of a byte that the script names, for a quote of it.
    pub(crate) fn quoted(
        &mut self,
        ports: Option<(u16, u16)>,
        seq: u32,
    ) -> Result<(Flow, u32), String> {
        let index = self.of_peer(ports)?;
        let connection = &self.list[index];
        let Flow { from, to } = connection.inbound(&self.settings);
        Ok((Flow { from: to, to: from }, seq.wrapping_add(connection.isn())))
    }

    /// Number of the connection that a segment of the host with these flags belongs to. A SYN may
    /// begin one between the ends of an old one.
    pub(crate) fn find(&mut self, flow: Flow, flags: u16) -> Option<usize> {
        let is_pending = |one: &Connection| one.local.is_none() && one.remote == flow.to;
        let is_known = |one: &Connection| one.local == Some(flow.from) && one.remote == flow.to;
        let known = self.list.iter().rposition(is_known);
        let pending = match known {
            Some(known) if flags & (SYN | ACK) == SYN => {
                self.list.iter().rposition(is_pending).filter(|&pending| pending > known)
            }
            Some(_) => None,
            None => self.list.iter().position(is_pending),
        };
        if let Some(pending) = pending {
            self.list[pending].local = Some(flow.from);
        }
        pending.or(known)
    }

    /// The connection with this number.
    pub(crate) fn get(&mut self, index: usize) -> &mut Connection {
        &mut self.list[index]
    }

    /// Number of the connection that packets without ports belong to.
    pub(crate) fn under_test(&self) -> Option<usize> {
        self.under_test
    }
}
