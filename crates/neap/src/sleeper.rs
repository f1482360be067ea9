//! What the threads of a shard sleep on: devices, the bell of the shard, and an alarm.

use crate::alarm::{Alarm, timespec};
use crate::bell::Bell;
use crate::clock;
use crate::foresight::{After, Foresight, Passed};
use neap_stack::interface::InterfaceId;
use neap_tcp::time::{Instant, Nanos};
use rustix::event::{Timespec, epoll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::cell::Cell;
use std::io;
use std::sync::{Arc, Weak};

/// Token of all queues of devices.
const QUEUE: u64 = 0;
/// Token of what tells that a device has changed.
const MONITOR: u64 = 1;
/// Token of the bell.
const BELL: u64 = 2;
/// Number of tokens that one shard uses, for a set that several shards share.
pub(crate) const TOKENS: u64 = 4;
/// Token of the alarm of a sleeper.
const ALARM: u64 = u64::MAX;
/// Token of the end of a lease, in the sleeper of a worker.
pub(crate) const LEASE_END: u64 = u64::MAX - 1;

/// Descriptors of a shard, and the epoll sets that have them. Both come and go while threads
/// sleep.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    sources: Vec<Attached>,
    sets: Vec<Entered>,
}

/// A descriptor of a device, or the bell of the shard. It is held so that it can be taken out of
/// the sets: another process may have it open too, and then its end here is no end for them.
#[derive(Debug)]
struct Attached {
    /// `None` for the bell.
    interface: Option<InterfaceId>,
    descriptor: Descriptor,
    token: u64,
    events: epoll::EventFlags,
}

#[derive(Debug)]
enum Descriptor {
    Device(Arc<OwnedFd>),
    Bell(Arc<Bell>),
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Device(descriptor) => descriptor.as_fd(),
            Self::Bell(bell) => bell.as_fd(),
        }
    }
}

/// An epoll set that has the sources.
#[derive(Debug)]
struct Entered {
    set: Weak<OwnedFd>,
    /// Added to the tokens of the sources.
    base: u64,
    is_muted: bool,
}

impl Entered {
    fn is(&self, set: &Arc<OwnedFd>) -> bool {
        self.set.as_ptr() == Arc::as_ptr(set)
    }

    fn flags(&self, source: &Attached) -> epoll::EventFlags {
        if self.is_muted {
            // An error is reported all the same. As an edge it ends one sleep, and not each.
            return epoll::EventFlags::ET;
        }
        // All are edges. A ring that is always writable must not keep a thread awake. A bell need
        // not be silenced, which could take the ring away from a thread that sleeps on another set.
        source.events | epoll::EventFlags::ET
    }

    fn data(&self, source: &Attached) -> epoll::EventData {
        epoll::EventData::new_u64(self.base + source.token)
    }

    fn add(&self, source: &Attached) -> io::Result<()> {
        let Some(set) = self.set.upgrade() else { return Ok(()) };
        Ok(epoll::add(&set, &source.descriptor, self.data(source), self.flags(source))?)
    }

    fn modify(&self, source: &Attached) {
        if let Some(set) = self.set.upgrade() {
            // A set that a call of `add` that failed did not reach does not have it.
            let _ = epoll::modify(&set, &source.descriptor, self.data(source), self.flags(source));
        }
    }

    fn delete(&self, source: &Attached) {
        if let Some(set) = self.set.upgrade() {
            let _ = epoll::delete(&set, &source.descriptor);
        }
    }
}

impl Sources {
    /// The bell alone.
    pub(crate) fn new(bell: Arc<Bell>) -> Self {
        let descriptor = Descriptor::Bell(bell);
        let events = epoll::EventFlags::IN;
        let bell = Attached { interface: None, descriptor, token: BELL, events };
        Self { sources: vec![bell], sets: Vec::new() }
    }

    /// Adds the descriptor of a queue. It `tells_room` if it becomes writable when frames are
    /// complete. One that completes frames at once is always writable, so that each packet that was
    /// read long ago would end a sleep.
    ///
    /// # Errors
    /// The system refuses to wait for it.
    pub(crate) fn add_queue(
        &mut self,
        of: InterfaceId,
        queue: Arc<OwnedFd>,
        tells_room: bool,
    ) -> io::Result<()> {
        let mut events = epoll::EventFlags::IN;
        events.set(epoll::EventFlags::OUT, tells_room);
        self.add(of, queue, QUEUE, events)
    }

    /// Adds a descriptor that tells that a device has changed.
    ///
    /// # Errors
    /// The system refuses to wait for it.
    pub(crate) fn add_monitor(&mut self, of: InterfaceId, bell: Arc<OwnedFd>) -> io::Result<()> {
        self.add(of, bell, MONITOR, epoll::EventFlags::IN)
    }

    fn add(
        &mut self,
        of: InterfaceId,
        descriptor: Arc<OwnedFd>,
        token: u64,
        events: epoll::EventFlags,
    ) -> io::Result<()> {
        let descriptor = Descriptor::Device(descriptor);
        let source = Attached { interface: Some(of), descriptor, token, events };
        self.sets.retain(|entered| entered.set.strong_count() > 0);
        self.sets.iter().try_for_each(|entered| entered.add(&source))?;
        self.sources.push(source);
        Ok(())
    }

    /// Takes out what belongs to interfaces that `is_gone` names.
    pub(crate) fn remove(&mut self, is_gone: impl Fn(InterfaceId) -> bool) {
        let sets = &self.sets;
        let gone = self.sources.extract_if(.., |source| source.interface.is_some_and(&is_gone));
        for source in gone {
            sets.iter().for_each(|entered| entered.delete(&source));
        }
    }

    /// Adds all sources to a set. Their tokens begin at `base`, and there are [`TOKENS`] of them.
    ///
    /// # Errors
    /// The system refuses to wait for one of them.
    pub(crate) fn enter(&mut self, set: &Arc<OwnedFd>, base: u64) -> io::Result<()> {
        self.sets.retain(|entered| entered.set.strong_count() > 0);
        let entered = Entered { set: Arc::downgrade(set), base, is_muted: false };
        let added = self.sources.iter().try_for_each(|source| entered.add(source));
        if added.is_err() {
            self.sources.iter().for_each(|source| entered.delete(source));
            return added;
        }
        self.sets.push(entered);
        Ok(())
    }

    /// Takes all sources out of a set.
    pub(crate) fn leave(&mut self, set: &Arc<OwnedFd>) {
        for entered in self.sets.extract_if(.., |entered| entered.is(set)) {
            self.sources.iter().for_each(|source| entered.delete(source));
        }
    }

    /// Says whether the sources are to end the sleep on a set. What happens while they do not is
    /// reported when they do again.
    pub(crate) fn mute(&mut self, set: &Arc<OwnedFd>, is_muted: bool) {
        let has_changed = |entered: &&mut Entered| entered.is(set) && entered.is_muted != is_muted;
        if let Some(entered) = self.sets.iter_mut().find(has_changed) {
            entered.is_muted = is_muted;
            self.sources.iter().for_each(|source| entered.modify(source));
        }
    }
}

/// How long the first part of a sleep is that is spent awake. The order is that of the lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum First {
    /// None.
    Never,
    /// What [`Foresight`] says.
    Measured,
    /// This one.
    Fixed(Nanos),
}

impl First {
    /// The same length for each sleep; none if it is zero.
    pub(crate) fn fixed(length: Nanos) -> Self {
        if length == Nanos::ZERO { Self::Never } else { Self::Fixed(length) }
    }
}

/// Which parts of a sleep are spent awake, looking for events again and again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vigil {
    /// The first part: an event often follows the one before at once.
    pub(crate) first: First,
    /// The last part before a given time: the alarm may be late.
    pub(crate) last: Nanos,
}

impl Vigil {
    /// Sleeps are spent asleep.
    pub(crate) const NONE: Self = Self { first: First::Never, last: Nanos::ZERO };

    /// The longer ones of the parts of two.
    pub(crate) fn longer(self, other: Self) -> Self {
        Self { first: self.first.max(other.first), last: self.last.max(other.last) }
    }

    /// Spends a sleep of a thread from `now` until an event or `until`. `look` looks for an event
    /// once and returns whether there was one. `rest` sleeps until there is one, or until the first
    /// of its times, with the same answer; the second one is the time of its call. `foresight` says
    /// whether it pays to look at first, and learns from the sleep.
    pub(crate) fn sleep(
        self,
        (foresight, after): (&Foresight, After),
        until: Instant,
        mut now: Instant,
        mut look: impl FnMut() -> bool,
        rest: impl FnOnce(Instant, Instant) -> bool,
    ) {
        let mut look_until = |end: Instant| {
            while clock::now() < end {
                if look() {
                    return true;
                }
                core::hint::spin_loop();
            }
            false
        };
        let first = match self.first {
            First::Never => Nanos::ZERO,
            First::Fixed(length) => length,
            First::Measured => foresight.look(after),
        };
        // Where the time is over at once, nothing is to be learnt.
        let learns = self.first == First::Measured && until.since(now) > first;
        if first > Nanos::ZERO {
            if look_until(until.min(now + first)) {
                if learns {
                    foresight.note(after, Passed::Seen);
                }
                return;
            }
            now = clock::now();
        }
        let asleep_until = if until == Instant::FAR_FUTURE { until } else { until - self.last };
        let is_event = asleep_until > now && rest(asleep_until, now);
        if learns {
            // An event behind a look in vain came too late for it.
            let passed = match is_event && first == Nanos::ZERO {
                true => Passed::Woken(clock::now().since(now)),
                false => Passed::Nothing,
            };
            foresight.note(after, passed);
        }
        if is_event {
            return;
        }
        // An alarm that came early has the caller sleep again.
        if clock::now() >= asleep_until {
            look_until(until);
        }
    }
}

/// An epoll set over the sources of a shard, with an alarm.
#[derive(Debug)]
pub(crate) struct Sleeper {
    set: Arc<OwnedFd>,
    alarm: Alarm,
    vigil: Vigil,
    foresight: Foresight,
}

impl Sleeper {
    /// A sleeper over `sources`, and those that come later.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub(crate) fn new(sources: &mut Sources, vigil: Vigil) -> io::Result<Self> {
        let set = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let alarm = Alarm::new(&set, ALARM)?;
        sources.enter(&set, 0)?;
        Ok(Self { set, alarm, vigil, foresight: Foresight::default() })
    }

    /// Its descriptor, to be slept on together with others: readable when there is an event.
    pub(crate) fn descriptor(&self) -> &OwnedFd {
        &self.set
    }

    /// Which parts of its sleeps are spent awake.
    pub(crate) fn vigil(&self) -> Vigil {
        self.vigil
    }

    /// Sleeps until an event or `until`. `after` says what came before.
    pub(crate) fn sleep(&self, after: After, until: Instant, now: Instant) -> Seen {
        let seen = Cell::new(Seen::default());
        let wait = |timeout: Option<&Timespec>| {
            seen.set(self.wait(timeout));
            seen.get().is_event()
        };
        self.vigil.sleep(
            (&self.foresight, after),
            until,
            now,
            || wait(Some(&timespec(0))),
            |asleep_until, now| {
                self.alarm.set(asleep_until, now);
                wait(None)
            },
        );
        seen.get()
    }

    /// Sleeps until an event, or until the time that [`wake_exactly_at`](Self::wake_exactly_at) has
    /// set.
    pub(crate) fn sleep_until_event(&self) -> Seen {
        self.wait(None)
    }

    /// Ends the sleep of whoever sleeps here at `at`, and not earlier.
    pub(crate) fn wake_exactly_at(&self, at: Instant) {
        self.alarm.set_exactly(at);
    }

    /// Ends the sleep of whoever sleeps on the [`descriptor`](Self::descriptor), at `at` or
    /// earlier.
    #[cfg(feature = "tokio")]
    pub(crate) fn wake_at(&self, at: Instant, now: Instant) {
        self.alarm.set(at, now);
    }

    /// Takes the events that are there.
    pub(crate) fn take_events(&self) -> Seen {
        self.wait(Some(&timespec(0)))
    }

    fn wait(&self, timeout: Option<&Timespec>) -> Seen {
        let mut events = [NO_EVENT; 8];
        let mut seen = Seen::default();
        let mut count = epoll::wait(&self.set, &mut events, timeout).unwrap_or(0);
        events[..count].iter().for_each(|event| seen.add(event, 0));
        seen.only_alarm = count > 0 && !seen.is_event();
        // Who sleeps on the descriptor of this set is told of each event once: take them all.
        while count == events.len() {
            count = epoll::wait(&self.set, &mut events, Some(&timespec(0))).unwrap_or(0);
            events[..count].iter().for_each(|event| seen.add(event, 0));
        }
        seen
    }
}

/// Place for an event, before there is one.
pub(crate) const NO_EVENT: epoll::Event =
    epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };

/// What ended a sleep.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// A device, or the bell.
    pub(crate) source: bool,
    /// The alarm, and nothing else.
    pub(crate) only_alarm: bool,
    /// A lease is over.
    pub(crate) lease: bool,
    /// A device may have changed.
    pub(crate) links: bool,
}

impl Seen {
    /// This, and what was seen behind it before anything was done about it.
    pub(crate) fn and(self, later: Self) -> Self {
        let mut both = Self {
            source: self.source || later.source,
            only_alarm: self.only_alarm || later.only_alarm,
            lease: self.lease || later.lease,
            links: self.links || later.links,
        };
        both.only_alarm &= !both.is_event();
        both
    }

    /// Whether something else than the alarm has ended the sleep.
    fn is_event(self) -> bool {
        self.source || self.lease
    }

    /// Takes up an event of a set in which the tokens of the shard begin at `base`.
    pub(crate) fn add(&mut self, event: &epoll::Event, base: u64) {
        let token = event.data.u64();
        self.source |= token != ALARM && token != LEASE_END;
        self.lease |= token == LEASE_END;
        let errors = epoll::EventFlags::ERR | epoll::EventFlags::HUP;
        let flags = event.flags;
        let has_failed = token == base + QUEUE && flags.intersects(errors);
        self.links |= token == base + MONITOR || has_failed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Nanos = Nanos::from_secs(3600);

    /// Looks of a sleep from now until `until`, of which number `event` sees an event, and when
    /// it rests until.
    fn slept(vigil: Vigil, until: Instant, event: u32) -> (u32, Option<Instant>) {
        let (mut looks, mut rests) = (0, None);
        let look = || {
            looks += 1;
            looks == event
        };
        let foresight = (&Foresight::default(), After::Event);
        vigil.sleep(foresight, until, clock::now(), look, |until, now| {
            assert!(now < until);
            rests = Some(until);
            true
        });
        (looks, rests)
    }

    #[test]
    fn a_sleep_is_spent_asleep_unless_told_otherwise() {
        let until = clock::now() + LONG;
        assert_eq!(slept(Vigil::NONE, until, 1), (0, Some(until)));
        assert_eq!(slept(Vigil::NONE, Instant::FAR_FUTURE, 1), (0, Some(Instant::FAR_FUTURE)));
    }

    #[test]
    fn an_event_in_the_first_part_ends_the_sleep() {
        let vigil = Vigil { first: First::Fixed(LONG), last: Nanos::ZERO };
        assert_eq!(slept(vigil, Instant::FAR_FUTURE, 3), (3, None));
        assert_eq!(slept(vigil, clock::now() + LONG, 3), (3, None));
    }

    #[test]
    fn behind_the_first_part_there_is_rest() {
        let vigil = Vigil { first: First::Fixed(Nanos::from_micros(100)), last: Nanos::ZERO };
        let (looks, rests) = slept(vigil, Instant::FAR_FUTURE, u32::MAX);
        assert!(looks > 0 && rests == Some(Instant::FAR_FUTURE), "{looks} looks, {rests:?}");
    }

    #[test]
    fn a_measured_first_part_begins_where_events_come_soon() {
        let vigil = Vigil { first: First::Measured, last: Nanos::ZERO };
        let foresight = Foresight::default();
        let until = clock::now() + LONG;
        let looks = Cell::new(0);
        let sleep = |after| {
            looks.set(0);
            let look = || {
                looks.set(looks.get() + 1);
                looks.get() == 2
            };
            vigil.sleep((&foresight, after), until, clock::now(), look, |_, _| true);
            looks.get()
        };
        // Each of these rests is over at once. A thread that loses the processor meanwhile learns
        // that it was long.
        let begins = (0..1000).position(|_| sleep(After::Event) == 2).expect("a look");
        assert!(begins >= 3, "{begins} sleeps");
        assert_eq!(sleep(After::Alarm), 0, "each reason has its own history");
    }

    #[test]
    fn the_last_part_is_spent_awake() {
        let vigil = Vigil { first: First::Never, last: LONG };
        let until = clock::now() + LONG + LONG;
        assert_eq!(slept(vigil, until, 1), (0, Some(until - LONG)));
        assert_eq!(slept(vigil, clock::now() + LONG, 5), (5, None));
    }
}
