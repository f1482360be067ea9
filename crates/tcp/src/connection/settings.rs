//! Changes of socket options on an existing connection.

use super::{Connection, Readiness};
use crate::congestion;
use crate::options::{OptionError, SocketOption};
use crate::time::Instant;
use std::sync::Arc;

impl Connection {
    /// Sets one option of this connection.
    ///
    /// # Errors
    /// Those of [`SocketOptions::set`](crate::options::SocketOptions::set).
    pub fn set_option(&mut self, now: Instant, option: SocketOption) -> Result<(), OptionError> {
        let was_corked = self.options.cork;
        let options = Arc::make_mut(&mut self.options);
        options.set(&option, &self.config)?;
        match option {
            SocketOption::NoDelay(on) => {
                self.push_override |= on;
                if on {
                    self.sender.end_hold();
                }
            }
            SocketOption::Cork(on) => {
                self.push_override |= was_corked && !on && options.nodelay;
                if !on {
                    self.sender.end_hold();
                }
            }
            SocketOption::QuickAck(value) => self.receiver.set_quickack(value),
            SocketOption::KeepAlive(_) | SocketOption::KeepAliveIdle(_) => self.arm_keepalive(now),
            SocketOption::SendBuffer(_) => {
                self.sndbuf = options.send_buffer.unwrap_or(self.sndbuf);
                self.check_space();
            }
            SocketOption::ReceiveBuffer(_) => {
                if let Some(bytes) = options.receive_buffer {
                    self.receiver.set_rcvbuf(bytes);
                }
            }
            SocketOption::ReceiveLowat(_) => {
                let bytes = options.receive_lowat;
                self.receiver.make_room_for(bytes);
                if self.receiver.has_enough(bytes) {
                    self.edges |= Readiness::READABLE;
                }
            }
            SocketOption::MaxSegment(_) => self.refresh_mss(),
            SocketOption::MaxPacingRate(_) | SocketOption::MaxPacingRate32(_) => {
                self.sender.set_max_pacing_rate(options.max_pacing_rate);
            }
            SocketOption::NotSentLowat(_) | SocketOption::NotSentLowatMicros(_) => {
                self.check_space();
            }
            SocketOption::Congestion(name) => {
                let controller = congestion::by_name(&name);
                let controller = controller.ok_or(OptionError::UnknownCongestion(name))?;
                self.sender.set_controller(controller, now, &self.config);
            }
            SocketOption::KeepAliveInterval(_)
            | SocketOption::KeepAliveCount(_)
            | SocketOption::UserTimeout(_)
            | SocketOption::Linger(_)
            | SocketOption::Priority(_)
            | SocketOption::ReceiveErrors(_) => {}
        }
        Ok(())
    }
}
