//! Sessions: single connections whose two ends write, read, rest and leave each by a plan of its
//! own, for worlds that are searched for faults.

use super::Builder;
use crate::app::session::{self, Ending, Plan, Reading, SharedSessionLog, Writing};
use crate::pattern::Pattern;
use crate::rng::{Ppm, Rng};
use crate::scenario::model::{EndingSpec, SessionSpec};
use crate::scenario::source::ScenarioError;
use crate::scenario::units::{Share, Size, Speed, Time};
use core::net::SocketAddr;
use neap_stack::stack::{ConnectOptions, ListenOptions};
use neap_tcp::config::Config;
use neap_tcp::options::{SocketOption, SocketOptions};
use neap_tcp::time::{Instant, Nanos};

/// The port of the first session.
const FIRST_PORT: u16 = 7001;

/// A session at work.
pub(crate) struct RunningSession {
    /// Its name in the scenario.
    pub(crate) name: String,
    /// The log of the end that connects.
    pub(crate) client: SharedSessionLog,
    /// The log of the end that listens.
    pub(crate) server: SharedSessionLog,
    /// Bytes that client and server write.
    pub(crate) bytes: [u64; 2],
    /// One end leaves without having read all.
    pub(crate) is_cut: bool,
}

impl SessionSpec {
    fn plans(&self, rng: &mut Rng) -> [Plan; 2] {
        let size = |size: Option<Size>, or: u64| size.map_or(or, |Size(size)| size);
        let share = |share: Option<Share>| share.map_or(Ppm::NEVER, |Share(share)| share);
        let time = |time: Option<Time>| time.map_or(Nanos::ZERO, |Time(time)| time);
        let patterns = [rng.next_u64(), rng.next_u64()].map(Pattern::new);
        let bytes = [size(self.bytes, 0), size(self.answer, 0)];
        let leaver = usize::from(self.ended_by_server);
        [0, 1].map(|end| {
            let (write, read) = (size(self.write, 16_384).max(1), size(self.read, 65_536).max(1));
            let (zero_copy, pause) = (share(self.zero_copy), share(self.pause));
            let ending = match self.ending {
                EndingSpec::Close if end == leaver => Ending::Close,
                EndingSpec::Abort if end == leaver => Ending::Abort(size(self.after, 0)),
                _ => Ending::HalfClose,
            };
            Plan {
                writing: Writing {
                    pattern: patterns[end],
                    bytes: bytes[end],
                    chunk: (write.div_ceil(2), write),
                    zero_copy,
                    pause,
                    rest: time(self.rest),
                    turns: None,
                },
                reading: Reading {
                    pattern: patterns[1 - end],
                    chunk: (read.div_ceil(2), read),
                    zero_copy,
                    pause,
                    rest: time(self.rest),
                    late: if end == 1 { time(self.late) } else { Nanos::ZERO },
                },
                ending,
            }
        })
    }

    /// Whether one end leaves without having read all that the other wrote.
    fn is_cut(&self) -> bool {
        let unread = if self.ended_by_server { self.bytes } else { self.answer };
        match self.ending {
            EndingSpec::HalfClose => false,
            EndingSpec::Close => unread.is_some_and(|Size(size)| size > 0),
            EndingSpec::Abort => true,
        }
    }

    fn options(&self, config: &Config) -> Result<SocketOptions, String> {
        let limit = |Size(size): Size| size.min(1 << 30) as u32;
        let mut all = vec![SocketOption::NoDelay(self.nodelay)];
        all.extend(self.sndbuf.map(|size| SocketOption::SendBuffer(limit(size))));
        all.extend(self.rcvbuf.map(|size| SocketOption::ReceiveBuffer(limit(size))));
        all.extend(self.mss.map(SocketOption::MaxSegment));
        all.extend(self.pacing_rate.map(|Speed(rate)| SocketOption::MaxPacingRate(rate)));
        all.extend(self.notsent_lowat.map(|size| SocketOption::NotSentLowat(limit(size))));
        all.extend(self.user_timeout.map(|Time(time)| SocketOption::UserTimeout(time)));
        if let Some(Time(idle)) = self.keepalive {
            let interval = (idle / 10).max(Nanos::from_secs(1));
            all.push(SocketOption::KeepAlive(true));
            all.push(SocketOption::KeepAliveIdle(idle));
            all.push(SocketOption::KeepAliveInterval(interval));
        }
        let congestion = self.congestion.as_ref().map(|name| name.get_ref().clone());
        all.extend(congestion.map(SocketOption::Congestion));
        let mut options = SocketOptions::default();
        for option in &all {
            options.set(option, config).map_err(|error| error.to_string())?;
        }
        Ok(options)
    }
}

impl Builder<'_> {
    /// Starts all sessions.
    pub(super) fn sessions(
        &mut self,
        start: Instant,
    ) -> Result<Vec<RunningSession>, ScenarioError> {
        let mut all = Vec::new();
        for (index, (name, spanned)) in self.scenario.session.iter().enumerate() {
            let session: &SessionSpec = spanned.get_ref();
            let (from, to) = (self.host(&session.from)?, self.host(&session.to)?);
            if from == to {
                return Err(self.source.error(&session.to, "a session needs two hosts"));
            }
            let remote =
                SocketAddr::new(self.reach(from, to, &session.to)?, FIRST_PORT + index as u16);
            let mut rng = Rng::new(self.scenario.seed).fork(5).fork(index as u64);
            let [client, server] = session.plans(&mut rng);
            let bytes = [client.writing.bytes, server.writing.bytes];
            let refuse = |what: String| self.source.error(spanned, what);
            let options = |host| session.options(&self.world.stack(host).config());
            let listen =
                ListenOptions { options: options(to).map_err(refuse)?, ..ListenOptions::default() };
            let connect = ConnectOptions {
                options: options(from).map_err(refuse)?,
                ..ConnectOptions::default()
            };
            let stack = self.world.stack(to);
            let (app, server) = session::server(stack, remote, listen, server, rng.fork(1))
                .map_err(|error| self.source.error(spanned, error))?;
            self.world.add_app(to, app);
            let at = start + session.start.map_or(Nanos::ZERO, |Time(time)| time);
            let (app, client) = session::client(remote, connect, at, client, rng.fork(2));
            self.world.add_app(from, app);
            let is_cut = session.is_cut();
            all.push(RunningSession { name: name.clone(), client, server, bytes, is_cut });
        }
        Ok(all)
    }
}
