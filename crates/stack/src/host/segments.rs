//! TCP input: from a segment to the connection, listener or forwarder that it is for, or the answer
//! that nobody takes it.
//!
//! Cost per segment, or several that GRO joined: a keyed hash and one probe of the demultiplexer.

use super::Host;
use super::demux::Recipient;
use super::forwarder::{Arrival, Fate, Refusal, SynContext};
use super::listener::{Answer, Listener};
use super::remains::Looked;
use super::tcp::TcpSocket;
use crate::device::RxQueue;
use crate::drop_reason::DropReason;
use crate::flow::FourTuple;
use crate::net::Visit;
use crate::net::egress::{CachedRoute, IpOptions};
use crate::stats::IpCounter;
use neap_tcp::counters::Counter;
use neap_tcp::handshake::Accepted;
use neap_tcp::orphan::RemainsVerdict;
use neap_tcp::segment::{Flags, Segment};
use neap_tcp::seq::SeqNumber;
use neap_tcp::time::Instant;
use std::sync::Arc;

/// The connections that got segments in one receive batch; each transmits once, after the batch.
/// Looking for one costs a comparison for each connection before it, at most the budget; nothing is
/// allocated once the batch has seen its largest.
#[derive(Default)]
pub(crate) struct Batch {
    touched: Vec<(Arc<TcpSocket>, Arrival)>,
    /// Those of each touched connection; kept, empty, from batch to batch.
    segments: Vec<Vec<Segment>>,
    /// Those behind the end of their connections; kept, empty, too.
    late: Vec<(FourTuple, Segment, Arrival)>,
}

impl Batch {
    fn push(&mut self, socket: Arc<TcpSocket>, segment: Segment, arrival: Arrival) {
        let known = self.touched.iter().rposition(|(one, _)| Arc::ptr_eq(one, &socket));
        let at = known.unwrap_or_else(|| {
            self.touched.push((socket, arrival));
            self.touched.len() - 1
        });
        if self.segments.len() <= at {
            self.segments.push(Vec::new());
        }
        self.segments[at].push(segment);
    }

    /// Gives the connections their segments.
    ///
    /// A peer may end a connection and open another between the same ends in one batch, by a reset
    /// and a SYN for instance. What comes behind the end of a connection is for whoever is found
    /// then, as if it had come in a batch of its own.
    pub(crate) fn deliver(&mut self, host: &Host, visit: Visit) {
        loop {
            let Self { touched, segments, late, .. } = self;
            for ((socket, arrival), segments) in touched.drain(..).zip(segments) {
                socket.receive(host, visit.now, arrival, segments, late);
            }
            if late.is_empty() {
                return;
            }
            let mut late = core::mem::take(&mut self.late);
            for (tuple, segment, arrival) in late.drain(..) {
                host.dispatch(visit, None, self, &tuple, segment, arrival);
            }
            self.late = late;
        }
    }
}

impl Host {
    pub(crate) fn count_tcp_packet(&self, is_v4: bool) {
        let (received, delivered) = if is_v4 {
            (IpCounter::IpInReceives, IpCounter::IpInDelivers)
        } else {
            (IpCounter::Ip6InReceives, IpCounter::Ip6InDelivers)
        };
        self.net.counters.ip.add(received, 1);
        self.net.counters.ip.add(delivered, 1);
    }

    fn count_drop(&self, reason: DropReason) {
        self.net.counters.drops.count(reason);
    }

    /// Gives a segment, or several that GRO joined, to whom it concerns. A handshake may end with
    /// it, so a listener is told when it was there: by `rx`, or else at the time of the visit.
    pub(crate) fn on_segment(
        &self,
        visit: Visit,
        rx: Option<&dyn RxQueue>,
        batch: &mut Batch,
        tuple: &FourTuple,
        segment: Segment,
        arrival: Arrival,
    ) {
        self.count_tcp_packet(tuple.local.is_ipv4());
        let counters = self.shards[visit.shard].counters();
        counters.add(Counter::InSegs, u64::from(segment.segments()));
        self.dispatch(visit, rx, batch, tuple, segment, arrival);
    }

    /// As [`on_segment`](Self::on_segment), for a segment that is counted already.
    fn dispatch(
        &self,
        mut visit: Visit,
        rx: Option<&dyn RxQueue>,
        batch: &mut Batch,
        tuple: &FourTuple,
        segment: Segment,
        arrival: Arrival,
    ) {
        match self.demux.lookup(tuple) {
            Recipient::Connection(socket) => {
                if socket.cell.list().shard() != visit.shard {
                    self.net.counters.ip.add(IpCounter::CrossShard, 1);
                }
                batch.push(socket, segment, arrival);
            }
            Recipient::Remains => self.on_remains(visit, batch, tuple, segment, arrival),
            Recipient::Listener(listener) => {
                visit.now = rx.map_or(visit.now, |rx| rx.arrival(visit.now));
                self.on_listener(visit, batch, &listener, tuple, segment, (None, arrival));
            }
            Recipient::Nobody => self.on_stray(visit, tuple, &segment, None, arrival),
        }
    }

    /// A segment that no socket takes: a forwarder does, or its sender is told. `iss` is the
    /// initial sequence number to use if the flow was in TIME_WAIT until now.
    fn on_stray(
        &self,
        visit: Visit,
        tuple: &FourTuple,
        segment: &Segment,
        iss: Option<SeqNumber>,
        arrival: Arrival,
    ) {
        let cx = SynContext {
            now: visit.now,
            shard: visit.shard,
            key: self.flow_key,
            arrival,
            iss,
            is_connected: &|tuple| self.demux.connection(tuple).is_some(),
        };
        let (fate, due) = self.forwarders.on_segment(&cx, tuple, segment);
        match fate {
            Fate::Taken => self.net.housekeeping.schedule(due),
            Fate::TookPlace => {
                self.count_drop(DropReason::PendingFull);
                self.net.housekeeping.schedule(due);
            }
            Fate::Refused(Refusal::Full) => self.count_drop(DropReason::PendingFull),
            Fate::Refused(Refusal::FullForSource) => self.count_drop(DropReason::PendingSource),
            Fate::Nobody => {
                let is_foreign = self.net.topology.is_foreign(tuple.local);
                let reason =
                    if is_foreign { DropReason::NoSocketForeign } else { DropReason::NoSocket };
                self.count_drop(reason);
                self.send_reset(visit, tuple, segment);
            }
        }
    }

    /// A segment of a connection of which little is left.
    fn on_remains(
        &self,
        visit: Visit,
        batch: &mut Batch,
        tuple: &FourTuple,
        segment: Segment,
        arrival: Arrival,
    ) {
        let is_wanted = || {
            self.demux.listener(tuple.local_addr()).is_some()
                || self.forwarders.takes(&arrival, tuple)
        };
        let may_reopen = segment.flags.contains(Flags::SYN) && is_wanted();
        let looked = self.demux.with_remains(tuple, |remains| {
            let was_waiting = remains.is_time_wait();
            let verdict = remains.on_segment(visit.now, &segment, may_reopen);
            let is_removed = matches!(
                verdict,
                RemainsVerdict::Reopen { .. } | RemainsVerdict::Remove | RemainsVerdict::Reset(_)
            );
            ((verdict, !was_waiting && remains.is_time_wait()), is_removed)
        });
        let Some(Looked { answer: (verdict, is_new), options, due, is_over }) = looked else {
            return;
        };
        let counters = self.shards[visit.shard].counters();
        counters.add(Counter::TimeWaited, u64::from(is_new));
        self.net.housekeeping.schedule(due);
        if is_over {
            self.on_connection_end();
        }
        match verdict {
            RemainsVerdict::Drop | RemainsVerdict::Remove => {}
            RemainsVerdict::Send(answer) => self.send_orphan(visit, tuple, options, answer),
            RemainsVerdict::Reset(reset) => {
                counters.add(Counter::AbortOnData, 1);
                self.send_orphan(visit, tuple, options, reset);
            }
            RemainsVerdict::Reopen { iss } => match self.demux.listener(tuple.local_addr()) {
                Some(listener) => {
                    let how = (Some(iss), arrival);
                    self.on_listener(visit, batch, &listener, tuple, segment, how);
                }
                None => self.on_stray(visit, tuple, &segment, Some(iss), arrival),
            },
        }
    }

    /// Does what is due for connections of which little is left; when to come back. FINs are sent
    /// again, and orphans that are too many are reset.
    pub(crate) fn expire_remains(&self, visit: Visit) -> Instant {
        let counters = self.shards[visit.shard].counters();
        let mut answers = Vec::new();
        let mut has_ended = false;
        let next = self.demux.expire_remains(visit.now, |tuple, options, remains| {
            if remains.is_orphan() && self.memory().has_too_many_orphans(0) {
                counters.add(Counter::AbortOnMemory, 1);
                answers.push((*tuple, options, remains.reset(visit.now)));
                has_ended = true;
                return true;
            }
            match remains.on_deadline(visit.now) {
                RemainsVerdict::Send(fin) => {
                    counters.add(Counter::Timeouts, 1);
                    answers.push((*tuple, options, fin));
                    false
                }
                RemainsVerdict::Remove => {
                    counters.add(Counter::AbortOnTimeout, u64::from(remains.is_orphan()));
                    has_ended = true;
                    true
                }
                _ => false,
            }
        });
        for (tuple, options, answer) in answers {
            self.send_orphan(visit, &tuple, options, answer);
        }
        if has_ended {
            self.on_connection_end();
        }
        next
    }

    /// A segment of no connection to a listener, with how it arrived, and the initial sequence
    /// number to use if the flow was in TIME_WAIT until now.
    fn on_listener(
        &self,
        visit: Visit,
        batch: &mut Batch,
        listener: &Listener,
        tuple: &FourTuple,
        segment: Segment,
        (iss, arrival): (Option<SeqNumber>, Arrival),
    ) {
        let is_foreign = self.net.topology.is_foreign(tuple.local);
        let mut route = CachedRoute::new(is_foreign);
        let Some(way) = route.refresh(&self.net, visit.now, tuple) else {
            return self.count_drop(DropReason::NoRoute);
        };
        let cx = self.listen_context(visit, way.mtu);
        let answer = listener.on_segment(&cx, tuple, &segment, iss);
        // Another shard may have made the connection since the look for one.
        if matches!(answer, Answer::NoHandshake | Answer::Reset)
            && let Some(socket) = self.demux.connection(tuple)
        {
            return batch.push(socket, segment, arrival);
        }
        match answer {
            Answer::Ignore => {}
            Answer::Full => self.count_drop(DropReason::ListenerFull),
            Answer::NoHandshake => self.count_drop(DropReason::ListenerState),
            Answer::Send(answer) => {
                let options = listener.ip_options(tuple.local, is_foreign);
                self.send_orphan(visit, tuple, options, answer);
            }
            Answer::Repeat(synack) => {
                let options = listener.ip_options(tuple.local, is_foreign);
                self.repeat_syn_ack(visit, tuple, options, synack);
            }
            Answer::Reset => self.send_reset(visit, tuple, &segment),
            Answer::Establish(accepted) => {
                if let Some(socket) = self.establish(visit, listener, tuple, accepted, route) {
                    batch.push(socket, segment, arrival);
                }
            }
        }
    }

    /// Makes the connection that a listener's handshake led to; `None` if there can be none, or the
    /// listener was closed meanwhile.
    fn establish(
        &self,
        visit: Visit,
        listener: &Listener,
        tuple: &FourTuple,
        accepted: Accepted,
        route: CachedRoute,
    ) -> Option<Arc<TcpSocket>> {
        let Ok(socket) = self.accept_connection(visit, *tuple, accepted, listener, route) else {
            listener.forget_arriving(tuple);
            self.shards[visit.shard].counters().add(Counter::ListenDrops, 1);
            self.net.counters.drops.count(DropReason::ListenerFull);
            return None;
        };
        if !listener.push(socket.clone()) {
            socket.abandon(self, visit.now);
            return None;
        }
        Some(socket)
    }

    /// Answers a segment that belongs to no connection (RFC 9293 section 3.10.7.1), from the
    /// address that it was for, which may be a foreign one.
    ///
    /// As in Linux no limit holds resets back: one is no larger than what it answers, nothing
    /// answers it, and a limit that strangers use up would hide the refusals that others wait for.
    pub(crate) fn send_reset(&self, visit: Visit, tuple: &FourTuple, segment: &Segment) {
        if segment.flags.contains(Flags::RST) {
            return;
        }
        let answer = if segment.flags.contains(Flags::ACK) {
            Segment { seq: segment.ack, flags: Flags::RST, ..Segment::default() }
        } else {
            let flags = Flags::RST | Flags::ACK;
            Segment { ack: segment.end_seq(), flags, ..Segment::default() }
        };
        let options = IpOptions { is_transparent: true, ..IpOptions::default() };
        self.send_orphan(visit, tuple, options, answer);
    }

    /// Does what is due for the half-open connections of a listener.
    pub(crate) fn expire_requests(&self, visit: Visit, listener: &Listener) {
        let config = self.config();
        let expired = listener.on_deadline(visit.now, self.flow_key, &config, |tuple, segment| {
            let is_foreign = self.net.topology.is_foreign(tuple.local);
            let options = listener.ip_options(tuple.local, is_foreign);
            self.repeat_syn_ack(visit, tuple, options, segment);
        });
        self.shards[visit.shard].counters().add(Counter::Timeouts, expired);
    }

    /// Sends the SYN-ACK of a half-open connection again. As in Linux it counts as a segment that
    /// was sent too (`tcp_make_synack`, `tcp_rtx_synack`).
    fn repeat_syn_ack(
        &self,
        visit: Visit,
        tuple: &FourTuple,
        options: IpOptions,
        segment: Segment,
    ) {
        let counters = self.shards[visit.shard].counters();
        counters.add(Counter::OutSegs, 1);
        counters.add(Counter::RetransSegs, 1);
        counters.add(Counter::SynRetrans, 1);
        self.send_counted(visit, tuple, options, segment);
    }

    /// Sends a segment that no connection sends: SYN-ACK, reset, or what the remains of one send. A
    /// FIN among them is one that is sent again.
    pub(crate) fn send_orphan(
        &self,
        visit: Visit,
        tuple: &FourTuple,
        options: IpOptions,
        segment: Segment,
    ) {
        let counters = self.shards[visit.shard].counters();
        let is_again = segment.flags.contains(Flags::FIN);
        counters.add(if is_again { Counter::RetransSegs } else { Counter::OutSegs }, 1);
        if segment.flags.contains(Flags::RST) {
            counters.add(Counter::OutRsts, 1);
        }
        self.send_counted(visit, tuple, options, segment);
    }

    fn send_counted(&self, visit: Visit, tuple: &FourTuple, options: IpOptions, segment: Segment) {
        if let Ok(output) = self.net.send_orphan(visit, tuple, options, segment) {
            self.on_undeliverable(visit, output.undeliverable);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::stack::{ListenOptions, StackConfig};
    use bytes::Bytes;
    use neap_tcp::segment::Payload;

    #[test]
    fn data_that_another_shard_gets_while_a_connection_is_made_does_not_end_it() {
        let host = Host::new(StackConfig::default());
        let own = "127.0.0.1:80".parse().expect("an address");
        let listener = host.listen(own, ListenOptions::default(), None).expect("a free port");
        let visit = Visit::new(Instant::from_nanos(1_000_000_000), 0);
        let arrival = Arrival::default();
        let tuple = FourTuple { remote_port: 5000, ..FourTuple::new(own, own) };
        let cx = host.listen_context(visit, 1500);
        let syn = Segment { flags: Flags::SYN, window: 1000, ..Segment::default() };
        let answer = listener.on_segment(&cx, &tuple, &syn, None);
        let Answer::Send(synack) = answer else { panic!("{answer:?}") };
        let (seq, ack) = (syn.seq + 1, synack.seq + 1);
        let last = Segment { seq, ack, flags: Flags::ACK, window: 1000, ..Segment::default() };
        let data = Segment { payload: Payload::from(Bytes::from_static(b"x")), ..last.clone() };
        let answer = listener.on_segment(&cx, &tuple, &last, None);
        let Answer::Establish(accepted) = answer else { panic!("{answer:?}") };

        let mut batch = Batch::default();
        let mut hears = |segment: &Segment| {
            let how = (None, arrival);
            host.on_listener(visit, &mut batch, &listener, &tuple, segment.clone(), how);
            (batch.touched.len(), host.shards[0].counters().get(Counter::OutRsts))
        };
        assert_eq!(hears(&data), (0, 0), "it is not in the table yet");
        let route = CachedRoute::new(false);
        assert!(host.establish(visit, &listener, &tuple, accepted, route).is_some());
        assert_eq!(hears(&data), (1, 0), "it was found there too late");
    }
}
