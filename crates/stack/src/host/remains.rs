//! What is left of connections: TIME-WAIT, FIN-WAIT-2 without an application, and orphans whose FIN
//! nobody acknowledges.
//!
//! Cost: about 130 bytes for each, and 50 more while a timer of the wheel is set for it. A look is
//! one probe, a timer is O(1). The number in TIME-WAIT and FIN-WAIT-2 is bounded by
//! `tcp_max_tw_buckets`, that of orphans by `tcp_max_orphans`: a connection is reset in its stead
//! before it gets here.

use super::listed::BucketInfo;
use super::ports::Claim;
use crate::flow::{FlowKey, FourTuple};
use crate::net::egress::IpOptions;
use crate::wheel::Wheel;
use hashbrown::HashTable;
use neap_tcp::counters::{Counter, Counters};
use neap_tcp::info::{Timer, TimerKind};
use neap_tcp::memory::HostMemory;
use neap_tcp::orphan::Remains;
use neap_tcp::time::{Instant, Nanos};
use neap_tcp::time_wait::Heritage;
use slab::Slab;
use std::collections::VecDeque;
use std::sync::Arc;

/// Timers of one call; the rest has another turn, so that no driver is held for long.
const BATCH: usize = 256;

/// Granularity of the timers of orphans.
const TICK: Nanos = Nanos::from_millis(1);

#[derive(Debug)]
struct Entry {
    tuple: FourTuple,
    remains: Remains,
    serial: u32,
    /// Options of answers: they stay in the band of the socket (`tw_priority`).
    options: IpOptions,
    /// How the socket had its port (`tw_reuse`, `tw_connect_bind`).
    claim: Claim,
}

/// When a connection that this host opens may take the place of one in TIME-WAIT.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reuse {
    /// `net.ipv4.tcp_tw_reuse`
    pub(crate) mode: u8,
    /// `net.ipv4.tcp_tw_reuse_delay`
    pub(crate) delay: Nanos,
}

impl Reuse {
    /// The time after which `connect` may choose the port of `remains` (`tcp_twsk_unique`);
    /// [`Instant::FAR_FUTURE`] is never.
    fn from(self, tuple: &FourTuple, remains: &Remains) -> Instant {
        let is_on = match self.mode {
            0 => false,
            1 => true,
            _ => tuple.local.is_loopback() || tuple.remote.is_loopback(),
        };
        match remains {
            Remains::TimeWait(rest) if is_on && !rest.waits_for_fin() => {
                rest.heritage().map_or(Instant::FAR_FUTURE, |_| rest.since() + self.delay)
            }
            _ => Instant::FAR_FUTURE,
        }
    }
}

/// Remains of connections by flow.
pub(crate) struct RemainsTable {
    key: FlowKey,
    by_flow: HashTable<u32>,
    entries: Slab<Entry>,
    /// Those in TIME-WAIT in the order of their deadlines, since all last equally long; one that
    /// was restarted moves to the end when its turn comes. A serial number tells an entry from a
    /// later one in the same place.
    expiry: VecDeque<(Instant, u32, u32)>,
    /// Timers of the others, by place and serial number.
    timers: Option<Box<Wheel>>,
    /// Timers that have expired and were not looked at.
    due: Vec<u64>,
    next_serial: u32,
    orphans: usize,
    /// `net.ipv4.tcp_max_tw_buckets`.
    most_waiting: usize,
    /// Their memory counts orphans.
    counters: Arc<Counters>,
    reuse: Reuse,
}

/// Result of a look at one entry.
pub(crate) struct Looked<R> {
    pub(crate) answer: R,
    /// Options of answers.
    pub(crate) options: IpOptions,
    /// When its next timer is due.
    pub(crate) due: Instant,
    /// The connection does not count as open any more: the entry is gone, or its FIN was
    /// acknowledged.
    pub(crate) is_over: bool,
}

impl RemainsTable {
    /// A table without room in TIME-WAIT; see [`set_most_waiting`](Self::set_most_waiting).
    pub(crate) fn new(key: FlowKey, counters: Arc<Counters>) -> Self {
        Self {
            key,
            by_flow: HashTable::new(),
            entries: Slab::new(),
            expiry: VecDeque::new(),
            timers: None,
            due: Vec::new(),
            next_serial: 0,
            orphans: 0,
            most_waiting: 0,
            counters,
            reuse: Reuse::default(),
        }
    }

    /// Goes by these settings from now on.
    pub(crate) fn set_reuse(&mut self, reuse: Reuse) {
        self.reuse = reuse;
    }

    /// The time after which `connect` may choose the port of the entry in a place;
    /// [`Instant::FAR_FUTURE`] is never.
    pub(crate) fn reusable_after(&self, slot: u32) -> Instant {
        let Entry { tuple, remains, .. } = &self.entries[slot as usize];
        self.reuse.from(tuple, remains)
    }

    /// What a connection in the place of an entry begins with; `None` if there can be none.
    pub(crate) fn heritage(&self, slot: u32) -> Option<Heritage> {
        self.entries[slot as usize].remains.heritage()
    }

    /// Keeps at most so many in TIME-WAIT and FIN-WAIT-2 when the next one comes.
    pub(crate) fn set_most_waiting(&mut self, most: usize) {
        self.most_waiting = most;
    }

    /// Connections in TIME-WAIT and FIN-WAIT-2.
    pub(crate) fn waiting(&self) -> usize {
        self.entries.len() - self.orphans
    }

    /// Connections whose FIN is not acknowledged.
    pub(crate) fn orphans(&self) -> usize {
        self.orphans
    }

    /// What a listing says of all.
    pub(crate) fn listed(&self, now: Instant) -> Vec<BucketInfo> {
        let entries = self.entries.iter().map(|(_, Entry { tuple, remains, .. })| {
            let kind =
                if remains.is_orphan() { TimerKind::Retransmit } else { TimerKind::TimeWait };
            BucketInfo {
                local: tuple.local_name(),
                remote: tuple.remote_addr(),
                state: remains.state(),
                timer: Some(Timer::new(kind, remains.deadline().since(now), 0)),
            }
        });
        entries.collect()
    }

    /// The memory of the host, which counts all orphans.
    pub(crate) fn memory(&self) -> &HostMemory {
        self.counters.memory.host()
    }

    /// The place of what remains of this flow.
    pub(crate) fn find(&self, hash: u64, tuple: &FourTuple) -> Option<u32> {
        let is_it = |&slot: &u32| self.entries[slot as usize].tuple == *tuple;
        self.by_flow.find(hash, is_it).copied()
    }

    /// Adds what remains of a flow that is not here, and how its socket had the port. Beyond the
    /// bound the oldest entry in TIME-WAIT goes, and `gone` gets the same of it. Whether it was
    /// added.
    pub(crate) fn insert(
        &mut self,
        (tuple, claim): (FourTuple, Claim),
        remains: Remains,
        options: IpOptions,
        gone: &mut impl FnMut(&FourTuple, Claim),
    ) -> bool {
        if !remains.is_orphan() && !self.make_room(1, gone) {
            return false;
        }
        self.next_serial = self.next_serial.wrapping_add(1);
        let serial = self.next_serial;
        let entry = Entry { tuple, remains, serial, options, claim };
        let slot = self.entries.insert(entry) as u32;
        if remains.is_orphan() {
            self.count_orphan();
        }
        let Self { by_flow, entries, key, .. } = self;
        by_flow
            .insert_unique(key.hash(&tuple), slot, |&slot| key.hash(&entries[slot as usize].tuple));
        self.file(slot);
        true
    }

    /// Lets `f` look at the entry in a place. With `(.., true)` the entry is removed, and `gone`
    /// gets its flow, as those of entries that have to give way. That is the entry itself if it was
    /// an orphan and nobody else can go.
    pub(crate) fn look<R>(
        &mut self,
        slot: u32,
        f: impl FnOnce(&mut Remains) -> (R, bool),
        gone: &mut impl FnMut(&FourTuple, Claim),
    ) -> Looked<R> {
        let entry = &mut self.entries[slot as usize];
        let (before, options) = (entry.remains, entry.options);
        let (answer, is_gone) = f(&mut entry.remains);
        let after = entry.remains;
        if is_gone {
            self.remove(slot, gone);
            return Looked { answer, options, due: Instant::FAR_FUTURE, is_over: true };
        }
        let is_over = before.is_orphan() && !after.is_orphan();
        if is_over {
            self.orphans -= 1;
            self.memory().remove_orphan();
        }
        // Only a timer of another kind is filed: a later one is found when the filed one expires.
        if before.is_orphan() != after.is_orphan() || before.is_time_wait() != after.is_time_wait()
        {
            self.file(slot);
            if !self.make_room(0, gone) {
                // All others are in FIN-WAIT-2, which nobody ends early.
                self.remove(slot, gone);
                return Looked { answer, options, due: Instant::FAR_FUTURE, is_over: true };
            }
        }
        Looked { answer, options, due: after.deadline(), is_over }
    }

    /// Lets `f` do what is due for each entry whose time has come; with `true` it is removed, and
    /// `gone` gets its flow. Returns when to come back, which is `now` if more is due. O(1) per
    /// entry.
    pub(crate) fn expire(
        &mut self,
        now: Instant,
        mut f: impl FnMut(&FourTuple, IpOptions, &mut Remains) -> bool,
        gone: &mut impl FnMut(&FourTuple, Claim),
    ) -> Instant {
        while let Some(&(queued_for, slot, serial)) = self.expiry.front() {
            if queued_for > now {
                break;
            }
            self.expiry.pop_front();
            match self.entry(slot, serial).map(|entry| entry.remains.deadline()) {
                Some(due) if due > now => self.expiry.push_back((due, slot, serial)),
                Some(_) => self.remove(slot, gone),
                None => {}
            }
        }
        let Self { timers, due, .. } = self;
        if let Some(timers) = timers {
            timers.expire(now, &mut |id| due.push(id));
        }
        for _ in 0..BATCH {
            let Some(id) = self.due.pop() else { break };
            let (slot, serial) = (id as u32, (id >> 32) as u32);
            let Some(entry) = self.entries.get_mut(slot as usize) else { continue };
            if entry.serial != serial || entry.remains.is_time_wait() {
                continue;
            }
            if f(&entry.tuple, entry.options, &mut entry.remains) {
                self.remove(slot, gone);
            } else {
                self.file(slot);
            }
        }
        if !self.due.is_empty() {
            return now;
        }
        let first = self.expiry.front().map_or(Instant::FAR_FUTURE, |&(due, ..)| due);
        first.min(self.timers.as_ref().map_or(Instant::FAR_FUTURE, |timers| timers.next()))
    }

    /// Takes out everything. Returns what is not in TIME-WAIT.
    pub(crate) fn drain(&mut self) -> Vec<(FourTuple, IpOptions, Remains)> {
        (0..self.orphans).for_each(|_| self.memory().remove_orphan());
        self.orphans = 0;
        self.by_flow.clear();
        self.expiry.clear();
        self.timers = None;
        self.due.clear();
        let entries = self.entries.drain().filter(|entry| !entry.remains.is_time_wait());
        entries.map(|entry| (entry.tuple, entry.options, entry.remains)).collect()
    }

    fn entry(&self, slot: u32, serial: u32) -> Option<&Entry> {
        self.entries.get(slot as usize).filter(|entry| entry.serial == serial)
    }

    fn count_orphan(&mut self) {
        self.orphans += 1;
        self.memory().add_orphan();
    }

    /// Whether `more` can wait within the bound, after the oldest in TIME-WAIT have gone.
    fn make_room(&mut self, more: usize, gone: &mut impl FnMut(&FourTuple, Claim)) -> bool {
        while self.waiting() + more > self.most_waiting {
            let Some((_, slot, serial)) = self.expiry.pop_front() else {
                self.counters.add(Counter::TimeWaitOverflow, 1);
                return false;
            };
            if self.entry(slot, serial).is_some() {
                self.counters.add(Counter::TimeWaitOverflow, 1);
                self.remove(slot, gone);
            }
        }
        true
    }

    /// Sets the timer of an entry.
    fn file(&mut self, slot: u32) {
        let Entry { remains, serial, .. } = &self.entries[slot as usize];
        let (due, serial) = (remains.deadline(), *serial);
        if remains.is_time_wait() {
            self.expiry.push_back((due, slot, serial));
            self.forget_gone();
        } else {
            let timers = self.timers.get_or_insert_with(|| Box::new(Wheel::new(TICK)));
            timers.insert(due, timer_id(slot, serial));
        }
    }

    /// Keeps the queue of deadlines within twice those who wait: entries may be removed before
    /// their time. O(1) per entry over time.
    fn forget_gone(&mut self) {
        if self.expiry.len() > 2 * self.waiting() + 64 {
            let Self { expiry, entries, .. } = self;
            expiry.retain(|&(_, slot, serial)| {
                entries.get(slot as usize).is_some_and(|entry| entry.serial == serial)
            });
        }
    }

    /// Removes the entry in a place, and `gone` gets its flow and how it had the port.
    pub(crate) fn remove(&mut self, slot: u32, gone: &mut impl FnMut(&FourTuple, Claim)) {
        let entry = self.entries.remove(slot as usize);
        if entry.remains.is_orphan() {
            self.orphans -= 1;
            self.memory().remove_orphan();
        }
        if let Some(timers) = &mut self.timers {
            timers.remove(timer_id(slot, entry.serial));
        }
        let hash = self.key.hash(&entry.tuple);
        if let Ok(found) = self.by_flow.find_entry(hash, |&other| other == slot) {
            found.remove();
        }
        gone(&entry.tuple, entry.claim);
    }
}

fn timer_id(slot: u32, serial: u32) -> u64 {
    u64::from(serial) << 32 | u64::from(slot)
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_tcp::orphan::{FinTimer, Orphan};
    use neap_tcp::seq::SeqNumber;
    use neap_tcp::state::State;
    use neap_tcp::time_wait::{Ends, TimeWait};

    const NOW: Instant = Instant::ZERO;
    const CLAIM: Claim = Claim { reuse: true, is_given: true };
    const LATER: Instant = Instant::from_nanos(60_000_000_000);

    fn ends() -> Ends {
        Ends {
            rcv_nxt: SeqNumber(1),
            snd_nxt: SeqNumber(2),
            rcv_wnd: 500,
            rcv_wscale: 0,
            ts_recent: None,
            ts_offset: 0,
            ratelimit_ms: 500,
            quiet_until: NOW,
        }
    }

    fn fin_wait_2() -> Remains {
        Remains::TimeWait(TimeWait::fin_wait_2(NOW, LATER, ends()))
    }

    fn orphan() -> Remains {
        let second = Nanos::from_secs(1);
        let timer =
            FinTimer { rto: second, rto_max: second, deadline: LATER, end: LATER, fin_timeout: 60 };
        Remains::Orphan(Orphan::new(State::FinWait1, ends(), &timer))
    }

    fn flow(port: u16) -> FourTuple {
        let address = core::net::Ipv4Addr::LOCALHOST.into();
        FourTuple {
            local_port: 80,
            remote_port: port,
            ..FourTuple::without_ports(address, address)
        }
    }

    #[test]
    fn an_orphan_whose_fin_is_acknowledged_goes_where_nobody_else_can() {
        let key = FlowKey::new(1, 2);
        let mut table = RemainsTable::new(key, Arc::default());
        table.set_most_waiting(1);
        let mut gone = Vec::new();
        let mut note = |tuple: &FourTuple, _| gone.push(tuple.remote_port);
        assert!(table.insert((flow(1), CLAIM), fin_wait_2(), IpOptions::default(), &mut note));
        assert!(table.insert((flow(2), CLAIM), orphan(), IpOptions::default(), &mut note));
        assert_eq!((table.waiting(), table.orphans()), (1, 1));
        let slot = table.find(key.hash(&flow(2)), &flow(2)).expect("it was added");
        let acknowledged = |remains: &mut Remains| {
            *remains = fin_wait_2();
            ((), false)
        };
        assert!(table.look(slot, acknowledged, &mut note).is_over);
        assert_eq!((table.waiting(), table.orphans()), (1, 0));
        assert_eq!(table.memory().orphans(), 0);
        assert_eq!(table.counters.get(Counter::TimeWaitOverflow), 1);
        assert_eq!(gone, [2]);
    }

    #[test]
    fn connections_that_have_left_time_wait_leave_nothing() {
        let key = FlowKey::new(1, 2);
        let mut table = RemainsTable::new(key, Arc::default());
        table.set_most_waiting(16);
        let waiting = Remains::TimeWait(TimeWait::new(NOW, ends()));
        for _ in 0..100_000 {
            assert!(table.insert((flow(1), CLAIM), waiting, IpOptions::default(), &mut |_, _| {}));
            // A reset, or a SYN of the same peer that opens a new connection.
            let slot = table.find(key.hash(&flow(1)), &flow(1)).expect("it was added");
            assert!(table.look(slot, |_| ((), true), &mut |_, _| {}).is_over);
        }
        assert_eq!(table.waiting(), 0);
        assert!(table.expiry.len() <= 100, "{} deadlines of nobody", table.expiry.len());
    }
}
