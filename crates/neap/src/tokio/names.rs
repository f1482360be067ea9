//! Names under tokio: a resolver blocks, so it runs on the pool for that.

use crate::engine::Engine;
use crate::resolver::{Target, no_addresses};
use core::net::SocketAddr;
use smallvec::{SmallVec, smallvec};
use std::future::Future;
use std::io;
use std::sync::Arc;

/// The addresses of a target, in the order in which they are to be tried; at least one. Dropped,
/// the future leaves a look-up that has begun to end on the pool.
async fn addresses(
    engine: &Arc<Engine>,
    target: Target<'_>,
) -> io::Result<SmallVec<[SocketAddr; 1]>> {
    let addresses: SmallVec<_> = match target {
        Target::One(address) => smallvec![address],
        Target::Many(addresses) => addresses.into(),
        Target::Name(name, port) => {
            let (engine, name) = (engine.clone(), name.to_owned());
            let look_up = move || engine.resolver.look_up(&name, port);
            ::tokio::task::spawn_blocking(look_up).await.map_err(io::Error::other)??.into()
        }
    };
    if addresses.is_empty() { Err(no_addresses()) } else { Ok(addresses) }
}

/// The first address of a target.
///
/// # Errors
/// The name cannot be looked up; there are no addresses.
pub(super) async fn first(engine: &Arc<Engine>, target: Target<'_>) -> io::Result<SocketAddr> {
    Ok(addresses(engine, target).await?[0])
}

/// Awaits `attempt` with one address after the other until it succeeds.
///
/// # Errors
/// That of the last attempt; the name cannot be looked up; there are no addresses.
pub(super) async fn try_each<T, F: Future<Output = io::Result<T>>>(
    engine: &Arc<Engine>,
    target: Target<'_>,
    mut attempt: impl FnMut(SocketAddr) -> F,
) -> io::Result<T> {
    let mut last = no_addresses();
    for address in addresses(engine, target).await? {
        match attempt(address).await {
            Ok(done) => return Ok(done),
            Err(error) => last = error,
        }
    }
    Err(last)
}
