//! The client of one connection of a group.

use super::messages::message;
use super::{Group, LONGEST_WRITE, Traffic};
use crate::app::page;
use crate::app::stream::{Failed, Stream};
use crate::app::task::{Task, Turn};
use crate::rng::Rng;
use neap_stack::socket::SocketError;
use neap_stack::socket::tcp::TcpHandle;
use neap_tcp::time::{Instant, Nanos, Rate};

/// Between two parts of a stream that is produced at a rate.
const TICK: Nanos = Nanos::from_millis(10);

/// Writes as the traffic of its group says, and leaves.
pub(super) struct GroupClient {
    group: Group,
    /// Its place in the log.
    index: usize,
    start: Instant,
    end: Instant,
    rng: Rng,
    /// When something is due.
    next: Instant,
    /// The stream may be written up to this position.
    allowed: u64,
    /// The response is whole once the stream was read up to this position.
    expected: u64,
    asked_at: Instant,
    /// Times that it has come to the barrier, and whether it waits there.
    arrivals: u64,
    is_waiting: bool,
    /// Urgent messages that are due and not begun.
    urgent: u64,
    has_shut: bool,
}

/// A number from half of `mean` to half as much again.
fn around(rng: &mut Rng, mean: u64) -> u64 {
    rng.range(mean / 2, mean.saturating_add(mean / 2))
}

impl GroupClient {
    pub(super) fn new(group: Group, start: Instant, end: Instant, rng: Rng) -> Self {
        Self {
            index: group.add_client(),
            group,
            start,
            end,
            rng,
            next: start,
            allowed: 0,
            expected: 0,
            asked_at: start,
            arrivals: 0,
            is_waiting: false,
            urgent: 0,
            has_shut: false,
        }
    }

    /// Writes what is due. True if there will be no more.
    fn write(&mut self, now: Instant, stream: &mut Stream) -> Result<bool, Failed> {
        let due = now.min(self.end);
        match self.group.config.traffic {
            Traffic::Bulk { bytes, write } => {
                self.next = Instant::FAR_FUTURE;
                let end = bytes.unwrap_or(u64::MAX);
                return stream.write_to(now, end, write.min(LONGEST_WRITE));
            }
            Traffic::Produced { write, rate, pause } => {
                let (produced, next) = produced(now.since(self.start), rate, pause);
                self.next =
                    if next == Nanos::MAX { Instant::FAR_FUTURE } else { self.start + next };
                stream.write_to(now, produced, write)?;
            }
            Traffic::RequestResponse { request, response, think, barrier } => {
                if barrier && self.arrivals == 0 {
                    self.arrive(now);
                }
                self.exchange(now, stream, [request, response], think, barrier)?;
            }
            Traffic::OnOff { burst, off } => loop {
                if stream.written < self.allowed {
                    if !stream.write_to(now, self.allowed, burst.min(LONGEST_WRITE))? {
                        break;
                    }
                    self.next = now + Nanos(around(&mut self.rng, off.0));
                }
                if due < self.next {
                    break;
                }
                self.next = Instant::FAR_FUTURE;
                self.allowed += around(&mut self.rng, burst).max(1);
            },
            Traffic::Paced { message, interval } => {
                let count = self.births(due, interval, stream);
                self.allowed += count * message;
                stream.write_to(now, self.allowed, message.min(LONGEST_WRITE))?;
            }
            Traffic::Mixed { urgent, interval, frame } => {
                self.urgent += self.births(due, interval, stream);
                while stream.flush(now)? && stream.may_write() {
                    let is_urgent = self.urgent > 0;
                    self.urgent -= u64::from(is_urgent);
                    stream.pending = message(is_urgent, if is_urgent { urgent } else { frame });
                }
            }
        }
        Ok(false)
    }

    /// Notes the messages that are due by `due`, and counts them.
    fn births(&mut self, due: Instant, interval: Nanos, stream: &Stream) -> u64 {
        let mut count = 0;
        let mut births = self.group.births.borrow_mut();
        while self.next <= due {
            births.entry(stream.handle.local_addr()).or_default().push_back(self.next);
            self.next += interval.max(Nanos(1));
            count += 1;
        }
        count
    }

    /// Comes to the barrier of its group.
    fn arrive(&mut self, now: Instant) {
        (self.arrivals, self.is_waiting, self.next) =
            (self.arrivals + 1, true, Instant::FAR_FUTURE);
        self.group.arrive(now);
    }

    /// Reads what servers write, and compares it. True if the stream is over.
    fn read_to(&self, now: Instant, stream: &mut Stream, end: u64) -> Result<bool, Failed> {
        stream.read_to(now, end, |at, data| {
            if !page::matches(at, data) {
                self.group.log.borrow_mut().wrong_at.get_or_insert(at);
            }
        })
    }

    /// Reads responses and writes the requests that are due.
    fn exchange(
        &mut self,
        now: Instant,
        stream: &mut Stream,
        [request, response]: [u64; 2],
        think: Nanos,
        barrier: bool,
    ) -> Result<(), Failed> {
        let write = request.min(LONGEST_WRITE);
        loop {
            if stream.read < self.expected {
                self.read_to(now, stream, self.expected)?;
                if stream.read < self.expected {
                    break;
                }
                if barrier {
                    self.arrive(now);
                } else {
                    self.group.log.borrow_mut().latency.record(now.since(self.asked_at));
                    self.next = now + think;
                }
            }
            if self.is_waiting {
                let Some(opened_at) = self.group.passed(self.arrivals) else { break };
                (self.is_waiting, self.next) = (false, opened_at + think);
            }
            if now.min(self.end) < self.next {
                break;
            }
            (self.asked_at, self.next) = (now, Instant::FAR_FUTURE);
            if barrier {
                self.group.ask(now);
            }
            self.allowed += request.max(1);
            self.expected += response.max(1);
            stream.write_to(now, self.allowed, write)?;
        }
        stream.write_to(now, self.allowed, write)?;
        Ok(())
    }
}

impl Task for GroupClient {
    fn sleeps(&self) -> bool {
        !self.group.config.polls
    }

    fn begin(&mut self, now: Instant, handle: &TcpHandle) {
        let own = &mut self.group.log.borrow_mut().clients[self.index];
        own.begun = Some(now);
        own.client = Some(handle.local_addr());
        own.handle = Some(handle.clone());
    }

    fn refuse(&mut self, now: Instant, _: SocketError) {
        let mut log = self.group.log.borrow_mut();
        let own = &mut log.clients[self.index];
        own.begun = Some(now);
        own.has_failed = true;
        drop(log);
        self.group.leave(now, self.is_waiting);
    }

    fn turn(&mut self, now: Instant, stream: &mut Stream) -> Result<Turn, Failed> {
        stream.check()?;
        let had_shut = self.has_shut;
        // A socket may not be written before the handshake is over.
        if !self.has_shut && (stream.written > 0 || stream.may_write()) {
            let has_all = self.write(now, stream)?;
            if (has_all || now >= self.end) && stream.pending.is_empty() {
                self.has_shut = true;
                stream.handle.shutdown_write(now);
            }
        }
        let is_over = self.has_shut && self.read_to(now, stream, u64::MAX)?;
        let later = |at: Instant| if at > now { at } else { Instant::FAR_FUTURE };
        let end = if self.has_shut { Instant::FAR_FUTURE } else { later(self.end) };
        let next = if is_over { Instant::FAR_FUTURE } else { later(self.next).min(end) };
        Ok(Turn { next, did: self.has_shut != had_shut, is_over })
    }

    fn note(&mut self, stream: &Stream) {
        let own = &mut self.group.log.borrow_mut().clients[self.index];
        (own.written, own.read) = (stream.written, stream.read);
    }

    fn end(&mut self, now: Instant, has_failed: bool) {
        let mut log = self.group.log.borrow_mut();
        let own = &mut log.clients[self.index];
        own.close(now);
        own.has_failed = has_failed;
        own.finished = (!has_failed).then_some(now);
        drop(log);
        self.group.leave(now, self.is_waiting);
    }
}

/// Up to which position a stream exists so long after its start, and when that changes.
fn produced(elapsed: Nanos, rate: Option<Rate>, pause: Option<(Nanos, Nanos)>) -> (u64, Nanos) {
    let (from, to) = pause.unwrap_or((Nanos::MAX, Nanos::MAX));
    if (from..to).contains(&elapsed) {
        return (0, to);
    }
    let Some(rate) = rate else {
        return (u64::MAX, pause.map_or(Nanos::MAX, |_| elapsed + TICK));
    };
    let paused = if elapsed < to { Nanos::ZERO } else { to.saturating_sub(from) };
    let produces = elapsed.saturating_sub(paused);
    let tick = Nanos(produces.0 / TICK.0 * TICK.0);
    (rate.bytes_in(tick), paused + tick + TICK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::group::GroupConfig;
    use crate::app::session::{self, Ending, Plan, Reading, Writing};
    use crate::link::PathConfig;
    use crate::pattern::Pattern;
    use crate::rng::Ppm;
    use crate::world::World;
    use neap_stack::stack::{ConnectOptions, ListenOptions};

    #[test]
    fn nothing_is_produced_in_a_pause_and_nothing_of_it_afterwards() {
        let ms = Nanos::from_millis;
        let at = |elapsed| produced(elapsed, Some(Rate(1_000_000)), Some((ms(1000), ms(3000))));
        assert_eq!(at(ms(995)), (990_000, ms(1000)));
        assert_eq!(at(ms(2000)), (0, ms(3000)));
        assert_eq!(at(ms(3000)), (1_000_000, ms(3010)));
        assert_eq!(at(ms(3105)), (1_100_000, ms(3110)));
    }

    /// A server that writes other bytes than those of a group.
    fn other_bytes() -> Plan {
        let pattern = Pattern::new(1);
        let (chunk, rest, never) = ((100, 100), Nanos::ZERO, Ppm::NEVER);
        let writing = Writing {
            pattern,
            bytes: 1000,
            chunk,
            zero_copy: never,
            pause: never,
            rest,
            turns: None,
        };
        let late = Nanos::ZERO;
        let reading = Reading { pattern, chunk, zero_copy: never, pause: never, rest, late };
        Plan { writing, reading, ending: Ending::HalfClose }
    }

    #[test]
    fn what_comes_after_the_last_write_is_compared_too() {
        let path = PathConfig::clean(Rate(1_000_000), Nanos::from_millis(1));
        let (mut world, hosts, remote) = World::pair([path.clone(), path]);
        let (options, rng) = (ListenOptions::default(), Rng::new(1));
        let server = session::server(world.stack(hosts[1]), remote, options, other_bytes(), rng);
        world.add_app(hosts[1], server.expect("nobody listens").0);
        let group = Group::new(GroupConfig {
            traffic: Traffic::Bulk { bytes: Some(100), write: 100 },
            read_rate: None,
            polls: false,
            client: ConnectOptions::default(),
            server: ListenOptions::default(),
        });
        let client = group.client(remote, world.now(), Instant::FAR_FUTURE, Rng::new(2));
        world.add_app(hosts[0], client);
        world.run_until(world.now() + Nanos::from_secs(10)).expect("no host spins");
        let log = group.log();
        let (read, wrong_at) = (log.borrow().clients[0].read, log.borrow().wrong_at);
        assert_eq!((read, wrong_at), (1000, Some(0)));
    }
}
