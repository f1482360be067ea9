//! Bytes of the headers of IP, without options and extensions: RFC 791, RFC 8200.

/// That of IPv4.
pub(crate) const V4_HEADER: usize = 20;
/// That of IPv6.
pub(crate) const V6_HEADER: usize = 40;

/// That of a family.
pub(crate) const fn len(is_v6: bool) -> usize {
    if is_v6 { V6_HEADER } else { V4_HEADER }
}
