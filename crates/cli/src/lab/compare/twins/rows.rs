//! Figures of a twin: what the lab says and what was measured, each with what is known of a
//! difference.

use super::interrupts::Interrupts;
use super::process::{Sockets, Switches};
use crate::lab::compare::lateness::Lateness;
use neap_lab::scenario::Figures;
use serde_json::Value;
use std::collections::BTreeMap;

/// One figure of a twin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) what: &'static str,
    pub(super) predicted: fn(&Figures) -> f64,
    pub(super) measured: fn(&Flow) -> f64,
    /// Why it differs where it does.
    pub(super) why: &'static str,
}

/// What a program did.
#[derive(Clone, Debug, Default)]
pub(super) struct Flow {
    pub(super) report: Value,
    /// Counters of the stack, of the whole time.
    pub(super) counters: BTreeMap<String, f64>,
    /// Context switches of the process.
    pub(super) switches: Switches,
    /// What the kernel's sockets held, if it sent.
    pub(super) sockets: Sockets,
    /// Timer interrupts of the machine, where they are counted.
    pub(super) interrupts: Option<Interrupts>,
    pub(super) flows: u32,
    pub(super) seconds: f64,
    /// How late the machine was meanwhile.
    pub(super) lateness: Lateness,
}

impl Flow {
    fn counter(&self, name: &str) -> f64 {
        self.counters.get(name).copied().unwrap_or(0.0)
    }

    fn goodput_mbit(&self) -> f64 {
        self.report["end"]["sum_received"]["bits_per_second"].as_f64().unwrap_or(0.0) / 1e6
    }

    /// The mean of the bytes that a flow of neap had not had acknowledged, those unsent included,
    /// in the second half of the intervals. What is in qdisc and device is in flight. MB.
    fn held_mb(&self) -> f64 {
        let all = self.report["intervals"].as_array().map_or(&[][..], Vec::as_slice);
        let places = ["unsent_bytes", "in_flight_bytes"];
        let streams = all[all.len() / 2..].iter().filter_map(|one| one["streams"].as_array());
        let held: Vec<f64> = streams
            .flatten()
            .map(|one| places.iter().filter_map(|place| one["neap"][*place].as_f64()).sum())
            .collect();
        held.iter().sum::<f64>() / held.len().max(1) as f64 / 1e6
    }

    /// Bytes that the receiver got, MB.
    fn received_mb(&self) -> f64 {
        self.goodput_mbit() * self.seconds / 8.0
    }

    /// A part of what the kernel's sockets held, per flow. MB.
    fn per_flow_mb(&self, bytes: f64) -> f64 {
        bytes / f64::from(self.flows.max(1)) / 1e6
    }
}

/// The figure that each twin has, and that is promised.
pub(super) const GOODPUT: Row = Row {
    what: "goodput, Mbit/s",
    predicted: |figures| figures["app.bulk.goodput_mbit"],
    measured: Flow::goodput_mbit,
    why: "the lab's processor costs nothing; a machine with other work gives the sender less than its rate",
};

const FRAMES: Row = Row {
    what: "packets handed down per MB received",
    predicted: |figures| {
        figures["host.a.IpOutRequests"] * 1e6 / figures["app.bulk.delivered_bytes"]
    },
    measured: |flow| flow.counter("IpOutRequests") / flow.received_mb(),
    why: "what was sent at the end and did not arrive any more counts as handed down; and frames follow cwnd and srtt, which the machine's lateness changes",
};

const OWN_FRAMES: Row = Row {
    why: "what was sent at the end and did not arrive any more counts as handed down; why neap's frames are much larger in some runs than in others is not known",
    ..FRAMES
};

const MEMORY: Row = Row {
    what: "unacknowledged and unsent, MB per flow",
    predicted: |figures| figures["app.bulk.held_mb"],
    measured: Flow::held_mb,
    why: "a send buffer is a multiple of the window, and the windows differ; why they do is not known",
};

const KERNEL_MEMORY: Row = Row {
    measured: |flow| flow.per_flow_mb(flow.sockets.held_bytes),
    why: "iperf3 writes when a third of a buffer is free, but no more than ten times 128 KiB, so that a large buffer stays at two thirds, where the lab's writer fills it; and the buffer is a multiple of the largest window so far, of which it is not known why it differs",
    ..MEMORY
};

/// What the kernel accounts for, with what it adds to each packet.
const KERNEL_SOCKETS: Row = Row {
    what: "memory of sockets (skmem), MB per flow",
    predicted: |figures| figures["host.a.sockets_mb"],
    measured: |flow| flow.per_flow_mb(flow.sockets.memory_bytes),
    why: "it follows the bytes above",
};

const SWITCHES: Row = Row {
    what: "context switches per second",
    predicted: |figures| figures["host.a.turns_per_s"],
    measured: |flow| flow.switches.all,
    why: "those that are not voluntary are made by other programs, which the lab has not: by the receiver, which each frame may wake, and by whatever else the machine has to do; for the voluntary ones see the next figure",
};

const WAKE_UPS: Row = Row {
    what: "of them voluntary: wake-ups per second",
    predicted: |figures| figures["host.a.turns_per_s"],
    measured: |flow| flow.switches.voluntary,
    why: "the lab's processor costs nothing, so its host sleeps between any two events, where a process is still at work on the first one; and a thread of neap is woken by what the kernel does at another time than the lab's card",
};

/// The lab counts the way to a thread and the way back, as the system does. A process counts only
/// those away from it.
const KERNEL_SWITCHES: Row =
    Row { predicted: |figures| figures["host.a.context_switches_per_s"] / 2.0, ..SWITCHES };

const KERNEL_WAKE_UPS: Row = Row {
    predicted: |figures| figures["host.a.context_switches_per_s"] / 2.0,
    why: "how often iperf3 sleeps depends on how many sockets it finds ready at once, on how late it is woken, where the lab's writer is never late, and on how much its buffers have room for",
    ..WAKE_UPS
};

const TIMERS: Row = Row {
    what: "wake-ups by timers alone, per second",
    predicted: |figures| figures["host.a.NeapTimerWakeups"] / figures["host.a.seconds"],
    measured: |flow| flow.counter("NeapTimerWakeups") / flow.seconds,
    why: "a wake-up is one by a timer alone if nothing else has come meanwhile, which depends on how late the machine is at that moment",
};

/// Only where the machine has a count of its timers.
pub(super) const INTERRUPTS: Row = Row {
    what: "timer interrupts (whole machine), per s",
    predicted: |figures| {
        figures["host.a.timer_interrupts_per_s"] + figures["host.b.timer_interrupts_per_s"]
    },
    measured: |flow| flow.interrupts.map_or(0.0, |interrupts| interrupts.added()),
    why: "the lab counts what expires in the stacks; on the machine a process that is still at work sets no timer, and timers that are due together are one interrupt, but those of `tbf`, of what makes the delay and of the scheduler, which the flow keeps busy, count too",
};

const LOSSY_GOODPUT: Row = Row {
    why: "loss is by chance, and the lab's reader is as late as the threads of a busy machine",
    ..GOODPUT
};

const AGAIN: Row = Row {
    what: "segments sent again per MB received",
    predicted: |figures| {
        figures["host.a.TcpRetransSegs"] * 1e6 / figures["app.bulk.delivered_bytes"]
    },
    measured: |flow| flow.counter("TcpRetransSegs") / flow.received_mb(),
    why: "the link takes one of a hundred by chance; what its queue drops at the start depends on how late the machine is",
};

pub(super) const DELAYED: &[Row] = &[GOODPUT, FRAMES];
pub(super) const LOSSY: &[Row] = &[LOSSY_GOODPUT, FRAMES, AGAIN];
pub(super) const OF_NEAP: &[Row] = &[GOODPUT, OWN_FRAMES, MEMORY, SWITCHES, WAKE_UPS, TIMERS];
pub(super) const OF_KERNEL: &[Row] =
    &[GOODPUT, FRAMES, KERNEL_MEMORY, KERNEL_SOCKETS, KERNEL_SWITCHES, KERNEL_WAKE_UPS];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_tcp_is_held_once() {
        let stream = serde_json::json!({"neap": {
            "unsent_bytes": 3_000_000, "qdisc_bytes": 500_000, "device_bytes": 250_000,
            "in_flight_bytes": 1_000_000,
        }});
        let report = serde_json::json!({"intervals": [{"streams": [stream, stream]}]});
        let flow = Flow { report, ..Flow::default() };
        assert_eq!((MEMORY.measured)(&flow), 4.0);
    }

    #[test]
    fn figures_of_the_kernel_are_those_of_one_flow() {
        let sockets = Sockets { held_bytes: 8e6, memory_bytes: 12e6 };
        let switches = Switches { voluntary: 300.0, all: 340.0 };
        let flow = Flow { sockets, switches, flows: 4, ..Flow::default() };
        let measured: Vec<f64> = OF_KERNEL[2..].iter().map(|row| (row.measured)(&flow)).collect();
        assert_eq!(measured, [2.0, 3.0, 340.0, 300.0]);
        let figures = Figures::from([("host.a.context_switches_per_s".to_owned(), 600.0)]);
        assert_eq!((KERNEL_WAKE_UPS.predicted)(&figures), 300.0);
    }
}
