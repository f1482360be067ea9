//! What happens to the network of a running stack, for a thread, an event loop or a task.

use crate::bell::Bell;
use crate::workers::Stack;
use neap_stack::event::{StackEvent, Subscription};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvError, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

/// Receiver of the events of a stack: links that go down and come up, devices that go away, changes
/// of interfaces and addresses.
///
/// Use it in a daemon that must react when its device is removed, or that reports the state of its
/// links. [`Stack::events`] makes one; it gets the events that happen from then on. It holds at
/// most 256 events, and [`StackEvent::Missed`] counts those beyond. The calls are those of
/// [`std::sync::mpsc::Receiver`]: they fail with "disconnected" when the stack was dropped and all
/// events were taken. For event loops it has a descriptor, which is readable while events wait.
///
/// ```no_run
/// # let builder = neap::Stack::builder().tun("neap0").host_address("10.9.0.1/24");
/// # let stack = builder.address("10.9.0.2/24").build()?;
/// let events = stack.events()?;
/// std::thread::spawn(move || {
///     while let Ok(event) = events.recv() {
///         println!("{event:?}");
///     }
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct StackEvents {
    subscription: Subscription,
    bell: Arc<Bell>,
}

impl Stack {
    /// Returns a receiver of what happens to the network of this stack from now on.
    ///
    /// # Errors
    /// The error of `eventfd(2)` if the process has no descriptors left.
    pub fn events(&self) -> io::Result<StackEvents> {
        let bell = Arc::new(Bell::new()?);
        let subscription = self.engine().stack.subscribe();
        subscription.set_waker(Some(bell.clone().into()));
        Ok(StackEvents { subscription, bell })
    }
}

impl StackEvents {
    /// Takes the oldest event, without waiting.
    ///
    /// # Errors
    /// `Empty` if no event waits; `Disconnected` when the stack was dropped.
    pub fn try_recv(&self) -> Result<StackEvent, TryRecvError> {
        if let Some(event) = self.subscription.take() {
            return Ok(event);
        }
        // Asked before the bell is silenced, so that an event before the end is found below.
        let is_over = self.subscription.is_over();
        self.bell.silence();
        match self.subscription.take() {
            Some(event) => {
                // More may have come before the bell was silenced.
                self.bell.ring();
                Ok(event)
            }
            None if is_over => {
                self.bell.ring();
                Err(TryRecvError::Disconnected)
            }
            None => Err(TryRecvError::Empty),
        }
    }

    /// Waits for an event. The workers of the stack drive it meanwhile.
    ///
    /// # Errors
    /// The stack was dropped.
    pub fn recv(&self) -> Result<StackEvent, RecvError> {
        loop {
            match self.try_recv() {
                Ok(event) => return Ok(event),
                Err(TryRecvError::Disconnected) => return Err(RecvError),
                Err(TryRecvError::Empty) => self.wait(None),
            }
        }
    }

    /// Waits for an event for `timeout` at the most.
    ///
    /// # Errors
    /// `Timeout` if none came in time; `Disconnected` when the stack was dropped.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<StackEvent, RecvTimeoutError> {
        let begin = Instant::now();
        loop {
            match self.try_recv() {
                Ok(event) => return Ok(event),
                Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                Err(TryRecvError::Empty) => {}
            }
            let left = timeout.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Err(RecvTimeoutError::Timeout);
            }
            self.wait(Some(left));
        }
    }

    /// Waits until the bell rings; it may return early.
    fn wait(&self, timeout: Option<Duration>) {
        // A timeout that the system cannot count is as good as none.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let _ = poll(&mut [PollFd::new(&*self.bell, PollFlags::IN)], timeout.as_ref());
    }

    /// Waits for an event in a task of tokio.
    ///
    /// Dropping the future loses no event.
    ///
    /// # Errors
    /// `UnexpectedEof` when the stack was dropped; `Other` outside of a runtime.
    ///
    /// # Panics
    /// The runtime has I/O disabled.
    #[cfg(feature = "tokio")]
    pub async fn recv_async(&self) -> io::Result<StackEvent> {
        use ::tokio::io::Interest;
        use ::tokio::io::unix::AsyncFd;
        ::tokio::runtime::Handle::try_current().map_err(io::Error::other)?;
        // Events are rare, so the runtime knows the bell only while somebody waits. Each who waits
        // has a descriptor of it: a runtime takes one once.
        let bell = self.as_fd().try_clone_to_owned()?;
        #[expect(deprecated, reason = "its successor is unsafe: it owns its descriptor")]
        let bell = AsyncFd::with_interest(bell, Interest::READABLE)?;
        loop {
            match self.try_recv() {
                Ok(event) => return Ok(event),
                Err(TryRecvError::Disconnected) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(TryRecvError::Empty) => bell.readable().await?.clear_ready(),
            }
        }
    }
}

impl AsFd for StackEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
