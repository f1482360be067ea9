//! The fields of `struct tcp_info` by their names.

/// Where a field of `struct tcp_info` lies: offset, bytes, shift and bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    offset: usize,
    bytes: usize,
    shift: u32,
    bits: u32,
}

impl Field {
    /// Its value in a `struct tcp_info`; `None` if that is too short to have it.
    pub(crate) fn read(self, info: &[u8]) -> Option<u64> {
        let bytes = info.get(self.offset..self.offset + self.bytes)?;
        let value = bytes.iter().rev().fold(0, |value, &byte| (value << 8) | u64::from(byte));
        Some(if self.bits == 0 { value } else { (value >> self.shift) & ((1 << self.bits) - 1) })
    }
}

/// Fields of bits: name, offset, shift, bits.
const BIT_FIELDS: &[(&str, usize, u32, u32)] = &[
    ("tcpi_snd_wscale", 6, 0, 4),
    ("tcpi_rcv_wscale", 6, 4, 4),
    ("tcpi_delivery_rate_app_limited", 7, 0, 1),
    ("tcpi_fastopen_client_fail", 7, 1, 2),
];

/// Fields of whole bytes: name, offset, bytes.
const FIELDS: &[(&str, usize, usize)] = &[
    ("tcpi_state", 0, 1),
    ("tcpi_ca_state", 1, 1),
    ("tcpi_retransmits", 2, 1),
    ("tcpi_probes", 3, 1),
    ("tcpi_backoff", 4, 1),
    ("tcpi_options", 5, 1),
    ("tcpi_rto", 8, 4),
    ("tcpi_ato", 12, 4),
    ("tcpi_snd_mss", 16, 4),
    ("tcpi_rcv_mss", 20, 4),
    ("tcpi_unacked", 24, 4),
    ("tcpi_sacked", 28, 4),
    ("tcpi_lost", 32, 4),
    ("tcpi_retrans", 36, 4),
    ("tcpi_fackets", 40, 4),
    ("tcpi_last_data_sent", 44, 4),
    ("tcpi_last_ack_sent", 48, 4),
    ("tcpi_last_data_recv", 52, 4),
    ("tcpi_last_ack_recv", 56, 4),
    ("tcpi_pmtu", 60, 4),
    ("tcpi_rcv_ssthresh", 64, 4),
    ("tcpi_rtt", 68, 4),
    ("tcpi_rttvar", 72, 4),
    ("tcpi_snd_ssthresh", 76, 4),
    ("tcpi_snd_cwnd", 80, 4),
    ("tcpi_advmss", 84, 4),
    ("tcpi_reordering", 88, 4),
    ("tcpi_rcv_rtt", 92, 4),
    ("tcpi_rcv_space", 96, 4),
    ("tcpi_total_retrans", 100, 4),
    ("tcpi_pacing_rate", 104, 8),
    ("tcpi_max_pacing_rate", 112, 8),
    ("tcpi_bytes_acked", 120, 8),
    ("tcpi_bytes_received", 128, 8),
    ("tcpi_segs_out", 136, 4),
    ("tcpi_segs_in", 140, 4),
    ("tcpi_notsent_bytes", 144, 4),
    ("tcpi_min_rtt", 148, 4),
    ("tcpi_data_segs_in", 152, 4),
    ("tcpi_data_segs_out", 156, 4),
    ("tcpi_delivery_rate", 160, 8),
    ("tcpi_busy_time", 168, 8),
    ("tcpi_rwnd_limited", 176, 8),
    ("tcpi_sndbuf_limited", 184, 8),
    ("tcpi_delivered", 192, 4),
    ("tcpi_delivered_ce", 196, 4),
    ("tcpi_bytes_sent", 200, 8),
    ("tcpi_bytes_retrans", 208, 8),
    ("tcpi_dsack_dups", 216, 4),
    ("tcpi_reord_seen", 220, 4),
    ("tcpi_rcv_ooopack", 224, 4),
    ("tcpi_snd_wnd", 228, 4),
    ("tcpi_rcv_wnd", 232, 4),
    ("tcpi_rehash", 236, 4),
    ("tcpi_total_rto", 240, 2),
    ("tcpi_total_rto_recoveries", 242, 2),
    ("tcpi_total_rto_time", 244, 4),
];

/// A field of `TCP_INFO` by its name.
pub(crate) fn field(name: &str) -> Option<Field> {
    let whole = FIELDS.iter().find(|(known, ..)| *known == name);
    if let Some(&(_, offset, bytes)) = whole {
        return Some(Field { offset, bytes, shift: 0, bits: 0 });
    }
    let part = BIT_FIELDS.iter().find(|(known, ..)| *known == name);
    part.map(|&(_, offset, shift, bits)| Field { offset, bytes: 1, shift, bits })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_tcp_info_are_read() {
        let mut info = [0; 104];
        info[6] = 0x72;
        info[80..84].copy_from_slice(&10u32.to_le_bytes());
        let read = |name| field(name).and_then(|field| field.read(&info));
        assert_eq!(read("tcpi_snd_cwnd"), Some(10));
        assert_eq!((read("tcpi_snd_wscale"), read("tcpi_rcv_wscale")), (Some(2), Some(7)));
        assert_eq!(read("tcpi_bytes_acked"), None);
    }
}
