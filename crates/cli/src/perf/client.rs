//! The client: asks a server for one test and runs its side of it.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use super::cpu::CpuClock;
use super::interrupt::Interrupt;
use super::net::{self, IpVersion, SocketOptions, Stack};
use super::plan::{Plan, stream_id};
use super::protocol::{Control, Cookie, MAX_RESULTS, ProtocolError, State};
use super::report::{Own, Start, Summary};
use super::streams::{DataError, DataPhase, Role, Setting, Stream};
use super::{PerfError, Reporter};

/// The first address of a host that the stack can reach.
///
/// # Errors
/// The name is unknown, or has no address of a version that the stack has.
pub(crate) fn resolve(
    host: &str,
    port: u16,
    version: Option<IpVersion>,
) -> Result<SocketAddr, PerfError> {
    let unresolved = |reason: String| PerfError::Resolve { host: host.to_owned(), reason };
    let all = match host.parse::<IpAddr>() {
        Ok(addr) => vec![SocketAddr::new(addr, port)],
        Err(_) => {
            (host, port).to_socket_addrs().map_err(|error| unresolved(error.to_string()))?.collect()
        }
    };
    let fits = |addr: &SocketAddr| version.is_none_or(|version| version == IpVersion::of(addr));
    all.into_iter().find(fits).ok_or_else(|| {
        let version = if version == Some(IpVersion::V6) { "IPv6" } else { "IPv4" };
        unresolved(format!("it has no {version} address"))
    })
}

/// Runs one test with the server at `server`.
///
/// # Errors
/// Whatever kept the test from its end; what was measured until then has been reported.
pub(crate) fn run(
    stack: &Stack,
    server: SocketAddr,
    plan: &Plan,
    interval: Option<Duration>,
    reporter: &mut Reporter,
    interrupt: &Interrupt,
) -> Result<(), PerfError> {
    let failed = |source| PerfError::Connect { server, source };
    let connect = || net::connect(stack, server, &SocketOptions::default());
    let socket = interrupt.ends_at_once(connect).map_err(failed)?;
    let default_mss = net::info(&socket).snd_mss;
    let mut control = Control::new(socket, interrupt.clone()).map_err(failed)?;
    let cookie = Cookie::random().map_err(ProtocolError::Io)?;
    control.write_cookie(&cookie)?;
    control.expect_state(State::ParamExchange)?;
    control.write_json(&plan.parameters())?;
    control.expect_state(State::CreateStreams)?;
    let mut streams = Vec::new();
    for index in 0..plan.streams {
        let mut socket = net::connect(stack, server, &plan.socket).map_err(failed)?;
        net::apply(&socket, &plan.socket).map_err(PerfError::OwnOptions)?;
        cookie.write(&mut socket)?;
        streams.push(Stream::new(stream_id(index), socket));
    }
    let role = if plan.reverse { Role::Receiver } else { Role::Sender };
    reporter.start(&Start::new(plan, &cookie, &streams, default_mss)?);
    control.expect_state(State::TestStart)?;
    control.expect_state(State::TestRunning)?;

    let clock = CpuClock::start();
    let setting = Setting { plan, role, client: true, interval, interrupt, listener: None };
    let mut phase = DataPhase::new(setting, &mut control, &mut streams, reporter)?;
    let (seconds, ended) = phase.run();
    let cpu = clock.stop();
    let exchanging = ended.and_then(|()| phase.end_test());
    drop(phase);
    let own = Own::new(role, &streams, seconds, cpu);
    finish(&mut control, &own, exchanging, reporter)
}

/// Exchanges results and reports; after a test that ended early reports what this side knows.
fn finish(
    control: &mut Control,
    own: &Own,
    ended: Result<(), DataError>,
    reporter: &mut Reporter,
) -> Result<(), PerfError> {
    if let Err(error) = ended {
        let interrupted = matches!(error, DataError::Protocol(ProtocolError::Interrupted));
        if interrupted || !matches!(error, DataError::Protocol(_)) {
            // The server may be gone; the error that is reported is the first.
            let _ = control.send_state(State::ClientTerminate);
        }
        reporter.summary(&Summary::new(own, None)?);
        return Err(error.into());
    }
    control.write_json(&own.results())?;
    let peer = control.read_json(MAX_RESULTS)?;
    control.expect_state(State::DisplayResults)?;
    let summary = Summary::new(own, Some(&peer))?;
    control.send_state(State::IperfDone)?;
    reporter.summary(&summary);
    Ok(())
}
