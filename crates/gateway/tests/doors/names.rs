//! Names are looked up behind the stack, and nowhere else.

use crate::world::{World, any, echo, named, socks};
use neap_gateway::doors::{Door, ResolveStrategy, Users};
use std::io::{Read, Write};

fn world(has_v6: bool, strategy: ResolveStrategy) -> World {
    let door = Door::Socks5 { listen: any(), users: Users::default() };
    let world = World::with(vec![door], has_v6, |config| config.resolver.strategy = strategy);
    world.serve(7, echo);
    world
}

fn asked(world: &World) -> Vec<(String, bool)> {
    let mut asked = world.asked.lock().expect("no panic").clone();
    asked.sort();
    asked
}

fn question(name: &str, is_v6: bool) -> (String, bool) {
    (name.to_owned(), is_v6)
}

#[test]
fn the_families_of_the_stack_are_asked_for_and_the_strategy_orders_them() {
    for (has_v6, strategy, is_v6) in [
        (false, ResolveStrategy::Auto, false),
        (false, ResolveStrategy::Ipv6, false),
        (true, ResolveStrategy::Auto, true),
        (true, ResolveStrategy::Ipv4, false),
        (true, ResolveStrategy::Ipv6, true),
    ] {
        let world = world(has_v6, strategy);
        let (code, mut stream) =
            socks(&world, 0, &[3, 9].into_iter().chain(*b"both.test\x00\x07").collect::<Vec<_>>());
        assert_eq!(code, 0);
        stream.write_all(b"x").expect("sent");
        stream.read_exact(&mut [0]).expect("the echo");
        let flows = world.near.host().flows();
        let has_flow = flows.iter().any(|flow| flow.remote.is_ipv6() == is_v6);
        assert!(has_flow, "{has_v6} {strategy:?}");
        let expected: &[bool] = if has_v6 { &[false, true] } else { &[false] };
        // One answer is enough, so the other question may still be on its way.
        while asked(&world).len() < expected.len() {
            std::thread::yield_now();
        }
        let families: Vec<_> = asked(&world).into_iter().map(|(_, is_v6)| is_v6).collect();
        assert_eq!(families, expected);
        world.end();
    }
}

#[test]
fn a_name_is_asked_for_once_and_known_then() {
    let world = world(false, ResolveStrategy::Auto);
    for _ in 0..3 {
        assert_eq!(socks(&world, 0, &named("BOTH.test", 7)).0, 0);
        assert_eq!(socks(&world, 0, &named("nowhere.test", 7)).0, 4);
    }
    let expected = [question("both.test", false), question("nowhere.test", false)];
    assert_eq!(asked(&world), expected);
    let figures = world.end();
    assert_eq!((figures.lookups, figures.cached_lookups), (6, 4));
}

#[test]
fn a_name_of_the_host_alone_is_not_found() {
    // What /etc/hosts of most hosts has, and what the host is called.
    let own = std::fs::read_to_string("/etc/hostname").unwrap_or_default();
    let world = world(false, ResolveStrategy::Auto);
    for name in ["ip6-localhost", own.trim()].into_iter().filter(|name| !name.is_empty()) {
        assert_eq!(socks(&world, 0, &named(name, 7)).0, 4, "{name}");
        // The domains first, then the name itself, all of it behind the stack.
        let asked = asked(&world);
        assert!(asked.contains(&question(name, false)), "{asked:?}");
        if !name.contains('.') {
            assert!(asked.contains(&question(&format!("{name}.lan"), false)), "{asked:?}");
        }
    }
    assert_eq!(socks(&world, 0, &named("server", 7)).0, 0, "server.lan");
    world.end();
}

#[test]
fn without_servers_a_name_has_no_address() {
    let door = Door::Socks5 { listen: any(), users: Users::default() };
    let world = World::with(vec![door], false, |config| config.resolver.servers.clear());
    assert_eq!(socks(&world, 0, &named("both.test", 7)).0, 1);
    assert_eq!(asked(&world), []);
    assert_eq!(world.end().failed_lookups, 1);
}

#[test]
fn an_answer_that_is_cut_is_asked_for_over_tcp() {
    let world = world(false, ResolveStrategy::Auto);
    assert_eq!(socks(&world, 0, &named("cut.test", 7)).0, 0);
    assert_eq!(asked(&world).len(), 2);
    world.end();
}

#[test]
fn a_server_that_does_not_answer_is_followed_by_the_next() {
    let door = Door::Socks5 { listen: any(), users: Users::default() };
    let world = World::with(vec![door], false, |config| {
        // Nobody has that address, and nobody that port.
        let silent = "10.1.0.77:53".parse().expect("an address");
        let closed = "10.1.0.2:54".parse().expect("an address");
        config.resolver.servers.splice(0..0, [silent, closed]);
    });
    world.serve(7, echo);
    assert_eq!(socks(&world, 0, &named("both.test", 7)).0, 0);
    assert_eq!(asked(&world), [question("both.test", false)]);
    let figures = world.end();
    assert_eq!(figures.questions, 3);
}

#[test]
fn a_server_that_cannot_be_asked_is_told_at_once() {
    let (input, _writer) = std::io::pipe().expect("a pipe");
    let (_reader, output) = std::io::pipe().expect("a pipe");
    let target = "both.test:7".parse().expect("a target");
    let door = Door::Stdio { target, input: input.into(), output: output.into() };
    // There is no route to it. Nothing happens that could wake the doors.
    let server = "192.0.2.1:53".parse().expect("an address");
    let world = World::with(vec![door], false, |config| config.resolver.servers = vec![server]);
    let error = world.wait().expect_err("the name has no address");
    let expected = "both.test:7: no DNS server answers the question for the name of the target";
    assert_eq!(error.to_string(), expected);
}
