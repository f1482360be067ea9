//! TLS between a client and a proxy, by rustls.
//!
//! Cost: about 40 KiB for each connection while it has data: rustls holds at most one record that
//! came, one that is being read, and [`MOST_HELD`] bytes that are to be sent.

use crate::host::HostStream;
use crate::relay::{End, SMALL, take_front};
use bytes::{Buf, Bytes};
use neap::device::SendQueue;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;

/// Bytes that are sealed and not sent yet.
const MOST_HELD: usize = 64 << 10;
/// Bytes of a record.
const RECORD: usize = 16 << 10;

/// Who a proxy is to clients that speak TLS to it: a certificate and its key.
#[derive(Clone)]
pub struct TlsIdentity(Arc<ServerConfig>);

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsIdentity").finish_non_exhaustive()
    }
}

impl TlsIdentity {
    /// Reads the certificate with its chain and the private key of it, both in PEM.
    ///
    /// # Errors
    /// `InvalidData` for what is no certificate or no key, and for a key of another certificate.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> io::Result<Self> {
        let invalid = |why: &str, error: &dyn fmt::Display| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{why}: {error}"))
        };
        let chain: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(chain).collect();
        let chain = chain.map_err(|error| invalid("not a certificate in PEM", &error))?;
        if chain.is_empty() {
            return Err(invalid("not a certificate in PEM", &"there is none"));
        }
        let key = PrivateKeyDer::from_pem_slice(key);
        // The error could quote the key.
        let key = key.map_err(|_| invalid("not a private key in PEM", &"it cannot be read"))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.map_err(|error| invalid("TLS", &error))?;
        let config = config.with_no_client_auth().with_single_cert(chain, key);
        let config = config.map_err(|error| invalid("the certificate and its key", &error))?;
        Ok(Self(Arc::new(config)))
    }
}

/// A connection of a client that speaks TLS.
pub(super) struct TlsStream {
    stream: HostStream,
    tls: ServerConnection,
    /// Received, and not yet read by TLS.
    sealed: Bytes,
    /// The stream ends once all is sent.
    ends: bool,
    has_ended: bool,
    /// Most bytes that are received at once.
    piece: usize,
}

impl TlsStream {
    pub(super) fn new(stream: HostStream, identity: &TlsIdentity) -> io::Result<Self> {
        let mut tls = ServerConnection::new(identity.0.clone()).map_err(io::Error::other)?;
        tls.set_buffer_limit(Some(MOST_HELD));
        let (ends, has_ended) = (false, false);
        Ok(Self { stream, tls, sealed: Bytes::new(), ends, has_ended, piece: RECORD })
    }

    /// Opens what came.
    fn take_sealed(&mut self) -> io::Result<()> {
        if self.sealed.is_empty() {
            match self.stream.receive()? {
                Some(sealed) => self.sealed = sealed,
                // TLS learns of the end.
                None => return self.tls.read_tls(&mut io::empty()).map(drop),
            }
        }
        let count = self.tls.read_tls(&mut &self.sealed[..])?;
        self.sealed.advance(count);
        let opened = self.tls.process_new_packets();
        // The client may get an alert, or the server's part of the handshake.
        let sent = self.flush();
        opened.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        sent.map(drop)
    }
}

/// The socket, as what rustls writes to.
struct Sink<'a>(&'a mut HostStream);

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut pieces = VecDeque::from([Bytes::copy_from_slice(bytes)]);
        self.0.send(&mut pieces, usize::MAX)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl End for TlsStream {
    fn receive(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            let mut data = [0; RECORD];
            match self.tls.reader().read(&mut data[..self.piece]) {
                Ok(0) => return Ok(None),
                Ok(count) => return Ok(Some(Bytes::copy_from_slice(&data[..count]))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.take_sealed()?,
                // The client has closed the connection without a word.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    fn send(&mut self, pieces: &mut VecDeque<Bytes>, most: usize) -> io::Result<usize> {
        if !self.flush()? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut sent = 0;
        while let Some(first) = pieces.front() {
            let part = &first[..first.len().min(most - sent)];
            let count = self.tls.writer().write(part)?;
            if count == 0 {
                break;
            }
            sent += count;
            take_front(pieces, count);
        }
        self.flush()?;
        Ok(sent)
    }

    fn at_once(&self) -> usize {
        RECORD
    }

    fn finish(&mut self) -> io::Result<()> {
        self.tls.send_close_notify();
        self.ends = true;
        self.flush().map(drop)
    }

    fn flush(&mut self) -> io::Result<bool> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut Sink(&mut self.stream)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        if self.ends && !std::mem::replace(&mut self.has_ended, true) {
            self.stream.finish()?;
        }
        Ok(true)
    }

    fn set_piece(&mut self, bytes: usize) {
        self.stream.set_piece(bytes);
    }

    fn save_memory(&mut self, saves: bool) {
        self.piece = if saves { SMALL } else { RECORD };
        self.stream.save_memory(saves);
    }

    fn take_error(&mut self) -> io::Result<()> {
        self.stream.take_error()
    }

    fn send_queue(&self) -> Option<SendQueue> {
        self.stream.send_queue()
    }

    fn held(&self) -> usize {
        self.sealed.len() + self.stream.held()
    }

    fn reset(&mut self) {
        self.stream.reset();
    }
}
