//! Looking at the flows of a running gateway from other threads.
//!
//! The gateway's thread has the flows to itself. Whoever wants to see them leaves a place for the
//! answer and wakes the thread, which fills it between two events. So a gateway that nobody looks
//! at pays one load for each wake-up.

use crate::counters::{Counters, Figures};
use neap::Poller;
use neap::control::Application;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The longest that an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// Questions that wait at the same time.
const MOST_QUESTIONS: usize = 8;

/// A flow of a gateway, as the guest's side of the stack has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowView {
    /// Address of the stack's end of the guest's connection: what the guest wanted to reach, or
    /// the client of a published port.
    pub local: SocketAddr,
    /// The guest's address.
    pub guest: SocketAddr,
    /// The address that the other connection goes to, or comes from.
    pub far: SocketAddr,
    /// Bytes that the gateway has taken from one side and the other has not taken yet.
    pub held: usize,
}

/// What a gateway holds at a moment.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Holdings {
    /// TCP connections.
    pub flows: Vec<FlowView>,
    /// Addresses and ports of guests that have a UDP socket.
    pub mappings: usize,
}

/// Questions to the thread of a gateway.
#[derive(Debug)]
pub(crate) struct Questions {
    is_any: AtomicBool,
    waiting: Mutex<Vec<SyncSender<Holdings>>>,
}

impl Questions {
    pub(crate) fn new() -> Arc<Self> {
        let waiting = Mutex::default();
        Arc::new(Self { is_any: AtomicBool::new(false), waiting })
    }

    /// Takes a question; `None` if there are too many.
    fn ask(&self) -> Option<Receiver<Holdings>> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() >= MOST_QUESTIONS {
            return None;
        }
        let (answer, answered) = sync_channel(1);
        waiting.push(answer);
        self.is_any.store(true, Ordering::SeqCst);
        Some(answered)
    }

    /// Answers all questions, on the thread of the gateway.
    pub(crate) fn answer(&self, look: impl FnOnce() -> Holdings) {
        if !self.is_any.load(Ordering::SeqCst) {
            return;
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        // With the list locked: both agree.
        self.is_any.store(false, Ordering::SeqCst);
        let asked = std::mem::take(&mut *waiting);
        drop(waiting);
        let holdings = look();
        for answer in asked {
            match answer.try_send(holdings.clone()) {
                // Who asked may have given up.
                Ok(()) | Err(TrySendError::Disconnected(_) | TrySendError::Full(_)) => {}
            }
        }
    }
}

/// Looks at a running [`Gateway`](crate::Gateway) from any thread. It is what a control socket and
/// metrics add to the figures of the stack ([`neap::control::ControlOptions::application`]).
#[derive(Clone, Debug)]
pub struct Inspector {
    poller: Arc<Poller>,
    questions: Arc<Questions>,
    counters: Arc<Counters>,
}

impl Inspector {
    pub(crate) fn new(
        poller: Arc<Poller>,
        questions: Arc<Questions>,
        counters: Arc<Counters>,
    ) -> Self {
        Self { poller, questions, counters }
    }

    /// Returns what the gateway holds, or `None` if it does not run or is asked by too many.
    ///
    /// It waits for the gateway's thread for at most one second. The thread needs O(flows).
    pub fn holdings(&self) -> Option<Holdings> {
        let answered = self.questions.ask()?;
        self.poller.notify();
        answered.recv_timeout(PATIENCE).ok()
    }

    /// Returns what happened so far.
    pub fn figures(&self) -> Figures {
        self.counters.figures()
    }
}

impl Application for Inspector {
    fn counters(&self) -> Vec<(&'static str, u64)> {
        by_name(&self.figures())
    }

    fn gauges(&self) -> Vec<(&'static str, u64)> {
        let Some(holdings) = self.holdings() else { return Vec::new() };
        vec![
            ("GatewayFlows", holdings.flows.len() as u64),
            ("GatewayMappings", holdings.mappings as u64),
            ("GatewayHeldBytes", holdings.flows.iter().map(|flow| flow.held as u64).sum()),
        ]
    }

    fn far_addresses(&self) -> HashMap<(SocketAddr, SocketAddr), SocketAddr> {
        let flows = self.holdings().unwrap_or_default().flows;
        flows.into_iter().map(|flow| ((flow.local, flow.guest), flow.far)).collect()
    }
}

/// The counters of a gateway, by their names for `nstat`.
fn by_name(figures: &Figures) -> Vec<(&'static str, u64)> {
    let Figures {
        opened,
        denied,
        full,
        unreached,
        finished,
        lost,
        bytes_out,
        bytes_in,
        mappings,
        full_mappings,
        datagrams_out,
        unsent_datagrams,
        denied_datagrams,
        datagrams_in,
        lost_datagrams,
        undelivered_datagrams,
    } = *figures;
    vec![
        ("GatewayOpened", opened),
        ("GatewayDenied", denied),
        ("GatewayFull", full),
        ("GatewayUnreached", unreached),
        ("GatewayFinished", finished),
        ("GatewayLost", lost),
        ("GatewayBytesOut", bytes_out),
        ("GatewayBytesIn", bytes_in),
        ("GatewayMappingsMade", mappings),
        ("GatewayFullMappings", full_mappings),
        ("GatewayDatagramsOut", datagrams_out),
        ("GatewayUnsentDatagrams", unsent_datagrams),
        ("GatewayDeniedDatagrams", denied_datagrams),
        ("GatewayDatagramsIn", datagrams_in),
        ("GatewayLostDatagrams", lost_datagrams),
        ("GatewayUndeliveredDatagrams", undelivered_datagrams),
    ]
}
