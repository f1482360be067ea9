//! Counters of TCP events, by the names that `nstat` prints.

use crate::lateness::Lateness;
use crate::memory::{Held, HostMemory, Pressure, ShardMemory};
use crate::time::Instant;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)+) => {
        /// Counter of TCP events. Names are those of `nstat`; neap's own begin with `Neap`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        #[non_exhaustive]
        pub enum Counter { $($(#[$doc])* $variant,)+ }

        impl Counter {
            /// All counters, in the order in which they are printed.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Returns the name that `nstat` prints.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }

        impl core::fmt::Display for Counter {
            /// Prints the name.
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

counters! {
    /// Active opens.
    ActiveOpens = "TcpActiveOpens",
    /// Passive opens.
    PassiveOpens = "TcpPassiveOpens",
    /// Opens that failed.
    AttemptFails = "TcpAttemptFails",
    /// Established connections that were reset.
    EstabResets = "TcpEstabResets",
    /// Segments received, super-segments counted by their pieces.
    InSegs = "TcpInSegs",
    /// Segments sent, without retransmissions other than those of a listener's SYN-ACKs.
    OutSegs = "TcpOutSegs",
    /// Segments retransmitted.
    RetransSegs = "TcpRetransSegs",
    /// Segments with a bad checksum or header.
    InErrs = "TcpInErrs",
    /// Resets sent.
    OutRsts = "TcpOutRsts",
    /// Segments with a bad checksum, which are among [`InErrs`](Self::InErrs).
    InCsumErrors = "TcpInCsumErrors",
    /// Data segments sent for the first time.
    OrigDataSent = "TcpExtTCPOrigDataSent",
    /// Segments delivered, retransmissions included.
    Delivered = "TcpExtTCPDelivered",
    /// Segments delivered with an ECN mark.
    DeliveredCE = "TcpExtTCPDeliveredCE",
    /// Retransmission timeouts, TLP and reordering timers excluded.
    Timeouts = "TcpExtTCPTimeouts",
    /// Timeouts found spurious by F-RTO.
    SpuriousRTOs = "TcpExtTCPSpuriousRTOs",
    /// SYN and SYN-ACK segments retransmitted.
    SynRetrans = "TcpExtTCPSynRetrans",
    /// Segments retransmitted in fast recovery.
    FastRetrans = "TcpExtTCPFastRetrans",
    /// Segments retransmitted in slow start after a timeout.
    SlowStartRetrans = "TcpExtTCPSlowStartRetrans",
    /// Retransmissions that were lost.
    LostRetransmit = "TcpExtTCPLostRetransmit",
    /// Recoveries started by SACK or RACK.
    SackRecovery = "TcpExtTCPSackRecovery",
    /// Recoveries started by duplicate ACKs without SACK.
    RenoRecovery = "TcpExtTCPRenoRecovery",
    /// Tail loss probes sent.
    LossProbes = "TcpExtTCPLossProbes",
    /// Losses repaired by a tail loss probe.
    LossProbeRecovery = "TcpExtTCPLossProbeRecovery",
    /// Window reductions undone in full.
    FullUndo = "TcpExtTCPFullUndo",
    /// Window reductions undone on a partial ACK.
    PartialUndo = "TcpExtTCPPartialUndo",
    /// Window reductions undone because DSACK named every retransmission.
    DSACKUndo = "TcpExtTCPDSACKUndo",
    /// Loss state left because the timeout was spurious.
    LossUndo = "TcpExtTCPLossUndo",
    /// DSACK blocks received for a range below una.
    DSACKRecv = "TcpExtTCPDSACKRecv",
    /// DSACK blocks received for a range above una.
    DSACKOfoRecv = "TcpExtTCPDSACKOfoRecv",
    /// DSACK blocks that name what cannot have been sent, or more than was sent twice.
    DSACKIgnoredDubious = "TcpExtTCPDSACKIgnoredDubious",
    /// DSACK blocks sent for old data.
    DSACKOldSent = "TcpExtTCPDSACKOldSent",
    /// DSACK blocks sent for out-of-order data.
    DSACKOfoSent = "TcpExtTCPDSACKOfoSent",
    /// SACK blocks that made no sense.
    SACKDiscard = "TcpExtTCPSACKDiscard",
    /// SACKed data was given up by the receiver.
    SACKReneging = "TcpExtTCPSACKReneging",
    /// Reordering seen by SACK.
    SACKReorder = "TcpExtTCPSACKReorder",
    /// Reordering seen by timestamps: a hole was filled by the original segment.
    TSReorder = "TcpExtTCPTSReorder",
    /// Reordering seen by duplicate ACKs, without SACK.
    RenoReorder = "TcpExtTCPRenoReorder",
    /// ACKs that were delayed and then sent by the timer.
    DelayedACKs = "TcpExtDelayedACKs",
    /// Probes of an idle peer sent.
    KeepAlive = "TcpExtTCPKeepAlive",
    /// Probes of a closed window sent, those with data excluded.
    WinProbe = "TcpExtTCPWinProbe",
    /// Connections aborted by user timeout, keepalive or too many retransmissions.
    AbortOnTimeout = "TcpExtTCPAbortOnTimeout",
    /// Connections reset because data arrived after close, or closed with a linger time of 0.
    AbortOnData = "TcpExtTCPAbortOnData",
    /// Connections reset because of unread data at close.
    AbortOnClose = "TcpExtTCPAbortOnClose",
    /// Connections without an application that were reset because there were too many, or because
    /// memory ran out.
    AbortOnMemory = "TcpExtTCPAbortOnMemory",
    /// Segments refused by PAWS on an established connection.
    PAWSEstab = "TcpExtPAWSEstab",
    /// Pure ACKs with a timestamp from the past that lie before the window. They need no answer.
    PAWSOldAck = "TcpExtPAWSOldAck",
    /// SYN-ACKs and resets that echo a timestamp which the SYN cannot have carried.
    PAWSActive = "TcpExtPAWSActive",
    /// Segments dropped because they have none of ACK, RST and SYN.
    NoControlFlag = "NeapTCPNoControlFlag",
    /// SYN segments answered with a challenge ACK.
    SYNChallenge = "TcpExtTCPSYNChallenge",
    /// Challenge ACKs sent.
    ChallengeACK = "TcpExtTCPChallengeACK",
    /// Challenge ACKs that the rate limit held back.
    ACKSkipped = "TcpExtTCPACKSkippedChallenge",
    /// Answers to segments with a timestamp from the past that the rate limit held back.
    ACKSkippedPAWS = "TcpExtTCPACKSkippedPAWS",
    /// Answers to segments outside the window that the rate limit held back.
    ACKSkippedSeq = "TcpExtTCPACKSkippedSeq",
    /// SYN cookies sent.
    SyncookiesSent = "TcpExtSyncookiesSent",
    /// SYN cookies that came back right.
    SyncookiesRecv = "TcpExtSyncookiesRecv",
    /// SYN cookies that came back wrong.
    SyncookiesFailed = "TcpExtSyncookiesFailed",
    /// SYN or final ACK refused because the accept queue is full.
    ListenOverflows = "TcpExtListenOverflows",
    /// SYNs dropped by a listener.
    ListenDrops = "TcpExtListenDrops",
    /// Connections that ended in TIME_WAIT.
    TimeWaited = "TcpExtTW",
    /// Connections in TIME-WAIT in whose place this host has opened another (`tcp_tw_reuse`).
    TimeWaitRecycled = "TcpExtTWRecycled",
    /// Connections in TIME-WAIT or FIN-WAIT-2 that were forgotten for want of room
    /// (`tcp_max_tw_buckets`).
    TimeWaitOverflow = "TcpExtTCPTimeWaitOverflow",
    /// Times that the memory of all connections came above the second bound of `tcp_mem`.
    MemoryPressures = "TcpExtTCPMemoryPressures",
    /// Milliseconds that the host was under pressure, counted when the pressure ends.
    MemoryPressuresChrono = "TcpExtTCPMemoryPressuresChrono",
    /// Segments that found the receive buffer full, or the memory of the host used up, so that data
    /// was collapsed or pruned.
    PruneCalled = "TcpExtPruneCalled",
    /// Segments that found no room even so.
    RcvPruned = "TcpExtRcvPruned",
    /// Slices of received data that were copied together to save memory.
    RcvCollapsed = "TcpExtTCPRcvCollapsed",
    /// Segments queued out of order.
    OFOQueue = "TcpExtTCPOFOQueue",
    /// Segments dropped because the out-of-order queue was full.
    OFODrop = "TcpExtTCPOFODrop",
    /// Times that out-of-order data was given up to save memory.
    OfoPruned = "TcpExtOfoPruned",
    /// Segments in order that were dropped since the memory of the host was used up.
    RcvQDrop = "TcpExtTCPRcvQDrop",
    /// Segments dropped because they lay outside the window.
    OutOfWindow = "NeapTCPOutOfWindow",
    /// Segments dropped because the owned socket's backlog was full.
    BacklogDrop = "TcpExtTCPBacklogDrop",
    /// Pushes held back because data was still below TCP.
    AutoCorking = "TcpExtTCPAutoCorking",
    /// Retransmissions held back because the original was still below TCP.
    SpuriousRtxHostQueues = "TcpExtTCPSpuriousRtxHostQueues",
    /// Retransmissions that a qdisc or device refused.
    RetransFail = "TcpExtTCPRetransFail",
    /// Cuts of waiting or sent frames that were not made because frames are too fine for the send
    /// buffer.
    WqueueTooBig = "TcpExtTCPWqueueTooBig",
    /// Flows that HyStart took out of slow start because of a train of ACKs.
    HystartTrainDetect = "TcpExtTCPHystartTrainDetect",
    /// Sum of the windows, in segments, at which a train of ACKs ended slow start.
    HystartTrainCwnd = "TcpExtTCPHystartTrainCwnd",
    /// Flows that HyStart or HyStart++ took out of slow start because of rising delay.
    HystartDelayDetect = "TcpExtTCPHystartDelayDetect",
    /// Sum of the windows, in segments, at which rising delay ended slow start.
    HystartDelayCwnd = "TcpExtTCPHystartDelayCwnd",
    /// Transmissions that stopped at the small-queue limit.
    SmallQueueThrottled = "NeapTCPSmallQueueThrottled",
    /// Transmissions that stopped at the pacing gate.
    PacingBlocked = "NeapTCPPacingBlocked",
    /// Super-segments whose sending was deferred to let them grow.
    TsoDeferred = "NeapTCPTsoDeferred",
    /// Segments refused by the local qdisc, each of which entered CWR.
    LocalCongestion = "NeapTCPLocalCongestion",
    /// Events that were left to the thread that owned the socket.
    Deferred = "NeapTCPDeferred",
    /// Expirations of the deadline at which a connection's held frame may depart: one for each
    /// frame that pacing held back until then. Linux has a timer of its own for each.
    PacingTimers = "NeapTCPPacingTimers",
    /// Expirations of a shard's timing wheel: all deadlines that are served together count once,
    /// whether something else called for that poll too or not.
    WheelTimers = "NeapWheelTimers",
    /// Polls of a shard that only a timer called for: no packet had come, no frame was completed,
    /// nobody had asked.
    TimerWakeups = "NeapTimerWakeups",
}

/// Set of counters that the connections of one shard share.
///
/// Adding is one relaxed atomic operation.
#[derive(Debug)]
pub struct Counters {
    values: [AtomicU64; Counter::ALL.len()],
    /// Lateness of frames that a connection held until they were due.
    pub lateness: Lateness,
    /// Memory that the connections have taken.
    pub memory: ShardMemory,
}

impl Default for Counters {
    /// Returns counters of a host whose memory has no bounds.
    fn default() -> Self {
        Self::of_host(Arc::default())
    }
}

impl Counters {
    /// Returns the counters of a shard of the host that has this memory.
    pub fn of_host(memory: Arc<HostMemory>) -> Self {
        let values = core::array::from_fn(|_| AtomicU64::new(0));
        Self { values, lateness: Lateness::default(), memory: ShardMemory::new(memory) }
    }

    /// Adds `n` to a counter.
    pub fn add(&self, counter: Counter, n: u64) {
        self.values[counter as usize].fetch_add(n, Relaxed);
    }

    /// Makes the pages of a queue those of `bytes`, and counts pressure that begins or ends.
    pub(crate) fn settle_memory(&self, now: Instant, held: &mut Held, bytes: u32) {
        match self.memory.settle(now, held, bytes) {
            Pressure::Unchanged => {}
            Pressure::Began => self.add(Counter::MemoryPressures, 1),
            Pressure::Ended(lasted) => {
                self.add(Counter::MemoryPressuresChrono, lasted.as_millis().max(1));
            }
        }
    }

    /// Gives the pages of a queue back.
    pub(crate) fn release_memory(&self, held: &mut Held) {
        self.memory.release(held);
    }

    /// Returns the current value of a counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.values[counter as usize].load(Relaxed)
    }

    /// Returns every counter with its value.
    pub fn iter(&self) -> impl Iterator<Item = (Counter, u64)> + '_ {
        Counter::ALL.iter().map(|&counter| (counter, self.get(counter)))
    }
}
