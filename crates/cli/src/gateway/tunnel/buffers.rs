//! Buffers of the UDP socket that the host has made smaller than they were asked for: whoever runs
//! a tunnel is told, as slow transfers show it in no other way.

use neap_wireguard::{SocketBuffer, Status};
use std::path::Path;

/// What the log has said of the buffers of a tunnel.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    told: Vec<Capped>,
    /// Small buffers are a warning. Otherwise they are for those who ask for more (`--log info`).
    is_warning: bool,
}

/// A buffer that is smaller than it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Capped {
    sysctl: &'static str,
    buffer: SocketBuffer,
}

impl Buffers {
    pub(super) fn new(is_warning: bool) -> Self {
        Self { told: Vec::new(), is_warning }
    }

    /// Tells of small buffers of the socket that a tunnel has now, unless they were told of as they
    /// are.
    pub(super) fn tell(&mut self, path: &Path, status: &Status) {
        let Some(line) = self.news(status.receive_buffer, status.send_buffer) else { return };
        let path = path.display();
        if self.is_warning {
            tracing::warn!("{path}: {line}");
        } else {
            tracing::info!("{path}: {line}");
        }
    }

    /// What is to be said of these buffers.
    fn news(&mut self, receive: SocketBuffer, send: SocketBuffer) -> Option<String> {
        let both = [("net.core.rmem_max", receive), ("net.core.wmem_max", send)];
        let capped = both.into_iter().filter(|(_, buffer)| buffer.is_capped());
        let capped: Vec<_> = capped.map(|(sysctl, buffer)| Capped { sysctl, buffer }).collect();
        if capped == self.told {
            return None;
        }
        self.told = capped;
        // The kernel doubles what it is asked for.
        let setting =
            |Capped { sysctl, buffer }: &Capped| format!("{sysctl}={}", buffer.wanted / 2);
        let settings: Vec<_> = self.told.iter().map(setting).collect();
        (!settings.is_empty()).then(|| {
            format!(
                "the host gives the UDP socket less memory than it asks for, so that fast \
                 transfers are slower; for all of it, before the start, as root: sysctl -w {}",
                settings.join(" ")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_buffers_are_told_of_once_with_what_they_should_be() {
        let buffer = |granted| SocketBuffer { granted, wanted: 1 << 20 };
        let (small, whole) = (buffer(425_984), buffer(1 << 20));
        let mut buffers = Buffers::default();
        for (receive, send, settings) in [
            (whole, whole, None),
            (whole, small, Some("net.core.wmem_max=524288")),
            (whole, small, None),
            (small, small, Some("net.core.rmem_max=524288 net.core.wmem_max=524288")),
            (buffer(500_000), small, Some("net.core.rmem_max=524288 net.core.wmem_max=524288")),
            (whole, whole, None),
            (small, whole, Some("net.core.rmem_max=524288")),
        ] {
            let news = buffers.news(receive, send);
            let expected = settings.map(|settings| format!("sysctl -w {settings}"));
            assert_eq!(news.is_some(), expected.is_some(), "{receive:?} {send:?}");
            let is_told = |(news, expected): (String, String)| news.ends_with(&expected);
            assert!(news.clone().zip(expected).is_none_or(is_told), "{news:?}");
        }
    }
}
