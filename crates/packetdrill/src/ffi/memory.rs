//! Arguments of system calls: what pointers and lengths of C stand for.
//!
//! The ground of the unsafe code here is the contract of system calls: a buffer of payload, a
//! packet and an array whose count has been checked are valid for their length while the call runs,
//! and nobody else uses them meanwhile; other pointers are null or point at one value of their
//! type. A script may give any length to what is none of these (addresses, options): of those no
//! more is touched than the kernel would.

use core::ffi::{c_int, c_void};
use core::slice;
use libc::{iovec, socklen_t};
use neap_posix::Errno;

/// Bytes that one call moves at the most (`MAX_RW_COUNT` in Linux).
const MOVED_MOST: usize = 0x7fff_f000;
/// Parts of a vector (`UIO_MAXIOV` in Linux).
const PARTS_MOST: usize = 1024;
/// Bytes of an address (`struct sockaddr_storage`).
const ADDRESS_MOST: usize = 128;

/// The bytes of an argument; none where the pointer is null.
pub(crate) fn bytes<'a>(data: *const c_void, len: usize) -> &'a [u8] {
    items(data.cast(), len.min(MOVED_MOST))
}

/// The bytes of an argument that the call writes; none where the pointer is null.
pub(crate) fn bytes_mut<'a>(data: *mut c_void, len: usize) -> &'a mut [u8] {
    items_mut(data.cast(), len.min(MOVED_MOST))
}

/// Values of any type at a pointer with a count that is no more than there are.
fn items<'a, T>(data: *const T, count: usize) -> &'a [T] {
    match data.is_null() || count == 0 {
        true => &[],
        // SAFETY: a pointer that comes with its length, see the head of this file.
        false => unsafe { slice::from_raw_parts(data, count) },
    }
}

/// Values of any type that the call writes, at a pointer with a count that is no more than there
/// are.
pub(crate) fn items_mut<'a, T>(data: *mut T, count: usize) -> &'a mut [T] {
    match data.is_null() || count == 0 {
        true => &mut [],
        // SAFETY: a pointer that comes with its length and that nobody else uses meanwhile.
        false => unsafe { slice::from_raw_parts_mut(data, count) },
    }
}

/// The value at a pointer that may be null.
pub(crate) fn value<'a, T>(at: *mut T) -> Option<&'a mut T> {
    // SAFETY: null or one value of its type, see the head of this file.
    unsafe { at.as_mut() }
}

/// The value at a pointer that may be null, for a call that only reads it.
pub(crate) fn read_value<'a, T>(at: *const T) -> Option<&'a T> {
    // SAFETY: null or one value of its type, see the head of this file.
    unsafe { at.as_ref() }
}

/// Whether a pointer is null that the call needs.
pub(crate) fn is_bad(data: *const c_void, len: usize) -> bool {
    data.is_null() && len > 0
}

/// Copies the front of what is at `from` to `to`, as far as this process can read it: the kernel
/// does the copying, so that a length beyond the object does no harm. Returns how much was copied.
///
/// # Errors
/// `EFAULT` where nothing can be read.
pub(crate) fn copy_in(from: *const c_void, to: &mut [u8]) -> Result<usize, Errno> {
    if to.is_empty() {
        return Ok(0);
    }
    let here = iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let there = iovec { iov_base: from.cast_mut(), iov_len: to.len() };
    // SAFETY: writes `to` alone; a bad `from` is an error.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), &here, 1, &there, 1, 0) };
    usize::try_from(copied).map_err(|_| Errno::EFAULT)
}

/// Writes the value of an option, which the caller has room for.
///
/// # Errors
/// `EFAULT` without a place.
pub(crate) fn give(data: &[u8], to: *mut c_void) -> Result<(), Errno> {
    if is_bad(to, data.len()) {
        return Err(Errno::EFAULT);
    }
    bytes_mut(to, data.len()).copy_from_slice(data);
    Ok(())
}

/// An address that a script may have given any length, as a copy.
#[derive(Debug)]
pub(crate) struct Address {
    bytes: [u8; ADDRESS_MOST],
    len: usize,
}

impl Address {
    /// # Errors
    /// `EINVAL` for a length that no address has, `EFAULT` where there is none
    /// (`move_addr_to_kernel`).
    pub(crate) fn new(at: *const c_void, len: socklen_t) -> Result<Self, Errno> {
        let mut bytes = [0; ADDRESS_MOST];
        let room = bytes.get_mut(..len as usize).ok_or(Errno::EINVAL)?;
        let len = copy_in(at, room)?;
        Ok(Self { bytes, len })
    }

    /// One that may be missing.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn optional(at: *const c_void, len: socklen_t) -> Result<Option<Self>, Errno> {
        if at.is_null() { Ok(None) } else { Self::new(at, len).map(Some) }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The buffers of a call that scatters or gathers.
#[derive(Clone, Copy)]
pub(crate) struct Vector<'a> {
    parts: &'a [iovec],
    len: usize,
}

impl<'a> Vector<'a> {
    /// That of `readv` and `writev`.
    ///
    /// # Errors
    /// `EINVAL` for a count or a sum beyond the limits, `EFAULT` for a null pointer
    /// (`import_iovec`).
    pub(crate) fn new(parts: *const iovec, count: c_int) -> Result<Self, Errno> {
        let count = usize::try_from(count).ok().filter(|&count| count <= PARTS_MOST);
        Self::checked(parts, count.ok_or(Errno::EINVAL)?, false)
    }

    /// That of a message; where what arrives is dropped no buffer is needed.
    ///
    /// # Errors
    /// `EMSGSIZE` for too many parts, else as [`new`](Self::new).
    pub(crate) fn of_message(
        parts: *const iovec,
        count: usize,
        is_dropped: bool,
    ) -> Result<Self, Errno> {
        if count > PARTS_MOST {
            return Err(Errno::EMSGSIZE);
        }
        Self::checked(parts, count, is_dropped)
    }

    fn checked(parts: *const iovec, count: usize, may_be_null: bool) -> Result<Self, Errno> {
        if is_bad(parts.cast(), count) {
            return Err(Errno::EFAULT);
        }
        let parts = items(parts, count);
        let mut len = 0usize;
        for part in parts {
            len = len.saturating_add(part.iov_len);
            if part.iov_len > isize::MAX as usize {
                return Err(Errno::EINVAL);
            }
            if is_bad(part.iov_base, part.iov_len) && !may_be_null {
                return Err(Errno::EFAULT);
            }
        }
        Ok(Self { parts, len: len.min(MOVED_MOST) })
    }

    /// Bytes of all parts, as far as one call can move.
    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// Copies the front of `data` into the parts.
    pub(crate) fn scatter(self, mut data: &[u8]) {
        for part in self.parts.iter().filter(|part| !part.iov_base.is_null()) {
            let (now, later) = data.split_at(part.iov_len.min(data.len()));
            bytes_mut(part.iov_base, now.len()).copy_from_slice(now);
            data = later;
        }
    }

    /// All bytes, one after the other.
    pub(crate) fn gather(self) -> Vec<u8> {
        let mut data = Vec::with_capacity(self.len);
        for part in self.parts {
            let room = self.len - data.len();
            data.extend_from_slice(bytes(part.iov_base, part.iov_len.min(room)));
        }
        data
    }
}
