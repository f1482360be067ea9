//! What wireproxy takes, in the way in which it takes it, though a file would better not have it.

use super::*;

/// A file of wireproxy with these lines, and what is told of it.
fn told(interface: &str, peer: &str, others: &str) -> (File, Vec<String>) {
    let file = read(tunnel(interface, peer, others));
    let warnings = warnings(&file);
    (file, warnings)
}

/// The user and the password of the first door.
fn login(file: &File) -> (&str, &str) {
    match &file.doors[0].kind {
        DoorKind::Socks5 { login: Some(login), .. } | DoorKind::Http { login: Some(login), .. } => {
            (&login.user, login.password.expose())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn of_a_key_that_is_given_again_the_first_value_counts() {
    let interface = format!("MTU = 1300\nPrivateKey = {OTHER}\nMTU = 1400");
    let door = "[Socks5]\nBindAddress = 127.0.0.1:1\nBindAddress = 127.0.0.1:2\nUsername = a\n\
                Password = first\nPassword = $SECOND";
    let (file, told) = told(&interface, "Endpoint = 192.0.2.1:1\nEndpoint = nonsense", door);
    assert_eq!(file.interface.private_key, PRIVATE.parse().expect("a key"));
    assert_eq!(file.interface.mtu, Some(1300));
    assert_eq!(file.peers[0].endpoint, Some(host_port("192.0.2.1:1")));
    assert_eq!(login(&file), ("a", "first"));
    let expected = [
        "dir/wg0.conf:5: [Interface] PrivateKey: this does not count: the value in line 2 does",
        "dir/wg0.conf:6: [Interface] MTU: this does not count: the value in line 4 does",
        "dir/wg0.conf:10: [Peer] Endpoint: this does not count: the value in line 9 does",
        "dir/wg0.conf:13: [Socks5] BindAddress: this does not count: the value in line 12 does",
        "dir/wg0.conf:16: [Socks5] Password: this does not count: the value in line 15 does",
    ];
    assert_eq!(told, expected);
    // Lists go on in a key of the same name, as for wg-quick.
    let file = read(tunnel("Address = 10.0.0.3", "AllowedIPs = ::/0\nAllowedIPs = 0.0.0.0/0", ""));
    assert_eq!((file.interface.addresses.len(), file.peers[0].allowed_ips.len()), (2, 2));
}

#[test]
fn of_two_sections_for_one_thing_the_first_counts() {
    let others = "[Resolve]\nResolveStrategy = ipv6\n[Resolve]\nResolveStrategy = nonsense\n\
                  [STDIOTunnel]\nTarget = a:1\n[STDIOTunnel]\nTarget = b:2\n\
                  [STDIOTunnel]\nTarget = c:3";
    let (file, told) = told("", "", others);
    assert_eq!(file.resolve, ResolveStrategy::Ipv6);
    let [door] = file.doors.as_slice() else { panic!("{:?}", file.doors) };
    assert_eq!(door.kind, DoorKind::Stdio { target: host_port("a:1") });
    let expected = [
        "dir/wg0.conf:10: [Resolve]: this does not count: the section in line 8 does",
        "dir/wg0.conf:14: [STDIOTunnel]: this is left out: the section in line 12 has the streams",
        "dir/wg0.conf:16: [STDIOTunnel]: this is left out: the section in line 12 has the streams",
    ];
    assert_eq!(told, expected);
}

#[test]
fn half_a_login_has_an_empty_other_half_and_never_lets_everybody_in() {
    let door = |section: &str, half: &str| format!("[{section}]\nBindAddress = :1\n{half}");
    let whole = "without a Password beside it, it is the whole secret of the proxy";
    let nameless = "without a Username beside it, the name of the user is empty";
    for (section, half, expected, problem) in [
        ("Socks5", "Username = me", ("me", ""), format!("[Socks5] Username: {whole}")),
        ("Socks5", "Password =\nUsername = me", ("me", ""), format!("[Socks5] Username: {whole}")),
        ("http", "Username = me", ("me", ""), format!("[http] Username: {whole}")),
        ("http", "Password = it", ("", "it"), format!("[http] Password: {nameless}")),
    ] {
        let (file, told) = told("", "", &door(section, half));
        assert_eq!(login(&file), expected, "{section} {half}");
        assert!(told.len() == 1 && told[0].ends_with(&problem), "{told:?}");
    }
    // A file with a password is not to have an open proxy, nor one with a certificate a proxy that
    // speaks in clear text.
    let certificate = |half: &str| tunnel("", "", &door("http", half));
    expect_errors(&[
        (
            tunnel("", "", &door("Socks5", "Password = it")),
            ":10: [Socks5] Password: expected a Username beside it",
        ),
        (certificate("CertFile = a"), ":10: [http] CertFile: expected a KeyFile beside it"),
        (certificate("KeyFile = a"), ":10: [http] KeyFile: expected a CertFile beside it"),
        (certificate("CertFile = a\nKeyFile ="), ":10: [http] CertFile: expected a KeyFile"),
    ]);
}

#[test]
fn a_port_of_this_machine_may_have_the_name_of_a_service() {
    let services = "# ports\nsocks\t1080/tcp\t\t# proxy\ndomain 53/tcp\ndomain 53/udp dns\nbad\n";
    let read = |door: &str| {
        let given = Given { services, ..Given::new(tunnel("", "", door)) };
        given.read().map(|file| file.doors[0].kind.bind().expect("a socket").1.clone())
    };
    let client = |bind: &str| format!("[TCPClientTunnel]\nBindAddress = {bind}\nTarget = a:1");
    let udp = |bind: &str| format!("[UDPProxyTunnel]\nBindAddress = {bind}\nTarget = a:1");
    for (door, bind) in [
        (client(":socks"), ":1080"),
        (client("127.0.0.1:SOCKS"), "127.0.0.1:1080"),
        (udp("[::1]:dns"), "[::1]:53"),
        ("[Socks5]\nBindAddress = localhost:socks".to_owned(), "localhost:1080"),
    ] {
        assert_eq!(read(&door).expect(&door), host_port(bind));
    }
    // Of another protocol, unknown, and no address at all.
    for door in [client(":dns"), udp(":socks"), client(":nope"), client(":bad"), client("socks")] {
        let error = read(&door).expect_err(&door).to_string();
        assert!(error.contains(" BindAddress: expected ADDRESS:PORT of this machine"), "{error}");
    }
}

#[test]
fn names_in_values_stand_for_other_values() {
    let root = "net = 10.7.0\nUser = Me\n";
    let doors = "[Socks5]\nBindAddress = %(host)s:%(port)s\nport = 10%(tail)s\ntail = 80\n\
                 host = 127.0.0.1\nUsername = %(USER)s-%(user)s\nPassword = %(nowhere)s%(tail)s";
    let text =
        root.to_owned() + &tunnel("DNS = %(net)s.1, %(net)s.2\nAddress = %(net)s.9", "", doors);
    let file = read(text);
    assert_eq!(warnings(&file), [""; 0]);
    let dns = ["10.7.0.1", "10.7.0.2"].map(|text| text.parse::<std::net::IpAddr>().expect("one"));
    assert_eq!(file.interface.dns, dns);
    assert!(file.interface.addresses.contains(&"10.7.0.9/32".parse().expect("a prefix")));
    let (_, bind) = file.doors[0].kind.bind().expect("a socket");
    assert_eq!(*bind, host_port("127.0.0.1:1080"));
    // A name that is nowhere stays, with all behind it.
    assert_eq!(login(&file), ("Me-Me", "%(nowhere)s%(tail)s"));
    // The value of a variable is what it is, and its name may come from another value.
    let mut given = Given::new(tunnel("MTU = %(it)s\nit = $BYTES", "", ""));
    given.variables = HashMap::from([("BYTES", "1300".to_owned())]);
    let file = given.read().expect("it is right");
    assert_eq!((file.interface.mtu, file.variables), (Some(1300), vec!["BYTES".to_owned()]));
    // A key that no value is made from is unknown as before, and what grows has an end.
    let grows = "PostUp = %(a)s\na = %(b)s%(b)s\nb = %(a)s%(a)s";
    expect_errors(&[
        (tunnel("nets = 10.0.0", "", ""), ":4: [Interface] nets: unknown key"),
        (tunnel(grows, "", ""), ":4: [Interface] PostUp: too long with the values that it names"),
    ]);
}

#[test]
fn quotes_may_end_in_a_later_line() {
    let interface = "DNS = \"\"\"\n  10.0.0.1,\n  10.0.0.2\n\"\"\" # both\nMTU = 1300\n\
                     CheckAlive = `10.0.0.1,\r\n10.0.0.2`";
    let door =
        "[Socks5]\nBindAddress = 127.0.0.1:1\nUsername = me\nPassword = \"\"\"a #b\n ;c\\\n\"\"\"";
    let (file, told) = told(interface, "", door);
    assert_eq!(told, [""; 0]);
    assert_eq!((file.interface.dns.len(), file.interface.mtu), (2, Some(1300)));
    assert_eq!(file.interface.check_alive.len(), 2);
    assert_eq!(login(&file), ("me", "a #b\n ;c\\\n"));
    // Lines are counted on.
    let error = Given::new(tunnel(interface, "x = y", "")).read().expect_err("unknown");
    assert!(error.to_string().contains(":13: [Peer] x: unknown key"), "{error}");
}

#[test]
fn numbers_that_a_tunnel_cannot_have_are_the_nearest_ones() {
    let expected = "expected a number of bytes from 576 to 65000";
    for (mtu, taken) in [("68", 576), ("575", 576), ("65001", 65_000), ("4294967295", 65_000)] {
        let (file, told) = told(&format!("MTU = {mtu}"), "", "");
        assert_eq!(file.interface.mtu, Some(taken));
        let line = format!("dir/wg0.conf:4: [Interface] MTU: {taken} is taken instead: {expected}");
        assert_eq!(told, [line]);
    }
    for (mtu, taken) in [("576", 576), ("65000", 65_000)] {
        let (file, told) = told(&format!("MTU = {mtu}"), "", "");
        assert_eq!((file.interface.mtu, told.len()), (Some(taken), 0));
    }
    let alive = |seconds: &str| format!("CheckAlive = 10.0.0.1\nCheckAliveInterval = {seconds}");
    for (seconds, taken, count) in [("0", 1, 1), ("1", 1, 0), ("86401", 86_401, 0)] {
        let (file, told) = told(&alive(seconds), "", "");
        assert_eq!(file.interface.check_alive_interval, Duration::from_secs(taken));
        assert_eq!(told.len(), count, "{told:?}");
    }
    // Nothing passes over such a link, and nobody can wait for such a time.
    expect_errors(&[
        (tunnel("MTU = 67", "", ""), ":4: [Interface] MTU: expected a number of bytes from 576"),
        (tunnel("MTU = -1", "", ""), ":4: [Interface] MTU: expected a number of bytes from 576"),
        (tunnel(&alive("-1"), "", ""), ":5: [Interface] CheckAliveInterval: expected a number of"),
    ]);
}
