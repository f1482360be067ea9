//! The server: runs the tests that clients ask for, one after another.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::cpu::CpuClock;
use super::interrupt::Interrupt;
use super::net::{self, Poller, TcpListener, TcpStream};
use super::plan::{Plan, stream_id};
use super::protocol::{
    Control, Cookie, MAX_PARAMETERS, MAX_RESULTS, Parameters, ProtocolError, State, error_code,
    is_transient,
};
use super::report::{Own, Start, Summary};
use super::streams::{DataPhase, Role, Setting, Stream, deny};
use super::{PerfError, Reporter};

/// How often a server that waits for streams looks whether the client is still there.
const SLICE: Duration = Duration::from_millis(200);
/// A client has so long to connect all its streams.
const STREAMS_LIMIT: Duration = Duration::from_secs(30);
/// A stream that has not sent its whole cookie in so long is closed.
const COOKIE_LIMIT: Duration = Duration::from_secs(2);

/// A listener and what its tests have in common.
pub(crate) struct Server<'a> {
    listener: TcpListener,
    poller: Poller,
    interval: Option<Duration>,
    interrupt: &'a Interrupt,
}

impl<'a> Server<'a> {
    /// # Errors
    /// The listener cannot be waited for.
    pub(crate) fn new(
        listener: TcpListener,
        interval: Option<Duration>,
        interrupt: &'a Interrupt,
    ) -> Result<Self, PerfError> {
        listener.set_nonblocking(true).map_err(PerfError::Listen)?;
        let mut poller = Poller::new().map_err(PerfError::Listen)?;
        poller.add(&listener, 0, false).map_err(PerfError::Listen)?;
        poller.add(interrupt, 1, false).map_err(PerfError::Listen)?;
        Ok(Self { listener, poller, interval, interrupt })
    }

    /// Waits for a client and runs its test.
    ///
    /// # Errors
    /// Whatever kept the test from its end; the server can serve the next one unless it was
    /// interrupted.
    pub(crate) fn serve(&mut self, reporter: &mut Reporter) -> Result<(), PerfError> {
        let (socket, from) = self.accept(None, || Ok(()))?;
        reporter.accepted(from);
        let mut control =
            Control::new(socket, self.interrupt.clone()).map_err(ProtocolError::Io)?;
        let result = self.run(&mut control, reporter);
        let gone = !matches!(
            result,
            Ok(())
                | Err(PerfError::Protocol(ProtocolError::Closed | ProtocolError::ClientTerminated))
        );
        if gone {
            // The client may be gone itself.
            let _ = control.send_state(State::ServerTerminate);
        }
        result
    }

    /// Waits for a connection. `patience` is asked before each is taken, and after each `slice` of
    /// the wait, whether to wait on.
    fn accept(
        &mut self,
        slice: Option<Duration>,
        mut patience: impl FnMut() -> Result<(), ProtocolError>,
    ) -> Result<(TcpStream, SocketAddr), PerfError> {
        let mut ready = Vec::new();
        loop {
            if self.interrupt.is_set() {
                return Err(ProtocolError::Interrupted.into());
            }
            patience()?;
            match self.listener.accept() {
                Ok((socket, from)) => {
                    socket.set_nonblocking(false).map_err(PerfError::Listen)?;
                    return Ok((socket, from));
                }
                Err(error)
                    if is_transient(&error) || error.kind() == io::ErrorKind::ConnectionAborted => {
                }
                Err(error) => return Err(PerfError::Listen(error)),
            }
            self.poller.wait(&mut ready, slice).map_err(PerfError::Listen)?;
        }
    }

    fn run(&mut self, control: &mut Control, reporter: &mut Reporter) -> Result<(), PerfError> {
        let cookie = control.read_cookie()?;
        control.send_state(State::ParamExchange)?;
        let plan = Self::agree(control)?;
        control.send_state(State::CreateStreams)?;
        let mut streams = self.accept_streams(control, &plan, &cookie)?;
        let role = if plan.reverse { Role::Sender } else { Role::Receiver };
        let default_mss = net::info(control.socket()).snd_mss;
        reporter.start(&Start::new(&plan, &cookie, &streams, default_mss)?);
        control.send_state(State::TestStart)?;
        control.send_state(State::TestRunning)?;

        let clock = CpuClock::start();
        let setting = Setting {
            plan: &plan,
            role,
            client: false,
            interval: self.interval,
            interrupt: self.interrupt,
            listener: Some(&self.listener),
        };
        let (seconds, ended) = DataPhase::new(setting, control, &mut streams, reporter)?.run();
        let own = Own::new(role, &streams, seconds, clock.stop());
        if let Err(error) = ended {
            reporter.summary(&Summary::new(&own, None)?);
            return Err(error.into());
        }
        drop(streams);
        control.send_state(State::ExchangeResults)?;
        let peer = control.read_json(MAX_RESULTS)?;
        control.write_json(&own.results())?;
        control.send_state(State::DisplayResults)?;
        reporter.summary(&Summary::new(&own, Some(&peer))?);
        match control.expect_state(State::IperfDone) {
            // A client that has its results may leave without a word.
            Ok(()) | Err(ProtocolError::Closed) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads what the client asks for; refuses with iperf3's number what this server cannot do.
    fn agree(control: &mut Control) -> Result<Plan, PerfError> {
        let asked: Parameters = control.read_json(MAX_PARAMETERS).inspect_err(|error| {
            if matches!(error, ProtocolError::Json(_) | ProtocolError::JsonTooLong { .. }) {
                // Whether the client still listens does not change what is reported here.
                let _ = control.send_error(error_code::RECEIVE_PARAMETERS, 0);
            }
        })?;
        Plan::of(&asked).map_err(|refusal| {
            let _ = control.send_error(refusal.code, 0);
            PerfError::Refused(refusal)
        })
    }

    /// Accepts the streams of a test; whoever comes with another cookie is turned away.
    fn accept_streams(
        &mut self,
        control: &mut Control,
        plan: &Plan,
        cookie: &Cookie,
    ) -> Result<Vec<Stream>, PerfError> {
        let until = Instant::now() + STREAMS_LIMIT;
        let mut streams = Vec::new();
        while streams.len() < plan.streams as usize {
            let (mut socket, _) = self.accept(Some(SLICE), || {
                if Instant::now() >= until {
                    return Err(ProtocolError::Silent);
                }
                match control.try_state()? {
                    None => Ok(()),
                    Some(got) => {
                        Err(ProtocolError::UnexpectedState { expected: State::TestEnd, got })
                    }
                }
            })?;
            let cookie_until = until.min(Instant::now() + COOKIE_LIMIT);
            match Cookie::read(&mut Hurried { socket: &mut socket, until: cookie_until }) {
                Ok(told) if told == *cookie => {}
                Ok(_) => {
                    deny(socket);
                    continue;
                }
                Err(_) => continue,
            }
            if let Err(error) = net::apply(&socket, &plan.socket) {
                let errno =
                    error.raw_os_error().and_then(|errno| errno.try_into().ok()).unwrap_or(0);
                control.send_error(error_code::SET_OPTIONS, errno)?;
                return Err(PerfError::Options(error));
            }
            streams.push(Stream::new(
                stream_id(u32::try_from(streams.len()).unwrap_or(u32::MAX)),
                socket,
            ));
        }
        Ok(streams)
    }
}

/// Reads a socket until a time, however many reads that takes.
struct Hurried<'a> {
    socket: &'a mut TcpStream,
    until: Instant,
}

impl Read for Hurried<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.socket.set_read_timeout(Some(left))?;
        self.socket.read(buf)
    }
}
