//! SOCKS5, HTTP and SNI.

use crate::world::{FAR, PATIENCE, World, address, any, echo, named, route_v6, skip, socks};
use neap_gateway::doors::{Door, TlsIdentity, Users};
use socket2::{Domain, Socket, Type};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, UdpSocket};
use std::process::Command;

fn users(pairs: &[(&str, &str)]) -> Users {
    let mut users = Users::default();
    assert!(pairs.iter().all(|(name, password)| users.add(name, password)));
    users
}

fn socks5() -> Door {
    Door::Socks5 { listen: any(), users: Users::default() }
}

fn http() -> Door {
    Door::Http { listen: any(), users: Users::default(), tls: None }
}

/// Bytes that differ from place to place.
fn data(count: usize) -> Vec<u8> {
    (0..count).map(|index| (index % 251) as u8).collect()
}

#[test]
fn socks5_carries_data_both_ways_and_half_closes() {
    let world = World::new(vec![socks5()]);
    world.serve(7, echo);
    let (code, mut stream) = socks(&world, 0, &named("both.test", 7));
    assert_eq!(code, 0);
    let sent = data(3 << 20);
    let mut writer = stream.try_clone().expect("a handle");
    let expected = sent.clone();
    let writes = std::thread::spawn(move || {
        writer.write_all(&sent).expect("sent");
        writer.shutdown(Shutdown::Write).expect("open");
    });
    let mut received = Vec::new();
    stream.read_to_end(&mut received).expect("the end");
    writes.join().expect("no panic");
    assert!(received == expected, "{} bytes came back", received.len());
    world.until(|figures| figures.finished == 1);
    let figures = world.end();
    assert_eq!((figures.accepted, figures.opened, figures.lost), (1, 1, 0));
    assert_eq!((figures.bytes_out, figures.bytes_in), (3 << 20, 3 << 20));
}

#[test]
fn socks5_says_why_a_connection_is_not_opened() {
    let world = World::new(vec![socks5()]);
    let (code, mut stream) = socks(&world, 0, &address(FAR, 9));
    assert_eq!(code, 5, "nobody listens");
    assert_eq!(stream.read(&mut [0; 10]).expect("the end"), 0);
    let (code, _) = socks(&world, 0, &address("192.0.2.1", 80));
    assert_eq!(code, 3, "there is no route");
    route_v6(&world.near);
    let (code, _) = socks(&world, 0, &address("2001:db8::1", 80));
    assert_eq!(code, 3, "there is no address to send from");
    let (code, _) = socks(&world, 0, &named("nowhere.test", 80));
    assert_eq!(code, 4, "there is no such name");
    let figures = world.end();
    assert_eq!((figures.unreached, figures.opened), (4, 0));
}

#[test]
fn a_password_opens_the_proxy_and_nothing_else_does() {
    let users = users(&[("me", "secret")]);
    let world = World::new(vec![Door::Socks5 { listen: any(), users }]);
    world.serve(7, echo);
    let mut stream = world.client(0);
    let place = address(FAR, 7);
    let hello = [&[5, 2, 0, 2, 1, 2][..], b"me", &[6], b"secret", &[5, 1, 0], &place].concat();
    stream.write_all(&hello).expect("sent");
    let mut answer = [0; 14];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(answer[..6], [5, 2, 1, 0, 5, 0]);
    let mut stream = world.client(0);
    stream.write_all(&[5, 1, 2, 1, 2, b'm', b'e', 1, b'x']).expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("the end");
    assert_eq!(answer, [5, 2, 1, 1]);
    let figures = world.end();
    assert_eq!((figures.unauthorised, figures.opened), (1, 1));
}

#[test]
fn an_association_carries_datagrams_of_its_client_alone() {
    let world = World::new(vec![socks5()]);
    let far = neap::UdpSocket::bind(&world.far, format!("{FAR}:9")).expect("a socket");
    let mut stream = world.client(0);
    stream.write_all(&[5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0, 0, 0]).expect("sent");
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(answer[..6], [5, 0, 5, 0, 0, 1]);
    let relay = SocketAddr::from((
        [answer[6], answer[7], answer[8], answer[9]],
        u16::from_be_bytes([answer[10], answer[11]]),
    ));
    let client = UdpSocket::bind(any()).expect("a socket");
    client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let (mut bytes, mut back) = ([0; 100], [0; 100]);
    for (place, text) in [(address(FAR, 9), "by address"), (named("both.test", 9), "by name")] {
        let datagram = [&[0, 0, 0][..], &place, text.as_bytes()].concat();
        client.send_to(&datagram, relay).expect("sent");
        let (count, from) = far.recv_from(&mut bytes).expect("a datagram");
        assert_eq!(&bytes[..count], text.as_bytes());
        far.send_to(b"answer", from).expect("sent");
        let (count, _) = client.recv_from(&mut back).expect("an answer");
        assert_eq!(back[..count], [&[0, 0, 0][..], &address(FAR, 9), b"answer"].concat());
    }
    // Another port, a fragment, nonsense.
    let stranger = UdpSocket::bind(any()).expect("a socket");
    stranger.send_to(&[&[0, 0, 0][..], &address(FAR, 9), b"x"].concat(), relay).expect("sent");
    client.send_to(&[&[0, 0, 1][..], &address(FAR, 9), b"x"].concat(), relay).expect("sent");
    client.send_to(b"x", relay).expect("sent");
    world.until(|figures| figures.bad_datagrams == 3);
    drop(stream);
    world.until(|figures| figures.mappings == 1);
    let figures = world.end();
    assert_eq!((figures.datagrams_out, figures.datagrams_in), (2, 2));
}

/// A server that sends back the request that it got, and closes.
fn mirror(mut stream: neap::TcpStream) {
    let mut request = Vec::new();
    let mut bytes = [0; 4096];
    while !request.windows(4).any(|part| part == b"\r\n\r\n") {
        match stream.read(&mut bytes) {
            Ok(count @ 1..) => request.extend_from_slice(&bytes[..count]),
            _ => return,
        }
    }
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", request.len());
    let _ = stream.write_all(&[head.as_bytes(), &request].concat());
}

#[test]
fn an_http_proxy_passes_on_a_request_and_ends_with_its_response() {
    let world = World::new(vec![http()]);
    world.serve(80, mirror);
    let mut stream = world.client(0);
    let request = "GET http://both.test/a HTTP/1.1\r\nProxy-Connection: keep-alive\r\nX: y\r\n\r\n";
    // The second request is not for the first server.
    stream.write_all(request.repeat(2).as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the end");
    let passed = "GET /a HTTP/1.1\r\nHost: both.test\r\nX: y\r\nConnection: close\r\n\r\n";
    assert!(answer.ends_with(&format!("\r\n\r\n{passed}")), "{answer}");
    world.until(|figures| figures.finished == 1);
    world.end();
}

#[test]
fn a_client_that_says_more_gets_all_of_its_response() {
    const COUNT: usize = 60_000;
    let world = World::new(vec![http()]);
    world.serve(80, |mut stream| {
        let mut request = Vec::new();
        let mut bytes = [0; 4096];
        while !request.ends_with(b"\r\n\r\n") {
            match stream.read(&mut bytes) {
                Ok(count @ 1..) => request.extend_from_slice(&bytes[..count]),
                _ => return,
            }
        }
        let _ = stream.write_all(&data(COUNT));
    });
    let stream = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    stream.set_recv_buffer_size(4096).expect("a small buffer");
    stream.connect(&world.at(0).into()).expect("the door is open");
    let mut stream = std::net::TcpStream::from(stream);
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.write_all(b"GET http://both.test/a HTTP/1.1\r\n\r\n").expect("sent");
    world.until(|figures| figures.finished == 1);
    // Most of the response is in the buffers of the proxy's host.
    stream.write_all(b"GET http://both.test/b HTTP/1.1\r\n\r\n").expect("sent");
    let mut received = Vec::new();
    stream.read_to_end(&mut received).expect("the end");
    assert!(received == data(COUNT), "{} bytes", received.len());
    world.end();
}

#[test]
fn an_http_proxy_says_why_it_does_not_connect() {
    let world = World::new(vec![http()]);
    for (target, status) in [(format!("{FAR}:9"), "502"), ("nowhere.test:80".to_owned(), "502")] {
        let mut stream = world.client(0);
        stream.write_all(format!("CONNECT {target} HTTP/1.1\r\n\r\n").as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("the end");
        assert_eq!(answer.get(9..12), Some(status), "{answer}");
    }
    let mut stream = world.client(0);
    let long = format!("GET http://a/ HTTP/1.1\r\nX: {}", "a".repeat(20 << 10));
    stream.write_all(long.as_bytes()).expect("sent");
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    let figures = world.end();
    assert_eq!((figures.unreached, figures.malformed), (2, 1));
}

#[test]
fn curl_goes_through_all_proxies() {
    if Command::new("curl").arg("--version").output().is_err() {
        return skip("no curl");
    }
    let both = || users(&[("me", "se:cret")]);
    let world = World::new(vec![
        socks5(),
        Door::Socks5 { listen: any(), users: both() },
        http(),
        Door::Http { listen: any(), users: both(), tls: None },
    ]);
    world.serve(80, mirror);
    let [socks, socks_user, http, http_user] = [0, 1, 2, 3].map(|door| world.at(door).to_string());
    let cases: [(&[&str], bool); 8] = [
        (&["--socks5-hostname", &socks], true),
        (&["--socks5-hostname", &socks_user, "--proxy-user", "me:se:cret"], true),
        (&["--socks5-hostname", &socks_user, "--proxy-user", "me:wrong"], false),
        (&["--proxy", &http], true),
        (&["--proxy", &http, "--proxytunnel"], true),
        (&["--proxy", &http_user, "--proxy-user", "me:se:cret"], true),
        (&["--proxy", &http_user, "--proxy-user", "me:se:cret", "--proxytunnel"], true),
        (&["--fail", "--proxy", &http_user], false),
    ];
    for (arguments, is_good) in cases {
        let mut curl = Command::new("curl");
        curl.args(["-q", "-sS", "--noproxy", "", "--max-time", "60", "http://both.test/path"]);
        let output = curl.args(arguments).output().expect("curl runs");
        let text = String::from_utf8_lossy(&output.stdout);
        let is_mirrored = text.starts_with("GET /path HTTP/1.1\r\n") && !text.contains("Proxy-");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success() && is_mirrored, is_good, "{arguments:?}: {text}{error}");
    }
    assert_eq!(world.end().unauthorised, 2);
}

#[test]
fn tls_goes_to_the_server_that_it_names() {
    let world = World::new(vec![Door::Sni { listen: any() }]);
    world.serve(443, echo);
    let name = b"both.test";
    let entry = [&[0, 0, name.len() as u8][..], name].concat();
    let list = [&[0, entry.len() as u8][..], &entry].concat();
    let extension = [&[0, 0, 0, list.len() as u8][..], &list].concat();
    let extensions = [&[0, extension.len() as u8][..], &extension].concat();
    let body = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 1, 1, 0], &extensions].concat();
    let message = [&[1, 0, 0, body.len() as u8][..], &body].concat();
    let hello = [&[22, 3, 1, 0, message.len() as u8][..], &message].concat();
    let mut stream = world.client(0);
    // In two parts, the second of which comes later.
    let (first, second) = hello.split_at(20);
    stream.write_all(first).expect("sent");
    stream.write_all(second).expect("sent");
    stream.write_all(b"and more").expect("sent");
    let expected = [&hello[..], b"and more"].concat();
    let mut back = vec![0; expected.len()];
    stream.read_exact(&mut back).expect("the echo");
    assert_eq!(back, expected);
    let mut stream = world.client(0);
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
    let error = stream.read(&mut [0; 10]).expect_err("it is no TLS");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(world.end().malformed, 1);
}

#[test]
fn connections_beyond_the_bounds_are_refused_and_counted() {
    // All clients of the loopback have one address.
    let world = World::with(vec![socks5()], false, |config| {
        (config.most_connections, config.most_of_a_client) = (2, 1);
    });
    world.serve(7, echo);
    let held = [0, 1].map(|_| socks(&world, 0, &address(FAR, 7)));
    let mut third = world.client(0);
    let error = third.read(&mut [0; 10]).expect_err("there is no room");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    drop(held);
    world.until(|figures| figures.finished == 2);
    assert_eq!(socks(&world, 0, &address(FAR, 7)).0, 0, "there is room again");
    let figures = world.end();
    assert_eq!((figures.full, figures.opened), (1, 3));
}

#[test]
fn curl_speaks_tls_to_the_proxy() {
    let folder = std::env::temp_dir().join(format!("neap-doors-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let [certificate, key] = ["certificate.pem", "key.pem"].map(|name| folder.join(name));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args(["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output();
    if made.is_err() || Command::new("curl").arg("--version").output().is_err() {
        return skip("no openssl, or no curl");
    }
    let [chain, secret] = [&certificate, &key].map(|path| std::fs::read(path).expect("a file"));
    let error = TlsIdentity::from_pem(&secret, &secret).expect_err("no certificate");
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    assert!(TlsIdentity::from_pem(&chain, &chain).is_err(), "no key");
    let tls = Some(TlsIdentity::from_pem(&chain, &secret).expect("an identity"));
    let users = users(&[("me", "secret")]);
    let world = World::new(vec![Door::Http { listen: any(), users, tls }]);
    world.serve(80, |mut stream| {
        // All of a request, or the connection would end by a reset.
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3145728\r\n\r\n");
        let _ = stream.write_all(&data(3 << 20));
    });
    for arguments in [&[][..], &["--proxytunnel"]] {
        let mut curl = Command::new("curl");
        curl.args(["-q", "-sS", "--noproxy", "", "--max-time", "60", "http://both.test/"]);
        curl.args(["--proxy", &format!("https://{}", world.at(0)), "--proxy-user", "me:secret"]);
        let output = curl.arg("--proxy-cacert").arg(&certificate).args(arguments).output();
        let output = output.expect("curl runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.stdout == data(3 << 20), "{} bytes: {error}", output.stdout.len());
    }
    // A client without TLS gets nothing of the proxy, and one that leaves is forgotten. curl may be
    // gone before the proxy ends its side of TLS, which its kernel answers by a reset.
    let mut stream = world.client(0);
    stream.write_all(b"GET http://both.test/ HTTP/1.1\r\n\r\n").expect("sent");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    world.until(|figures| figures.finished + figures.lost == 2 && figures.given_up == 1);
    world.end();
    std::fs::remove_dir_all(folder).expect("removed");
}

#[test]
fn clients_that_say_nothing_are_reset_in_time_and_others_go_on() {
    let patience = std::time::Duration::from_secs(1);
    let http = Door::Http { listen: any(), users: Users::default(), tls: None };
    let world = World::with(vec![socks5(), http], false, |config| config.patience = patience);
    world.serve(7, echo);
    let (code, mut open) = socks(&world, 0, &address(FAR, 7));
    assert_eq!(code, 0);
    let slow = [(0, &b""[..]), (0, &[5, 1]), (1, b"CONNECT a")].map(|(door, part)| {
        let mut slow = world.client(door);
        slow.write_all(part).expect("sent");
        slow
    });
    for mut slow in slow {
        let error = slow.read(&mut [0; 10]).expect_err("its time is over");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    open.write_all(b"still here").expect("sent");
    open.read_exact(&mut [0; 10]).expect("the echo");
    assert_eq!(world.end().slow, 3);
}
