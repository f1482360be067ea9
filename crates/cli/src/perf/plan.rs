//! A test as both ends have agreed on it: checked once, where it enters.

use std::time::Duration;

use super::net::SocketOptions;
use super::protocol::{
    MAX_BLOCK, MAX_MSS, MAX_OMIT, MAX_STREAMS, MAX_TIME, MAX_WINDOW, Parameters, error_code,
};

/// Bytes per write and read unless told otherwise, as in iperf3.
pub(crate) const DEFAULT_BLOCK: u32 = 128 << 10;
/// Seconds of a test unless told otherwise, as in iperf3.
pub(crate) const DEFAULT_TIME: u32 = 10;

/// What ends a test; the client watches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    Time(Duration),
    /// Bytes of all streams together.
    Bytes(u64),
    /// Blocks of all streams together, each of [`Plan::block`] bytes.
    Blocks(u64),
}

/// One test.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Parallel streams, 1 to [`MAX_STREAMS`].
    pub streams: u32,
    /// The server sends.
    pub reverse: bool,
    /// Not counted at the start.
    pub omit: Duration,
    pub until: Until,
    /// Bytes of one write.
    pub block: u32,
    pub socket: SocketOptions,
}

/// Why a server does not run the test a client asks for.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub(crate) struct Refusal {
    /// iperf3's number, for the client.
    pub code: u32,
    pub reason: &'static str,
}

fn refuse<T>(code: u32, reason: &'static str) -> Result<T, Refusal> {
    Err(Refusal { code, reason })
}

fn within(value: u64, limit: u32, code: u32, reason: &'static str) -> Result<u32, Refusal> {
    match u32::try_from(value) {
        Ok(value) if value <= limit => Ok(value),
        _ => refuse(code, reason),
    }
}

impl Plan {
    /// Checks what a client asks for.
    pub(crate) fn of(asked: &Parameters) -> Result<Self, Refusal> {
        if asked.udp || asked.sctp || !asked.tcp {
            return refuse(
                error_code::NOT_IMPLEMENTED,
                "the client asks for UDP or SCTP; only TCP is supported",
            );
        }
        if asked.bidirectional {
            return refuse(
                error_code::NOT_IMPLEMENTED,
                "the client asks for both directions at once (--bidir)",
            );
        }
        if asked.reverse && asked.bandwidth != 0 {
            return refuse(
                error_code::NOT_IMPLEMENTED,
                "the client asks for a limited rate (-b) from the server",
            );
        }
        if asked.reverse && (asked.tos != 0 || asked.flowlabel != 0) {
            return refuse(
                error_code::NOT_IMPLEMENTED,
                "the client asks for marked packets (-S, --dscp, -L) from the server",
            );
        }
        let streams =
            within(asked.parallel, MAX_STREAMS, error_code::STREAMS, "too many parallel streams")?
                .max(1);
        let block =
            within(asked.len, MAX_BLOCK, error_code::BLOCK_SIZE, "the block size is out of range")?;
        let omit =
            within(asked.omit, MAX_OMIT, error_code::OMIT, "the omitted time is out of range")?;
        let time =
            within(asked.time, MAX_TIME, error_code::DURATION, "the duration is out of range")?;
        let window = within(
            asked.window,
            MAX_WINDOW,
            error_code::BUFFER_SIZE,
            "the socket buffer is out of range",
        )?;
        let mss = within(asked.mss, MAX_MSS, error_code::MSS, "the MSS is out of range")?;
        let until = match (asked.num, asked.blockcount, time) {
            (0, 0, time) => Until::Time(Duration::from_secs(time.into())),
            (bytes, 0, 0) => Until::Bytes(bytes),
            (0, blocks, 0) => Until::Blocks(blocks),
            _ => {
                return refuse(
                    error_code::END_CONDITIONS,
                    "more than one of time, bytes and blocks",
                );
            }
        };
        Ok(Self {
            streams,
            reverse: asked.reverse,
            omit: Duration::from_secs(omit.into()),
            until,
            block: if block == 0 { DEFAULT_BLOCK } else { block },
            socket: SocketOptions {
                nodelay: asked.nodelay,
                congestion: asked.congestion.clone(),
                max_segment: (mss > 0).then_some(mss),
                buffer_size: (window > 0).then_some(window as usize),
                fq_rate: (asked.fqrate > 0).then_some(asked.fqrate),
                notsent_lowat: None,
            },
        })
    }

    /// What the client tells the server.
    pub(crate) fn parameters(&self) -> Parameters {
        let (time, num, blockcount) = match self.until {
            Until::Time(time) => (time.as_secs(), 0, 0),
            Until::Bytes(bytes) => (0, bytes, 0),
            Until::Blocks(blocks) => (0, 0, blocks),
        };
        Parameters {
            tcp: true,
            omit: self.omit.as_secs(),
            time,
            num,
            blockcount,
            mss: self.socket.max_segment.unwrap_or(0).into(),
            nodelay: self.socket.nodelay,
            parallel: self.streams.into(),
            reverse: self.reverse,
            window: self.socket.buffer_size.unwrap_or(0) as u64,
            fqrate: self.socket.fq_rate.unwrap_or(0),
            len: self.block.into(),
            congestion: self.socket.congestion.clone(),
            client_version: env!("CARGO_PKG_VERSION").to_owned(),
            ..Parameters::default()
        }
    }

    /// Bytes of all streams after which the test is over.
    pub(crate) fn byte_limit(&self) -> Option<u64> {
        match self.until {
            Until::Time(_) => None,
            Until::Bytes(bytes) => Some(bytes),
            Until::Blocks(blocks) => Some(blocks.saturating_mul(self.block.into())),
        }
    }

    /// Time after the omitted start when the test is over.
    pub(crate) fn time_limit(&self) -> Option<Duration> {
        match self.until {
            Until::Time(time) => Some(time),
            Until::Bytes(_) | Until::Blocks(_) => None,
        }
    }
}

/// The number of a stream as both ends count: 1, 3, 4, 5, ... (the protocol's own habit).
pub(crate) fn stream_id(index: u32) -> u32 {
    if index == 0 { 1 } else { index + 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Parameters {
        Parameters { tcp: true, time: 10, parallel: 1, len: 131_072, ..Parameters::default() }
    }

    #[test]
    fn a_plan_survives_being_asked_for() {
        for (until, limit) in [
            (Until::Time(Duration::from_secs(7)), None),
            (Until::Bytes(u64::MAX), Some(u64::MAX)),
            (Until::Blocks(3), Some(3000)),
        ] {
            let plan = Plan {
                streams: 128,
                reverse: true,
                omit: Duration::from_secs(2),
                until,
                block: 1000,
                socket: SocketOptions {
                    nodelay: true,
                    congestion: Some("cubic".to_owned()),
                    max_segment: Some(1400),
                    buffer_size: Some(1 << 20),
                    fq_rate: Some(48_000_000),
                    notsent_lowat: None,
                },
            };
            let again = Plan::of(&plan.parameters()).unwrap();
            assert_eq!(again.until, until);
            assert_eq!(again.byte_limit(), limit);
            assert_eq!((again.streams, again.reverse, again.block), (128, true, 1000));
            assert_eq!(again.omit, plan.omit);
            assert_eq!(again.socket, plan.socket);
        }
    }

    #[test]
    fn what_is_out_of_range_is_refused_with_iperf3s_number() {
        let big = u64::MAX;
        let cases = [
            (Parameters { tcp: false, udp: true, ..asked() }, error_code::NOT_IMPLEMENTED),
            (Parameters { bidirectional: true, ..asked() }, error_code::NOT_IMPLEMENTED),
            (Parameters { reverse: true, bandwidth: 1, ..asked() }, error_code::NOT_IMPLEMENTED),
            (Parameters { reverse: true, tos: 0xb8, ..asked() }, error_code::NOT_IMPLEMENTED),
            (Parameters { reverse: true, flowlabel: 1, ..asked() }, error_code::NOT_IMPLEMENTED),
            (Parameters { parallel: 129, ..asked() }, error_code::STREAMS),
            (Parameters { len: big, ..asked() }, error_code::BLOCK_SIZE),
            (Parameters { omit: 601, ..asked() }, error_code::OMIT),
            (Parameters { time: big, ..asked() }, error_code::DURATION),
            (Parameters { window: big, ..asked() }, error_code::BUFFER_SIZE),
            (Parameters { mss: 65_536, ..asked() }, error_code::MSS),
            (Parameters { num: 1, ..asked() }, error_code::END_CONDITIONS),
            (Parameters { num: 1, blockcount: 1, time: 0, ..asked() }, error_code::END_CONDITIONS),
        ];
        for (asked, code) in cases {
            assert_eq!(Plan::of(&asked).unwrap_err().code, code, "{asked:?}");
        }
    }

    #[test]
    fn streams_count_as_iperf3_does() {
        assert_eq!((0..4).map(stream_id).collect::<Vec<_>>(), [1, 3, 4, 5]);
    }
}
