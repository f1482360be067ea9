//! The data phase: one thread moves the bytes of all streams and keeps the clock of the test.
//!
//! One stream uses blocking writes and reads, so that the calling thread drives the stack itself;
//! several are served in turn, one block each, by readiness. A block costs one socket call and one
//! reading of the clock.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use super::interrupt::Interrupt;
use super::net::{self, Info, Poller, Spent, TcpListener, TcpStream};
use super::plan::Plan;
use super::protocol::{Control, ProtocolError, State, is_transient};

/// Token of the control connection in the poller; streams have their index.
const CONTROL: u64 = u64::MAX;
/// Longest wait of a socket call. A stream that moves nothing for so long is waited for together
/// with the control connection.
const SLICE: Duration = Duration::from_millis(5);
/// Longest wait for any of the connections: how late an interrupt may be looked at.
const WAIT: Duration = Duration::from_millis(100);
/// How often a side that is busy moving bytes looks at the control connection.
const CONTROL_INTERVAL: Duration = Duration::from_millis(20);
/// A server gives up a test in which nothing has moved for so long.
const IDLE_LIMIT: Duration = Duration::from_secs(120);

/// Which way the bytes of this side go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Sender,
    Receiver,
}

/// One data connection.
pub(crate) struct Stream {
    pub socket: TcpStream,
    pub figures: Figures,
    /// Moved since the last report.
    interval_bytes: u64,
    /// Counter of the connection at the end of the omitted start, and at the last report.
    base_retransmits: u64,
    interval_retransmits: u64,
    /// At the last report, since the connection was opened.
    spent: Spent,
    /// No bytes will move any more.
    done: bool,
}

/// What is known of a stream when its test is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub id: u32,
    /// Moved since the omitted start.
    pub bytes: u64,
    /// All zero for a receiver.
    pub extremes: Extremes,
}

/// What a sender has seen of its connection at its reports.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extremes {
    pub retransmits: u64,
    pub max_snd_cwnd: u64,
    pub max_snd_wnd: u64,
    pub max_rtt: u32,
    pub min_rtt: u32,
    sum_rtt: u64,
    samples: u64,
}

impl Extremes {
    /// Mean of the RTT at the reports, microseconds.
    pub(crate) fn mean_rtt(&self) -> u64 {
        self.sum_rtt.checked_div(self.samples).unwrap_or(0)
    }

    fn add(&mut self, info: &Info) {
        self.max_snd_cwnd = self.max_snd_cwnd.max(info.snd_cwnd);
        self.max_snd_wnd = self.max_snd_wnd.max(info.snd_wnd);
        self.max_rtt = self.max_rtt.max(info.rtt);
        self.min_rtt = if self.samples == 0 { info.rtt } else { self.min_rtt.min(info.rtt) };
        self.sum_rtt += u64::from(info.rtt);
        self.samples += 1;
    }
}

impl Stream {
    pub(crate) fn new(id: u32, socket: TcpStream) -> Self {
        Self {
            socket,
            figures: Figures { id, bytes: 0, extremes: Extremes::default() },
            interval_bytes: 0,
            base_retransmits: 0,
            interval_retransmits: 0,
            spent: Spent::default(),
            done: false,
        }
    }

    fn count(&mut self, bytes: usize) {
        self.figures.bytes += bytes as u64;
        self.interval_bytes += bytes as u64;
    }

    /// Closes a report: its figures, and counts from zero.
    fn report(&mut self, role: Role) -> StreamInterval {
        let sender = (role == Role::Sender).then(|| {
            let mut info = net::info(&self.socket);
            info.spent = info.spent.since(&std::mem::replace(&mut self.spent, info.spent));
            let retransmits = info.retransmits.saturating_sub(self.interval_retransmits);
            self.interval_retransmits = info.retransmits;
            self.figures.extremes.retransmits =
                info.retransmits.saturating_sub(self.base_retransmits);
            self.figures.extremes.add(&info);
            (retransmits, info)
        });
        StreamInterval {
            id: self.figures.id,
            bytes: std::mem::take(&mut self.interval_bytes),
            sender,
        }
    }

    fn forget(&mut self) {
        self.figures.bytes = 0;
        self.figures.extremes = Extremes::default();
        self.base_retransmits = self.interval_retransmits;
    }

    /// One socket call; true if it moved bytes.
    fn transfer(&mut self, role: Role, block: &mut [u8], credit: u64) -> io::Result<bool> {
        let moved = match role {
            Role::Sender => {
                let length = usize::try_from(credit).unwrap_or(usize::MAX).min(block.len());
                self.socket.write(&block[..length])
            }
            Role::Receiver => self.socket.read(block),
        };
        match moved {
            Ok(0) if role == Role::Receiver => {
                self.done = true;
                Ok(false)
            }
            Ok(bytes) => {
                self.count(bytes);
                Ok(bytes > 0)
            }
            Err(error) if is_transient(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// One stream in one report.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamInterval {
    pub id: u32,
    pub bytes: u64,
    /// Retransmissions in this interval and the state of the connection, for a sender; its time is
    /// that of this interval.
    pub sender: Option<(u64, Info)>,
}

/// One report.
#[derive(Clone, Debug)]
pub(crate) struct Interval {
    /// Seconds since the test (or its omitted start) began.
    pub start: f64,
    pub end: f64,
    pub omitted: bool,
    pub streams: Vec<StreamInterval>,
}

/// Takes the reports as they come.
pub(crate) trait Observer {
    fn interval(&mut self, interval: Interval);
}

/// What can end a data phase early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DataError {
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    #[error("stream {id}: {source}")]
    Stream { id: u32, source: io::Error },
    #[error("all streams ended before the test did")]
    StreamsEnded,
    #[error("no bytes have moved for {} s", IDLE_LIMIT.as_secs())]
    Idle,
    #[error("waiting for the streams: {0}")]
    Wait(io::Error),
}

/// What the phase needs beyond the streams.
pub(crate) struct Setting<'a> {
    pub plan: &'a Plan,
    pub role: Role,
    /// The client ends the test by its limits, the server when told.
    pub client: bool,
    /// Between reports; none but the last if `None`.
    pub interval: Option<Duration>,
    pub interrupt: &'a Interrupt,
    /// Where clients that come during the test are turned away.
    pub listener: Option<&'a TcpListener>,
}

/// The data phase of one test.
pub(crate) struct DataPhase<'a> {
    setting: Setting<'a>,
    control: &'a mut Control,
    streams: &'a mut [Stream],
    observer: &'a mut dyn Observer,
    poller: Poller,
    ready: Vec<u64>,
    block: Vec<u8>,
    /// Begin of what is counted now.
    start: Instant,
    omit_until: Option<Instant>,
    last_report: Instant,
    next_report: Option<Instant>,
    next_control: Instant,
    last_move: Instant,
    reported: bool,
}

impl<'a> DataPhase<'a> {
    pub(crate) fn new(
        setting: Setting<'a>,
        control: &'a mut Control,
        streams: &'a mut [Stream],
        observer: &'a mut dyn Observer,
    ) -> Result<Self, DataError> {
        let single = streams.len() == 1;
        let mut poller = Poller::new().map_err(DataError::Wait)?;
        poller.add(control.socket(), CONTROL, false).map_err(DataError::Wait)?;
        for (index, stream) in streams.iter().enumerate() {
            let set = if single {
                let timeouts = stream.socket.set_read_timeout(Some(SLICE));
                timeouts.and_then(|()| stream.socket.set_write_timeout(Some(SLICE)))
            } else {
                stream.socket.set_nonblocking(true)
            };
            set.and_then(|()| {
                poller.add(&stream.socket, index as u64, setting.role == Role::Sender)
            })
            .map_err(|source| DataError::Stream { id: stream.figures.id, source })?;
        }
        let now = Instant::now();
        let omit = setting.plan.omit;
        Ok(Self {
            control,
            poller,
            ready: Vec::with_capacity(streams.len() + 1),
            block: pattern(setting.plan.block as usize),
            streams,
            observer,
            start: now,
            omit_until: (!omit.is_zero()).then(|| now + omit),
            last_report: now,
            next_report: setting.interval.map(|interval| now + interval),
            next_control: now + CONTROL_INTERVAL,
            last_move: now,
            reported: false,
            setting,
        })
    }

    /// Moves bytes until the test is over; the figures are in the streams then. Returns the seconds
    /// it took, and what ended it early.
    pub(crate) fn run(&mut self) -> (f64, Result<(), DataError>) {
        let ended = self.transfer();
        let now = Instant::now();
        if !self.reported || self.streams.iter().any(|stream| stream.interval_bytes > 0) {
            self.report(now);
        }
        ((now - self.start).as_secs_f64(), ended)
    }

    fn transfer(&mut self) -> Result<(), DataError> {
        let mut moved = true;
        loop {
            let now = Instant::now();
            if self.keep_time(now)? {
                return Ok(());
            }
            moved = match self.streams {
                [stream] if moved && !stream.done => self.step_one()?,
                _ => self.step_many(now)?,
            };
            if !self.setting.client && self.credit() == 0 {
                self.rest();
            }
            if moved {
                self.last_move = now;
            } else {
                // Nothing arrives after the client has said that the test is over.
                self.next_control = now;
            }
        }
    }

    /// Whatever is due by the clock: the end, the end of the omitted start, a report, a look at the
    /// control connection. True when the test is over: for a client by its limits, for a server
    /// when told.
    fn keep_time(&mut self, now: Instant) -> Result<bool, DataError> {
        if self.omit_until.is_some_and(|until| now >= until) {
            self.end_omitted(now);
        }
        if self.next_report.is_some_and(|due| now >= due) {
            self.report(now);
        }
        if self.setting.client && self.is_at_limit(now) {
            return Ok(true);
        }
        if now >= self.next_control {
            self.next_control = now + CONTROL_INTERVAL;
            if self.look_at_control()? {
                return Ok(true);
            }
            if self.setting.interrupt.is_set() {
                return Err(ProtocolError::Interrupted.into());
            }
            if now - self.last_move > IDLE_LIMIT {
                return Err(DataError::Idle);
            }
            if let Some(listener) = self.setting.listener {
                turn_away(listener);
            }
        }
        Ok(false)
    }

    fn is_at_limit(&self, now: Instant) -> bool {
        self.end_by_time().is_some_and(|end| now >= end)
            || (self.omit_until.is_none() && self.credit() == 0)
    }

    /// When the time of the test is over. A client ends it then, and not within the omitted start.
    /// Nothing happens at the time of a server.
    fn end_by_time(&self) -> Option<Instant> {
        let has_end = self.setting.client && self.omit_until.is_none();
        let limit = self.setting.plan.time_limit().filter(|_| has_end);
        limit.map(|limit| self.start + limit)
    }

    /// Bytes that may still move, of all streams.
    fn credit(&self) -> u64 {
        let Setting { plan, role, client, .. } = &self.setting;
        // The end of the omitted start comes to both ends at different bytes. A server that stopped
        // by its own count would leave its client short of bytes for ever.
        let is_bound = *client || (*role == Role::Sender && plan.omit.is_zero());
        match plan.byte_limit() {
            Some(limit) if is_bound && self.omit_until.is_none() => {
                limit.saturating_sub(self.streams.iter().map(|stream| stream.figures.bytes).sum())
            }
            _ => u64::MAX,
        }
    }

    /// Leaves the streams alone: everything is sent, and the client says when the test is over.
    fn rest(&mut self) {
        for stream in self.streams.iter_mut().filter(|stream| !stream.done) {
            stream.done = true;
            self.poller.remove(&stream.socket);
        }
    }

    fn end_omitted(&mut self, now: Instant) {
        self.report(now);
        self.omit_until = None;
        for stream in &mut *self.streams {
            stream.forget();
        }
        self.start = now;
        self.last_report = now;
        self.reported = false;
        self.next_report = self.setting.interval.map(|interval| now + interval);
    }

    fn report(&mut self, now: Instant) {
        let streams =
            self.streams.iter_mut().map(|stream| stream.report(self.setting.role)).collect();
        self.observer.interval(Interval {
            start: (self.last_report - self.start).as_secs_f64(),
            end: (now - self.start).as_secs_f64(),
            omitted: self.omit_until.is_some(),
            streams,
        });
        self.reported = true;
        self.last_report = now;
        if let (Some(interval), Some(due)) = (self.setting.interval, &mut self.next_report) {
            // A report that was due during a long stall is left out, not made up for.
            while *due <= now {
                *due += interval;
            }
        }
    }

    fn look_at_control(&mut self) -> Result<bool, DataError> {
        match self.control.try_state()? {
            None => Ok(false),
            Some(State::TestEnd) if !self.setting.client => Ok(true),
            Some(got) => {
                Err(ProtocolError::UnexpectedState { expected: State::TestEnd, got }.into())
            }
        }
    }

    fn step_one(&mut self) -> Result<bool, DataError> {
        let credit = self.credit();
        self.step_stream(0, credit)
    }

    fn step_stream(&mut self, index: usize, credit: u64) -> Result<bool, DataError> {
        let stream = &mut self.streams[index];
        let moved = stream.transfer(self.setting.role, &mut self.block, credit);
        if stream.done {
            self.poller.remove(&stream.socket);
        }
        moved.map_err(|source| DataError::Stream { id: stream.figures.id, source })
    }

    /// Time from now until the clock asks for something, at most [`WAIT`].
    fn until_due(&self, now: Instant) -> Duration {
        let due = [self.next_report, self.omit_until, self.end_by_time()];
        let due = due.into_iter().flatten().min();
        due.map_or(WAIT, |due| due.saturating_duration_since(now).min(WAIT))
    }

    fn step_many(&mut self, now: Instant) -> Result<bool, DataError> {
        let timeout = self.until_due(now);
        self.poller.wait(&mut self.ready, Some(timeout)).map_err(DataError::Wait)?;
        let mut moved = false;
        let mut credit = self.credit();
        for next in 0..self.ready.len() {
            let index = usize::try_from(self.ready[next]).unwrap_or(usize::MAX);
            if index >= self.streams.len() {
                self.next_control = now;
            } else if credit > 0 && !self.streams[index].done {
                let before = self.streams[index].figures.bytes;
                moved |= self.step_stream(index, credit)?;
                credit = credit.saturating_sub(self.streams[index].figures.bytes - before);
            }
        }
        if self.setting.client && self.streams.iter().all(|stream| stream.done) {
            self.look_at_control()?;
            return Err(DataError::StreamsEnded);
        }
        Ok(moved)
    }

    /// Tells the server that the test is over and waits until it asks for the results. What still
    /// arrives is read and forgotten: a server that blocks in a write would never look at its
    /// control connection.
    pub(crate) fn end_test(&mut self) -> Result<(), DataError> {
        self.control.send_state(State::TestEnd)?;
        match self.drain_until_state()? {
            State::ExchangeResults => Ok(()),
            got => {
                Err(ProtocolError::UnexpectedState { expected: State::ExchangeResults, got }.into())
            }
        }
    }

    fn drain_until_state(&mut self) -> Result<State, DataError> {
        for stream in &*self.streams {
            let set = stream.socket.set_nonblocking(true);
            set.map_err(|source| DataError::Stream { id: stream.figures.id, source })?;
        }
        let until = Instant::now() + IDLE_LIMIT;
        while Instant::now() < until {
            if self.setting.interrupt.is_set() {
                return Err(ProtocolError::Interrupted.into());
            }
            if let Some(state) = self.control.try_state()? {
                return Ok(state);
            }
            self.poller.wait(&mut self.ready, Some(WAIT)).map_err(DataError::Wait)?;
            for &token in &self.ready {
                let Some(stream) =
                    usize::try_from(token).ok().and_then(|index| self.streams.get_mut(index))
                else {
                    continue;
                };
                let read = match self.setting.role {
                    Role::Receiver => stream.socket.read(&mut self.block),
                    Role::Sender => Ok(0),
                };
                match read {
                    Err(error) if is_transient(&error) => {}
                    Ok(bytes) if bytes > 0 => {}
                    // A sender has nothing to read; a server may close or reset its streams before
                    // it sends the state.
                    _ => self.poller.remove(&stream.socket),
                }
            }
        }
        Err(DataError::Idle)
    }
}

/// Tells whoever connects while a test runs that the server is busy.
fn turn_away(listener: &TcpListener) {
    while let Ok((socket, _)) = listener.accept() {
        deny(socket);
    }
}

/// Tells one client that the server is busy and closes; whether the client reads it is its own
/// affair.
pub(crate) fn deny(mut socket: TcpStream) {
    let _ = socket.set_nonblocking(true);
    let _ = socket.write(&[State::AccessDenied.byte()]);
}

/// A block to send again and again: bytes that differ from place to place.
fn pattern(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut block = Vec::with_capacity(length + 8);
    while block.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        block.extend_from_slice(&state.to_le_bytes());
    }
    block.truncate(length);
    block
}
