//! Handing a frame to a descriptor with one system call: virtio-net header, headers and payload.

use neap_stack::frame::Frame;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use smallvec::SmallVec;
use std::io::IoSlice;

/// `IOV_MAX`: most slices of one `writev`.
const SLICES_MAX: usize = 1024;

/// Writes `header`, if there is one, and the frame behind it, and returns the number of bytes.
///
/// # Errors
/// Those of `writev`, except that an interrupted call is repeated.
pub(crate) fn write_frame(
    fd: &OwnedFd,
    header: Option<&[u8]>,
    frame: &Frame,
) -> rustix::io::Result<usize> {
    let chunks = frame.payload.chunks();
    let room = SLICES_MAX - 2;
    let (direct, rest) = chunks.split_at(chunks.len().min(room - 1));
    // Only a payload in a thousand pieces has a rest.
    let rest = rest.concat();
    let mut slices: SmallVec<[IoSlice<'_>; 8]> = SmallVec::new();
    slices.extend(header.map(IoSlice::new));
    slices.push(IoSlice::new(frame.headers.as_slice()));
    slices.extend(direct.iter().map(|chunk| IoSlice::new(chunk)));
    if !rest.is_empty() {
        slices.push(IoSlice::new(&rest));
    }
    loop {
        match rustix::io::writev(fd, &slices) {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}
