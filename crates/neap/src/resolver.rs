//! Resolvers of names, and the addresses and names that sockets take.
//!
//! A stack looks names up only by the resolver that [`Builder::resolver`](crate::Builder::resolver)
//! gave to it. The resolver of the machine would send the names past the stack, which is a leak if
//! the stack is a VPN. Addresses need no resolver.
//!
//! Cost: nothing for an address. A name costs what its resolver costs.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::fmt;
use std::io;
use std::net::ToSocketAddrs;
use std::sync::Arc;

/// Looks up the addresses of a name for the sockets of a stack; given to
/// [`Builder::resolver`](crate::Builder::resolver).
///
/// A call blocks until it has an answer. Blocking sockets make it in the thread that connects or
/// binds. The sockets of `neap::tokio` make it on the runtime's pool for blocking calls
/// ([`spawn_blocking`]), so it holds no task up. A program with an asynchronous resolver asks that
/// resolver first, and gives the addresses to the socket.
///
/// Closures are resolvers:
///
/// ```no_run
/// let table = |name: &str, port: u16| match name {
///     "printer" => Ok(vec![([10, 9, 0, 7], port).into()]),
///     _ => Err(std::io::ErrorKind::NotFound.into()),
/// };
/// let stack = neap::Stack::builder()
///     .tun("neap0").host_address("10.9.0.1/24")
///     .address("10.9.0.2/24")
///     .resolver(table)
///     .build()?;
/// let stream = neap::TcpStream::connect(&stack, "printer:9100")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`spawn_blocking`]: https://docs.rs/tokio/latest/tokio/task/fn.spawn_blocking.html
pub trait Resolve: Send + Sync {
    /// Returns the addresses of `name`, each with `port`, in the order in which they are to be
    /// tried.
    ///
    /// # Errors
    /// The reason why there is no answer. The socket call fails with this error.
    fn resolve(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>>;
}

impl<F> Resolve for F
where
    F: Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync,
{
    fn resolve(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        self(name, port)
    }
}

/// The resolver of the operating system (`getaddrinfo`), which reads `/etc/hosts` and asks the
/// name servers of the machine.
///
/// The questions leave through the kernel's network, not through the stack. Where the stack stands
/// for another network, a VPN for instance, they tell the machine's network which names its users
/// visit, and the answers may be wrong in the other network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok((name, port).to_socket_addrs()?.collect())
    }
}

/// The resolver of a stack, or none.
#[derive(Clone, Default)]
pub(crate) struct Resolver(Option<Arc<dyn Resolve>>);

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Resolver" } else { "no resolver" })
    }
}

impl Resolver {
    pub(crate) fn new(resolve: impl Resolve + 'static) -> Self {
        Self(Some(Arc::new(resolve)))
    }

    /// Looks a name up, and blocks meanwhile.
    ///
    /// # Errors
    /// The stack has no resolver, the resolver has no answer, or the answer is empty.
    pub(crate) fn look_up(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let Some(resolver) = &self.0 else {
            let message = format!(
                "{name:?} is a name, and this stack has no resolver: give it one with \
                 Builder::resolver, or use an address"
            );
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        };
        let addresses = resolver.resolve(name, port)?;
        if addresses.is_empty() {
            let message = format!("the resolver has no address for {name:?}");
            return Err(io::Error::new(io::ErrorKind::NotFound, message));
        }
        Ok(addresses)
    }
}

/// Address or name of an end of a socket. The stack's resolver looks names up.
///
/// It is what [`std::net::ToSocketAddrs`] is for the sockets of std, but it never asks the resolver
/// of the machine: a name is looked up by what [`Builder::resolver`](crate::Builder::resolver) gave
/// to the stack. Text is `"address:port"` or `"name:port"`, where an IPv6 address stands in
/// brackets; a pair of text and port needs no brackets. The trait is sealed.
pub trait ToAddrs: sealed::Endpoint {}

mod sealed {
    pub trait Endpoint {
        fn endpoint(&self) -> std::io::Result<super::Target<'_>>;
    }
}

use sealed::Endpoint;

/// Addresses or name that a [`ToAddrs`] stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// An address.
    One(SocketAddr),
    /// Addresses, to be tried in this order.
    Many(&'a [SocketAddr]),
    /// A name to be looked up, and a port.
    Name(&'a str, u16),
}

impl<'a> Target<'a> {
    /// A name or an address in text, beside its port.
    fn of(name: &'a str, port: u16) -> Self {
        match name.parse::<IpAddr>() {
            Ok(ip) => Self::One(SocketAddr::new(ip, port)),
            Err(_) => Self::Name(name, port),
        }
    }

    /// Addresses or a name in text, its port after a colon.
    fn parse(text: &'a str) -> io::Result<Self> {
        if let Ok(address) = text.parse() {
            return Ok(Self::One(address));
        }
        let bad_for = |what, form| {
            let message = format!("{text:?} {what}: write {form}");
            io::Error::new(io::ErrorKind::InvalidInput, message)
        };
        let bad = |what| bad_for(what, "\"address:port\" or \"name:port\"");
        let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        if inner.unwrap_or(text).parse::<Ipv6Addr>().is_ok() {
            return Err(bad_for("has no port", "\"[address]:port\""));
        }
        let (name, port) = text.rsplit_once(':').ok_or_else(|| bad("has no port"))?;
        let port = port.parse().map_err(|_| bad("has a port that is no number up to 65535"))?;
        if name.is_empty() || name.contains([':', '[', ']']) {
            return Err(bad("has neither an address nor a name before its port"));
        }
        Ok(Self::of(name, port))
    }

    /// The first address. A name is looked up by `resolver`, and the thread blocks meanwhile.
    ///
    /// # Errors
    /// The name cannot be looked up; there are no addresses.
    pub(crate) fn first(self, resolver: &Resolver) -> io::Result<SocketAddr> {
        self.try_each(resolver, |address, _| Ok(address))
    }

    /// Calls `attempt` with one address after the other until it succeeds. The name is looked up
    /// by `resolver`, and the thread blocks meanwhile. `attempt` also gets how many addresses are
    /// left, this one included.
    ///
    /// # Errors
    /// That of the last attempt; the name cannot be looked up; there are no addresses.
    pub(crate) fn try_each<T>(
        self,
        resolver: &Resolver,
        mut attempt: impl FnMut(SocketAddr, usize) -> io::Result<T>,
    ) -> io::Result<T> {
        match self {
            Self::One(address) => attempt(address, 1),
            Self::Many(addresses) => each(addresses, attempt),
            Self::Name(name, port) => each(&resolver.look_up(name, port)?, attempt),
        }
    }
}

fn each<T>(
    addresses: &[SocketAddr],
    mut attempt: impl FnMut(SocketAddr, usize) -> io::Result<T>,
) -> io::Result<T> {
    let mut last = no_addresses();
    for (index, address) in addresses.iter().enumerate() {
        match attempt(*address, addresses.len() - index) {
            Ok(done) => return Ok(done),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The error of a call that was given an empty list of addresses.
pub(crate) fn no_addresses() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the list of addresses is empty: give one")
}

/// Implements [`ToAddrs`] for types that say what they name.
macro_rules! to_addrs {
    ($($type:ty: $this:ident => $target:expr;)+) => {$(
        impl ToAddrs for $type {}
        impl Endpoint for $type {
            fn endpoint(&self) -> io::Result<Target<'_>> {
                let $this = self;
                $target
            }
        }
    )+};
}

to_addrs! {
    SocketAddr: this => Ok(Target::One(*this));
    SocketAddrV4: this => Ok(Target::One((*this).into()));
    SocketAddrV6: this => Ok(Target::One((*this).into()));
    (IpAddr, u16): this => Ok(Target::One((*this).into()));
    (Ipv4Addr, u16): this => Ok(Target::One((*this).into()));
    (Ipv6Addr, u16): this => Ok(Target::One((*this).into()));
    [SocketAddr]: this => Ok(Target::Many(this));
    Vec<SocketAddr>: this => Ok(Target::Many(this));
    (&str, u16): this => Ok(Target::of(this.0, this.1));
    (String, u16): this => Ok(Target::of(&this.0, this.1));
    str: this => Target::parse(this);
    String: this => Target::parse(this);
}

impl<const N: usize> ToAddrs for [SocketAddr; N] {}
impl<const N: usize> Endpoint for [SocketAddr; N] {
    fn endpoint(&self) -> io::Result<Target<'_>> {
        Ok(Target::Many(self))
    }
}

impl<T: ToAddrs + ?Sized> ToAddrs for &T {}
impl<T: Endpoint + ?Sized> Endpoint for &T {
    fn endpoint(&self) -> io::Result<Target<'_>> {
        (**self).endpoint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    fn all(resolver: &Resolver, of: impl ToAddrs) -> io::Result<Vec<SocketAddr>> {
        let mut seen = Vec::new();
        let tried = of.endpoint()?.try_each(resolver, |address, left| {
            seen.push(address);
            if left == 1 { Ok(()) } else { Err(io::ErrorKind::ConnectionRefused.into()) }
        });
        tried.map(|()| seen)
    }

    #[test]
    fn addresses_need_no_resolver() {
        let none = Resolver::default();
        let one = address("10.9.0.1:80");
        let six = address("[fd00:9::1]:80");
        let known = |of: Vec<io::Result<Vec<SocketAddr>>>| {
            of.into_iter().map(|all| all.expect("addresses")).collect::<Vec<_>>()
        };
        let ones = known(vec![
            all(&none, one),
            all(&none, (one.ip(), 80)),
            all(&none, ("10.9.0.1", 80)),
            all(&none, ("10.9.0.1".to_owned(), 80)),
            all(&none, "10.9.0.1:80"),
            all(&none, String::from("10.9.0.1:80")),
            all(&none, &[one][..]),
        ]);
        assert!(ones.iter().all(|all| *all == [one]), "{ones:?}");
        let sixes = known(vec![all(&none, "[fd00:9::1]:80"), all(&none, ("fd00:9::1", 80))]);
        assert!(sixes.iter().all(|all| *all == [six]), "{sixes:?}");
        assert_eq!(known(vec![all(&none, [one, six])]), [[one, six]]);
    }

    #[test]
    fn a_name_without_a_resolver_says_what_to_do() {
        let error = all(&Resolver::default(), "example.org:80").expect_err("nobody knows it");
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert!(error.to_string().contains("Builder::resolver"), "{error}");
    }

    #[test]
    fn a_name_is_looked_up_by_the_resolver_given() {
        let resolver = Resolver::new(|name: &str, port: u16| match name {
            "two" => Ok(vec![([10, 9, 0, 1], port).into(), ([10, 9, 0, 3], port).into()]),
            "none" => Ok(Vec::new()),
            _ => Err(io::Error::other("broken")),
        });
        let two = [address("10.9.0.1:7"), address("10.9.0.3:7")];
        assert_eq!(all(&resolver, "two:7").expect("known"), two);
        assert_eq!(all(&resolver, ("two", 7)).expect("known"), two);
        let kind = |of| all(&resolver, of).expect_err("no address").kind();
        assert_eq!(kind("none:7"), io::ErrorKind::NotFound);
        assert_eq!(kind("other:7"), io::ErrorKind::Other);
    }

    #[test]
    fn text_that_is_no_address_and_no_name_is_refused() {
        for text in ["", "name", "name:", "name:65536", ":80", "fd00::1:80", "[fd00::1:80"] {
            let error = all(&Resolver::default(), text).expect_err(text);
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{text}");
        }
        for text in ["fd00::1", "[fd00::1]", "fd00::1:80"] {
            let error = all(&Resolver::default(), text).expect_err(text);
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{text}");
            let expected = format!("{text:?} has no port: write \"[address]:port\"");
            assert_eq!(error.to_string(), expected);
        }
        let error = all(&Resolver::default(), Vec::new()).expect_err("empty");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
