//! The connections of a script: whose packet it is, and numbers relative to the initial ones.

use super::ast::{OptionSpec, TcpSpec};
use super::settings::Settings;
use super::wire::{Flow, Tcp};
use crate::pattern::Pattern;
use bytes::Bytes;
use core::net::SocketAddr;
use neap_tcp::time::Nanos;

const SYN: u16 = 0x02;
const ACK: u16 = 0x10;

/// The peer's first sequence number; the numbers of a long script pass zero.
const REMOTE_ISN: u32 = 0xffff_c000;

/// Ports of peers that connect.
const REMOTE_PORT: u16 = 40_001;

/// Bytes that the peer sends, by their offset: what is read is compared with them.
pub(crate) const PEER_BYTES: Pattern = Pattern::new(1);

/// Bytes that the application writes, by their offset: payloads are compared with them.
pub(crate) const WRITTEN_BYTES: Pattern = Pattern::new(2);

/// A piece of one of these streams.
pub(crate) fn stream_bytes(stream: Pattern, offset: u64, len: usize) -> Bytes {
    let mut bytes = vec![0; len];
    stream.fill(offset, &mut bytes);
    bytes.into()
}

/// One connection, as the peer sees it.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    /// Unknown on the host's side before its SYN.
    local: Option<SocketAddr>,
    remote: SocketAddr,
    local_isn: Option<u32>,
    /// The next SYN of the host begins a new sequence.
    awaits_isn: bool,
    /// Script's number of the peer's first byte.
    first_byte: u32,
    /// Script's and real timestamps of the host; the first is the base.
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

    /// From the peer's side.
    fn inbound(&self, settings: &Settings) -> Flow {
        let local = self.local.unwrap_or_else(|| settings.bind_address());
        Flow { from: self.remote, to: local }
    }

    fn isn(&self) -> u32 {
        self.local_isn.unwrap_or(0)
    }

    /// The real timestamp that the script calls `value`.
    fn echo(&self, value: u32) -> u32 {
        match self.timestamps.iter().rev().find(|(script, _)| *script == value) {
            Some(&(_, real)) => real,
            None => match self.timestamps.first() {
                Some(&(script, real)) => value.wrapping_sub(script).wrapping_add(real),
                None => value,
            },
        }
    }

    /// The peer's segment with the numbers of the wire.
    fn segment(&mut self, spec: &TcpSpec) -> Tcp {
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
        Tcp {
            flags: spec.flags,
            seq: spec.seq.wrapping_add(REMOTE_ISN),
            ack: if has_ack { spec.ack.unwrap_or(0).wrapping_add(isn) } else { 0 },
            window: spec.window.unwrap_or(0),
            urgent: spec.urgent.unwrap_or(0),
            options: options.collect(),
            payload: stream_bytes(
                PEER_BYTES,
                spec.seq.wrapping_sub(self.first_byte).into(),
                spec.len as usize,
            ),
        }
    }

    /// The host's segment with the script's numbers.
    pub(crate) fn relative(&mut self, segment: &Tcp) -> Tcp {
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
        Tcp {
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
        (tick, tolerance): (Option<Nanos>, Nanos),
    ) -> Result<(), String> {
        let first = *self.timestamps.first().unwrap_or(&(script, real));
        if let Some(tick) = tick {
            let passed = i64::from(real.wrapping_sub(first.1) as i32);
            let wanted = i64::from(script.wrapping_sub(first.0) as i32);
            let slack = (tolerance.0 / tick.0.max(1)) as i64 + 1;
            if (passed - wanted).abs() > slack {
                let is = i64::from(first.0) + passed;
                return Err(format!("TS val is {is}, expected {script}"));
            }
        }
        self.timestamps.push((script, real));
        Ok(())
    }

    /// Script's real timestamp of the first packet and what the script calls it.
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
    /// A listener's address: the next SYN begins a connection.
    listening: Option<SocketAddr>,
    fresh: bool,
    under_test: Option<usize>,
}

impl Connections {
    pub(crate) fn new(settings: Settings) -> Self {
        Self { settings, list: Vec::new(), listening: None, fresh: true, under_test: None }
    }

    /// The application listens here: the next segment of the peer begins a connection.
    pub(crate) fn listen(&mut self, local: Option<SocketAddr>) {
        self.listening = local;
        self.fresh = true;
    }

    /// The application connects there.
    pub(crate) fn connect(&mut self, local: Option<SocketAddr>, remote: SocketAddr) {
        self.under_test = Some(self.list.len());
        self.list.push(Connection::new(local, remote));
        self.fresh = false;
    }

    fn begin(&mut self) {
        let taken = self.list.len() as u16;
        let local = self.listening.unwrap_or_else(|| self.settings.bind_address());
        let remote = (self.settings.remote_ip, REMOTE_PORT + taken).into();
        self.under_test = Some(self.list.len());
        self.list.push(Connection::new(Some(local), remote));
        self.fresh = false;
    }

    /// The connection that a segment of the peer belongs to. One with ports of its own is not the one
    /// under test.
    fn choose(&mut self, ports: Option<(u16, u16)>) -> Result<usize, String> {
        let Some((from, to)) = ports else {
            if self.fresh {
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

    /// The peer's segment as a flow and what it says.
    pub(crate) fn segment(
        &mut self,
        ports: Option<(u16, u16)>,
        spec: &TcpSpec,
    ) -> Result<(Flow, Tcp), String> {
        let index = self.choose(ports)?;
        let connection = &mut self.list[index];
        Ok((connection.inbound(&self.settings), connection.segment(spec)))
    }

    /// The host's flow and the wire's number of a byte that the script names, for a quote of it.
    pub(crate) fn quoted(
        &mut self,
        ports: Option<(u16, u16)>,
        seq: u32,
    ) -> Result<(Flow, u32), String> {
        let index = self.choose(ports)?;
        let connection = &self.list[index];
        let Flow { from, to } = connection.inbound(&self.settings);
        Ok((Flow { from: to, to: from }, seq.wrapping_add(connection.isn())))
    }

    /// Number of the connection that the host's packet belongs to.
    pub(crate) fn find(&mut self, flow: Flow) -> Option<usize> {
        let known = self
            .list
            .iter()
            .rposition(|known| known.local == Some(flow.from) && known.remote == flow.to);
        if known.is_some() {
            return known;
        }
        let pending =
            self.list.iter().position(|known| known.local.is_none() && known.remote == flow.to)?;
        self.list[pending].local = Some(flow.from);
        Some(pending)
    }

    pub(crate) fn get(&mut self, index: usize) -> &mut Connection {
        &mut self.list[index]
    }

    /// Number of the connection that packets without ports belong to, counted from zero.
    pub(crate) fn under_test(&self) -> Option<usize> {
        self.under_test
    }
}
