//! Changes of socket options on an existing connection.

use super::{Connection, Readiness};
use crate::config::Config;
use crate::options::{OptionError, SocketOption};
use crate::state::State;
use crate::time::Instant;
use std::sync::Arc;

impl Connection {
    /// Goes by other settings from now on, as an open socket of Linux does when a sysctl changes.
    ///
    /// What was decided when the connection was made stays: buffer sizes, bounds of the timeout,
    /// the congestion controller, the agreement of the handshake. Until the connection is open, so
    /// does everything that its SYN offers. Nothing is sent and no timer moves; what the settings
    /// say is looked at when the connection next sends, receives or times out.
    pub fn set_config(&mut self, config: Arc<Config>) {
        let next = self.rare.as_ref().and_then(|rare| rare.next_config.as_ref());
        if Arc::ptr_eq(next.unwrap_or(&self.config), &config) {
            return;
        }
        if matches!(self.state, State::SynSent | State::SynReceived) {
            let Config { tcp_rmem, rmem_max, tcp_window_scaling, .. } = *self.config;
            let Config { tcp_timestamps, tcp_sack, tcp_ecn, tcp_min_snd_mss, .. } = *self.config;
            let opening = Config {
                tcp_rmem,
                rmem_max,
                tcp_window_scaling,
                tcp_timestamps,
                tcp_sack,
                tcp_ecn,
                tcp_min_snd_mss,
                ..Config::clone(&config)
            };
            self.rare().next_config = Some(config);
            self.replace_config(Arc::new(opening));
        } else {
            self.replace_config(config);
        }
        self.check_space();
    }

    /// The handshake is over: what the SYN offered no longer binds the settings.
    pub(super) fn adopt_next_config(&mut self) {
        if let Some(config) = self.rare.as_mut().and_then(|rare| rare.next_config.take()) {
            self.replace_config(config);
        }
    }

    fn replace_config(&mut self, config: Arc<Config>) {
        self.receiver.set_config(config.clone());
        self.config = config;
    }

    /// Sets one option.
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
                    self.end_hold();
                }
            }
            SocketOption::Cork(on) => {
                self.push_override |= was_corked && !on && options.nodelay;
                if !on {
                    self.end_hold();
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
            SocketOption::MaxPacingRate(_) | SocketOption::MaxPacingRate32(_) => {
                self.sender.set_max_pacing_rate(options.max_pacing_rate);
            }
            SocketOption::NotSentLowat(_) | SocketOption::NotSentLowatMicros(_) => {
                self.check_space();
            }
            SocketOption::Congestion(name) => {
                let controller = self.config.controllers.make(&name)?;
                // The one that is in use goes on (`tcp_set_congestion_control`).
                if controller.name() != self.sender.controller().name() {
                    self.sender.set_controller(controller, now, &self.config);
                }
            }
            SocketOption::KeepAliveInterval(_)
            | SocketOption::KeepAliveCount(_)
            | SocketOption::UserTimeout(_)
            | SocketOption::Linger(_)
            | SocketOption::Priority(_)
            | SocketOption::ReceiveErrors(_)
            // The handshake agrees on it.
            | SocketOption::MaxSegment(_)
            | SocketOption::HopLimit(_) => {}
        }
        Ok(())
    }
}
