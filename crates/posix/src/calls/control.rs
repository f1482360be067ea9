//! `fcntl` and `ioctl`.

use crate::abi::*;
use crate::errno::Errno;
use crate::file::Object;
use crate::socket::Kind;
use crate::{Fd, Posix};
use neap_tcp::time::Instant;

impl Posix {
    /// `fcntl(2)`: `F_DUPFD`, `F_DUPFD_CLOEXEC`, `F_GETFD`, `F_SETFD`, `F_GETFL`, and `F_SETFL` of
    /// `O_NONBLOCK`. `O_APPEND` and `O_NOATIME` are kept and do nothing.
    ///
    /// # Errors
    /// `EBADF`; `EINVAL` for other commands, a descriptor out of range, `O_DIRECT`, and `O_ASYNC`
    /// of a socket, since there are no signals; `EMFILE`.
    pub fn fcntl(&self, fd: Fd, command: i32, argument: i64) -> Result<i32, Errno> {
        let file = self.table.file(fd)?;
        match command {
            F_DUPFD | F_DUPFD_CLOEXEC => {
                let least = Fd::try_from(argument).ok().filter(|least| *least >= 0);
                let least = least.ok_or(Errno::EINVAL)?;
                self.table.duplicate(fd, least, command == F_DUPFD_CLOEXEC)
            }
            F_GETFD => Ok(if self.table.close_on_exec(fd)? { FD_CLOEXEC } else { 0 }),
            F_SETFD => {
                self.table.set_close_on_exec(fd, argument & i64::from(FD_CLOEXEC) != 0)?;
                Ok(0)
            }
            F_GETFL => {
                let access = match &file.object {
                    Object::Pipe(end) if end.writes => O_WRONLY,
                    Object::Pipe(_) => O_RDONLY,
                    _ => O_RDWR,
                };
                let nonblocking = if file.is_nonblocking() { O_NONBLOCK } else { 0 };
                Ok(access | nonblocking | file.idle_flags())
            }
            F_SETFL => {
                let flags = argument as i32;
                let is_socket = matches!(file.object, Object::Socket(_));
                if flags & O_DIRECT != 0 || is_socket && flags & O_ASYNC != 0 {
                    return Err(Errno::EINVAL);
                }
                file.set_nonblocking(flags & O_NONBLOCK != 0);
                file.set_idle_flags(flags & (O_APPEND | O_NOATIME));
                Ok(0)
            }
            _ => Err(Errno::EINVAL),
        }
    }

    /// `ioctl(2)`: `FIONREAD`, `SIOCOUTQ`, `SIOCOUTQNSD` and `SIOCATMARK` return the value that
    /// Linux writes through the pointer; `FIONBIO` takes `argument`.
    ///
    /// # Errors
    /// `EBADF`; `ENOTTY` for other requests; `EINVAL` on a listener and on an epoll set.
    pub fn ioctl(&self, now: Instant, fd: Fd, request: u64, argument: i32) -> Result<i32, Errno> {
        let file = self.table.file(fd)?;
        if request == FIONBIO {
            file.set_nonblocking(argument != 0);
            return Ok(0);
        }
        let socket = match &file.object {
            Object::Socket(socket) => socket.lock(),
            Object::Epoll(_) => return Err(Errno::EINVAL),
            Object::Pipe(end) if request == SIOCINQ => {
                return Ok(i32::try_from(end.lock().len()).unwrap_or(i32::MAX));
            }
            Object::Pipe(_) => return Err(Errno::ENOTTY),
        };
        let count = match (&socket.kind, request) {
            (Kind::Listening(_), SIOCINQ | SIOCOUTQ | SIOCOUTQNSD) => return Err(Errno::EINVAL),
            (Kind::Fresh | Kind::Datagram(None), SIOCINQ | SIOCOUTQ) => 0,
            (Kind::Fresh, SIOCOUTQNSD) => 0,
            (Kind::Stream { handle, .. }, SIOCINQ) => handle.unread(now),
            (Kind::Stream { handle, .. }, SIOCOUTQ) => handle.outq(now),
            (Kind::Stream { handle, .. }, SIOCOUTQNSD) => handle.outq_nsd(now),
            // The next datagram's size, and an error is not one.
            (Kind::Datagram(Some(handle)), SIOCINQ) => handle.next_len(),
            (Kind::Datagram(Some(handle)), SIOCOUTQ) => {
                u32::try_from(handle.bytes_below()).unwrap_or(u32::MAX)
            }
            // There is no urgent data, so the mark is nowhere.
            (Kind::Fresh | Kind::Listening(_) | Kind::Stream { .. }, SIOCATMARK) => 0,
            _ => return Err(Errno::ENOTTY),
        };
        Ok(i32::try_from(count).unwrap_or(i32::MAX))
    }
}
