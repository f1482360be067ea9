//! Files that are right, and files that are wrong.

mod wireproxy;

use super::source::{Source, Text};
use super::*;
use proptest::prelude::*;
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::time::Duration;
use zeroize::Zeroizing;

const PRIVATE: &str = "uCTIK+56CPyCvwJxmU5dBfuyJvPuSXAq1FzHdnIxe1Q=";
const PUBLIC: &str = "QP+A67Z2UBrMgvNIdHv8gPel5URWNLS4B3ZQ2hQIZlg=";
const OTHER: &str = "UItQuvLsyh50ucXHfjF0bbR4IIpVBd74lwKc8uIPXXs=";

/// Files and variables of a test.
#[derive(Default)]
struct Given {
    files: HashMap<PathBuf, Vec<u8>>,
    variables: HashMap<&'static str, String>,
    services: &'static str,
    is_open: bool,
}

impl Source for Given {
    fn read(&self, path: &Path) -> io::Result<Text> {
        let bytes = self.files.get(path).ok_or(ErrorKind::NotFound)?;
        Ok(Text { bytes: Zeroizing::new(bytes.clone()), is_open: self.is_open })
    }

    fn has(&self, path: &Path) -> bool {
        self.files.contains_key(path)
    }

    fn is_open(&self, _: &Path) -> bool {
        self.is_open
    }

    fn variable(&self, name: &str) -> Option<Zeroizing<String>> {
        self.variables.get(name).cloned().map(Zeroizing::new)
    }

    fn services(&self) -> String {
        self.services.to_owned()
    }
}

impl Given {
    fn new(text: impl AsRef<[u8]>) -> Self {
        let files = HashMap::from([("dir/wg0.conf".into(), text.as_ref().to_vec())]);
        Self { files, ..Self::default() }
    }

    fn with(mut self, path: &str, text: &str) -> Self {
        self.files.insert(path.into(), text.as_bytes().to_vec());
        self
    }

    fn read(&self) -> Result<File, FileError> {
        File::read_from(Path::new("dir/wg0.conf"), self)
    }
}

/// A tunnel with these lines in its two sections, and sections behind it.
fn tunnel(interface: &str, peer: &str, others: &str) -> String {
    format!(
        "[Interface]\nPrivateKey = {PRIVATE}\nAddress = 10.0.0.2\n{interface}\n\
         [Peer]\nPublicKey = {PUBLIC}\n{peer}\n{others}\n"
    )
}

fn read(text: impl AsRef<[u8]>) -> File {
    Given::new(text).read().expect("the file is right")
}

fn warnings(file: &File) -> Vec<String> {
    file.warnings.iter().map(ToString::to_string).collect()
}

fn host_port(text: &str) -> HostPort {
    HostPort::parse(text).expect(text)
}

#[test]
fn a_file_of_wireproxy_is_read() {
    let text = format!(
        "# a comment\n[Interface]\nAddress = 10.200.200.2/32 # inline\nprivatekey={PRIVATE}\n\
         DNS = 10.200.200.1\n\n[Peer]\nPublicKey = {PUBLIC}\nPresharedKey = {OTHER}\n\
         Endpoint = My.DDNS.example.com:51820\nPersistentKeepalive = 25 ; comment\n\
         [TCPClientTunnel]\nBindAddress = 127.0.0.1:25565\nTarget = play.example.net:25565\n\
         [TCPServerTunnel]\nListenPort = 3422\nTarget = localhost:25545\n\
         [STDIOTunnel]\nTarget = ssh.example.net:22\n\
         [Socks5]\nBindAddress = 127.0.0.1:25344\n#Username = ...\n\
         [http]\nBindAddress = localhost:25345\nUsername = peter\nPassword = hunter123\n\
         [HTTP]\nBindAddress = :25346\nCertFile = /etc/a.pem\nKeyFile = b.key\n\
         Username = 'a b'\nPassword = \"#;x\"\n\
         [UDPProxyTunnel]\nBindAddress = 127.0.0.1:53\nTarget = 1.1.1.1:53\n\
         InactivityTimeout = 30 # seconds\n[SNI]\nBindAddress = 0.0.0.0:443\n\
         [Resolve]\nResolveStrategy = IPv6\n"
    );
    let file = read(text);
    let all = ["0.0.0.0/0", "::/0"].map(|prefix| prefix.parse().expect("a prefix"));
    let peer = &file.peers[0];
    assert_eq!(peer.allowed_ips, all);
    assert_eq!(peer.endpoint, Some(host_port("My.DDNS.example.com:51820")));
    assert_eq!(peer.persistent_keepalive, Some(Duration::from_secs(25)));
    assert!(peer.preshared_key.is_some());
    assert_eq!(file.interface.addresses, ["10.200.200.2/32".parse().expect("a prefix")]);
    assert_eq!(file.interface.dns, ["10.200.200.1".parse::<std::net::IpAddr>().expect("one")]);
    assert_eq!(file.resolve, ResolveStrategy::Ipv6);
    let login = |user: &str, password: &str| {
        let password = Password(Zeroizing::new(password.to_owned()));
        Some(Login { user: user.to_owned(), password })
    };
    let certificate = Certificate { chain: "/etc/a.pem".into(), key: "dir/b.key".into() };
    let kinds: Vec<_> = file.doors.iter().map(|door| door.kind.clone()).collect();
    let expected = [
        DoorKind::Client {
            bind: host_port("127.0.0.1:25565"),
            target: host_port("play.example.net:25565"),
        },
        DoorKind::Server { listen_port: 3422, target: host_port("localhost:25545") },
        DoorKind::Stdio { target: host_port("ssh.example.net:22") },
        DoorKind::Socks5 { bind: host_port("127.0.0.1:25344"), login: None },
        DoorKind::Http {
            bind: host_port("localhost:25345"),
            login: login("peter", "hunter123"),
            certificate: None,
        },
        DoorKind::Http {
            bind: host_port(":25346"),
            login: login("a b", "#;x"),
            certificate: Some(certificate),
        },
        DoorKind::Udp {
            bind: host_port("127.0.0.1:53"),
            target: host_port("1.1.1.1:53"),
            inactivity: Some(Duration::from_secs(30)),
        },
        DoorKind::Sni { bind: host_port("0.0.0.0:443") },
    ];
    assert_eq!(kinds, expected);
    let open = warnings(&file);
    assert_eq!(open.len(), 1, "{open:?}");
    assert!(open[0].contains(": [SNI]: a proxy without a password at 0.0.0.0:443"), "{open:?}");
}

#[test]
fn a_file_of_wg_quick_is_read_and_runs_nothing() {
    let interface = "Address = 10.5.0.2/23, fd00::2\nDNS = 1.1.1.1, fd00::1, corp.example\n\
                     MTU = 1380\nListenPort = 51820\nFwMark = 0xca6c\nTable = off\n\
                     PostUp = iptables -A FORWARD -i %i -j ACCEPT; $X\nSaveConfig = true\n\
                     CheckAlive = 10.5.0.1,fd00::1\nCheckAliveInterval = 3";
    let peer = format!(
        "AllowedIPs = 10.5.1.7/23\nAllowedIPs = fd00::/8, 192.0.2.1\nPersistentKeepalive = off\n\
         Endpoint = [2001:db8::1]:51820\n[Peer]\nPublicKey = {OTHER}\nAllowedIPs =\n"
    );
    let file = read(tunnel(interface, &peer, ""));
    let prefixes = |texts: &[&str]| -> Vec<ipnet::IpNet> {
        texts.iter().map(|text| text.parse().expect("a prefix")).collect()
    };
    let all = prefixes(&["10.0.0.2/32", "10.5.0.2/23", "fd00::2/128"]);
    assert_eq!(file.interface.addresses, all);
    assert_eq!(file.interface.search, ["corp.example"]);
    assert_eq!((file.interface.mtu, file.interface.listen_port), (Some(1380), 51820));
    assert_eq!(file.interface.fwmark, Some(0xca6c));
    assert_eq!(file.interface.check_alive.len(), 2);
    assert_eq!(file.interface.check_alive_interval, Duration::from_secs(3));
    let first = prefixes(&["10.5.0.0/23", "fd00::/8", "192.0.2.1/32"]);
    assert_eq!(file.peers[0].allowed_ips, first);
    assert_eq!(file.peers[0].persistent_keepalive, None);
    assert_eq!(file.peers[1].allowed_ips, []);
    let told = warnings(&file);
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(told.iter().any(|one| one.starts_with("dir/wg0.conf:10: [Interface] PostUp: ")));
    let config = file.wireguard(|_| None);
    assert_eq!((config.mtu, config.listen_port), (Some(1380), 51820));
    assert_eq!(config.peers[0].endpoint, "[2001:db8::1]:51820".parse().ok());
}

#[test]
fn values_come_from_the_environment() {
    let text = format!(
        "[Interface]\nPrivateKey = $KEY\nAddress = $ADDRESS\n[Peer]\nPublicKey = {PUBLIC}\n\
         Endpoint = $WHERE\n[Socks5]\nBindAddress = 127.0.0.1:1\nUsername = $$me\nPassword=$PASS"
    );
    let mut given = Given::new(&text);
    given.is_open = true;
    let variables = [
        ("KEY", PRIVATE),
        ("ADDRESS", "10.0.0.2, fd00::2"),
        ("WHERE", "example.org:1"),
        ("PASS", "#hidden"),
    ];
    given.variables = variables.map(|(name, value)| (name, value.to_owned())).into();
    let file = given.read().expect("the file is right");
    assert_eq!(file.interface.addresses.len(), 2);
    assert_eq!(file.peers[0].endpoint, Some(host_port("example.org:1")));
    assert_eq!(file.variables, ["ADDRESS", "KEY", "PASS", "WHERE"]);
    let DoorKind::Socks5 { login: Some(login), .. } = &file.doors[0].kind else {
        panic!("{file:?}")
    };
    assert_eq!((login.user.as_str(), login.password.expose()), ("$me", "#hidden"));
    // The file has no secret itself.
    assert_eq!(warnings(&file), [""; 0]);
    given.variables.remove("PASS");
    let error = given.read().expect_err("there is none").to_string();
    assert!(error.starts_with("dir/wg0.conf:10: [Socks5] Password: the environment"), "{error}");
    assert!(!error.contains("PASS"), "{error}");
}

#[test]
fn a_file_with_secrets_that_others_may_read_is_told_of() {
    let mut given = Given::new(tunnel("", "", ""));
    given.is_open = true;
    let file = given.read().expect("the file is right");
    let told = "dir/wg0.conf:2: [Interface] PrivateKey: others may read this file: \
                chmod 600 dir/wg0.conf";
    assert_eq!(warnings(&file), [told]);
}

#[test]
fn the_tunnel_may_be_in_a_file_of_its_own() {
    let doors = "WGConfig = tunnel.conf\n[Socks5]\nBindAddress = 127.0.0.1:1080\n\
                 [Interface]\nMTU = 1300\n";
    let text = tunnel("", "", "[Socks5]\nBindAddress = 127.0.0.1:1\n");
    let file = Given::new(doors).with("dir/tunnel.conf", &text).read().expect("both are right");
    assert_eq!((file.doors.len(), file.doors[0].line, file.interface.mtu), (1, 2, None));
    let told = warnings(&file);
    assert!(told[0].starts_with("dir/wg0.conf:4: [Interface]: this is not used"), "{told:?}");
    assert!(told[1].starts_with("dir/tunnel.conf:8: [Socks5]: this is not used"), "{told:?}");
    // A path with folders starts here, or there.
    for place in ["sub/t.conf", "dir/sub/t.conf"] {
        let doors = "WGConfig = sub/t.conf";
        Given::new(doors).with(place, &tunnel("", "", "")).read().expect("it is found");
    }
    let error = Given::new("WGConfig = no.conf").read().expect_err("there is none");
    assert!(error.to_string().starts_with("dir/no.conf: cannot be read: "), "{error}");
}

#[test]
fn what_wg_and_wg_quick_take_is_taken() {
    let interface = "DNS = 1.1.1.1 8.8.8.8,corp.example\nAddress = fd00::2/128\t10.0.0.9/32 ,";
    let (begin, end) = OTHER.split_at(20);
    let peer = format!("PresharedKey = {begin} {end}\nEndpoint = [192.0.2.1]:51820");
    let text = tunnel(interface, &peer, "").replace("[Peer]", "[Peer] # caf\u{e9}\n# \u{e9}");
    // Each byte of Latin-1 is the character of that number.
    let latin: Vec<u8> = text.chars().filter_map(|c| u8::try_from(c).ok()).collect();
    let file = read(latin);
    assert_eq!((file.interface.dns.len(), file.interface.search.len()), (2, 1));
    assert_eq!(file.interface.addresses.len(), 3);
    assert_eq!(file.peers[0].endpoint, Some(host_port("192.0.2.1:51820")));
    assert!(file.peers[0].preshared_key.is_some());
}

#[test]
fn a_user_of_socks_may_have_a_colon() {
    let door = "[Socks5]\nBindAddress = 127.0.0.1:1\nUsername = a:b\nPassword = c";
    let file = read(tunnel("", "", door));
    let DoorKind::Socks5 { login: Some(login), .. } = &file.doors[0].kind else {
        panic!("{file:?}")
    };
    assert_eq!(login.user, "a:b");
}

#[test]
fn a_key_of_tls_that_others_may_read_is_told_of() {
    let door = "[http]\nBindAddress = 127.0.0.1:1\nCertFile = /a.pem\nKeyFile = /a.key";
    let mut given = Given::new(tunnel("", "", door).replace(PRIVATE, "$KEY"));
    given.variables.insert("KEY", PRIVATE.to_owned());
    assert_eq!(warnings(&given.read().expect("it is right")), [""; 0]);
    given.is_open = true;
    let expected = "dir/wg0.conf:11: [http] KeyFile: others may read this key: chmod 600 /a.key";
    assert_eq!(warnings(&given.read().expect("it is right")), [expected]);
}

#[test]
fn sections_of_the_same_peer_are_joined() {
    let peers = format!(
        "AllowedIPs = 10.0.0.0/8\nEndpoint = 192.0.2.1:1\n\
         [Peer]\nPublicKey = {OTHER}\nAllowedIPs = 10.1.0.0/16\n\
         [Peer]\nPublicKey = {PUBLIC}\nAllowedIPs = 10.0.0.0/8, 10.1.0.0/16\n\
         [Peer]\nPublicKey = {PUBLIC}\nEndpoint = 192.0.2.2:2\nPersistentKeepalive = 9"
    );
    let file = read(tunnel("", &peers, ""));
    let prefixes = ["10.0.0.0/8", "10.1.0.0/16"].map(|text| text.parse().expect("a prefix"));
    assert_eq!(file.peers.len(), 2);
    assert_eq!(
        (&*file.peers[0].allowed_ips, &*file.peers[1].allowed_ips),
        (&prefixes[..], &[][..])
    );
    assert_eq!(file.peers[0].endpoint, Some(host_port("192.0.2.2:2")));
    assert_eq!(file.peers[0].persistent_keepalive, Some(Duration::from_secs(9)));
    let told = warnings(&file);
    let expected = [
        "dir/wg0.conf:12: [Peer] AllowedIPs: 10.1.0.0/16 is taken from the peer in line 9",
        "dir/wg0.conf:12: [Peer] PublicKey: this adds to the peer in line 5 of this key",
        "dir/wg0.conf:15: [Peer] PublicKey: this adds to the peer in line 5 of this key",
    ];
    assert_eq!(told, expected);
}

#[test]
fn two_peers_do_not_share_a_prefix() {
    let peers = format!(
        "AllowedIPs = 10.0.0.0/8\n[Peer]\nPublicKey = {OTHER}\n\
                         AllowedIPs = 10.0.0.1/8"
    );
    let told = warnings(&read(tunnel("", &peers, "")));
    let expected = "dir/wg0.conf:8: [Peer] AllowedIPs: 10.0.0.0/8 is taken from the peer in line 5";
    assert_eq!(told, [expected]);
}

/// Each file is refused, with these words in the error.
fn expect_errors(cases: &[(String, &str)]) {
    for (text, expected) in cases {
        let error = Given::new(text).read().map(|_| ()).expect_err(text).to_string();
        assert!(error.starts_with("dir/wg0.conf"), "{error}");
        assert!(error.contains(expected), "{text}\n{error}\n{expected}");
    }
}

#[test]
fn errors_name_file_line_section_and_key() {
    let interface = |lines: &str| tunnel(lines, "", "");
    let peer = |lines: &str| tunnel("", lines, "");
    let own = PRIVATE.parse::<crate::PrivateKey>().expect("a key").public_key();
    expect_errors(&[
        (String::new(), "dir/wg0.conf: expected a section [Interface]"),
        ("[Interface]".to_owned(), ":1: [Interface] PrivateKey: missing: expected a key"),
        (format!("[Interface]\nPrivateKey = {PRIVATE}"), ":1: [Interface] Address: missing"),
        (
            format!("[Interface]\nPrivateKey = {PRIVATE}\nAddress = 10.0.0.1"),
            "dir/wg0.conf: expected a section [Peer]",
        ),
        ("[Interface".to_owned(), ":1: expected a section, such as"),
        ("WGConfig =".to_owned(), ":1: WGConfig: expected the path"),
        ("Endpoint = a:1".to_owned(), ":1: Endpoint: unknown key: expected one of WGConfig"),
        (interface("Address = 10.0.0.300"), ":4: [Interface] Address: expected addresses"),
        (
            interface("Address = 10.0.0.1 127.0.0.2/8"),
            ":4: [Interface] Address: expected an address of one host, not a loopback address, \
             as 127.0.0.2 is",
        ),
        (interface("Address = 10.0.0.1/24, ::1/64"), "not a loopback address, as ::1 is"),
        (interface("Address = 0.0.0.0"), "expected an address of one host, not the unspecified"),
        (interface("Address = ::/0"), "expected an address of one host, not the unspecified"),
        (interface("Address = 224.0.0.1"), "expected an address of one host, not a multicast"),
        (interface("Address = ff02::1"), "expected an address of one host, not a multicast"),
        (interface("Address = 255.255.255.255"), "of one host, not the broadcast address"),
        (interface("DNS = 1.1.1.300"), ":4: [Interface] DNS: expected addresses of resolvers"),
        (interface("MTU = 60"), ":4: [Interface] MTU: expected a number of bytes from 576"),
        (interface("ListenPort = 65536"), ":4: [Interface] ListenPort: expected a port"),
        (interface("ListenPort = +1"), ":4: [Interface] ListenPort: expected a port"),
        (interface("FwMark = on"), ":4: [Interface] FwMark: expected off, or a number"),
        (interface("CheckAlive = a"), ":4: [Interface] CheckAlive: expected addresses"),
        (interface("CheckAliveInterval = 1"), ":4: [Interface] CheckAliveInterval: expected tog"),
        (interface("Jc = 3"), ":4: [Interface] Jc: unknown key: expected one of PrivateKey, Addr"),
        (interface("[Interface]"), ":4: [Interface]: expected once; it is in line 1 already"),
        (interface("no value"), ":4: [Interface]: expected KEY = VALUE, a [Section], or"),
        (interface("PostUp = \"\"\"one"), ":4: [Interface]: expected the end of the quotes \"\"\""),
        // Nothing is a comment within quotes.
        (interface("DNS = `10.0.0.1,\n# 10.0.0.2`"), ":4: [Interface] DNS: expected addresses of"),
        (peer("PresharedKey = abc"), ":7: [Peer] PresharedKey: expected a key of 32 bytes"),
        (peer("AllowedIPs = 10.0.0.0/33"), ":7: [Peer] AllowedIPs: expected prefixes"),
        (peer("Endpoint = 10.0.0.1"), ":7: [Peer] Endpoint: expected ADDRESS:PORT"),
        (peer("Endpoint = :51820"), ":7: [Peer] Endpoint: expected ADDRESS:PORT"),
        (peer("Endpoint = ::1:51820"), ":7: [Peer] Endpoint: expected ADDRESS:PORT"),
        (peer("PersistentKeepalive = 65536"), ":7: [Peer] PersistentKeepalive: expected off, or"),
        (
            peer(&format!("[Peer]\nPublicKey={own}")),
            ":7: [Peer] PublicKey: expected the key of another interface",
        ),
    ]);
    for line in [b"\xff" as &[u8], b"PrivateKey = \xff # key", b"Address = '#\xff'"] {
        let error = Given::new([b"[Interface]\n", line].concat()).read().expect_err("no text");
        assert_eq!(error.to_string(), "dir/wg0.conf:2: expected text in UTF-8");
    }
}

#[test]
fn errors_of_doors_name_their_line_too() {
    let door = |lines: &str| tunnel("", "", lines);
    expect_errors(&[
        (door("[Socks4]"), ":8: [Socks4]: unknown section: expected one of Interface"),
        (door("[Socks5]"), ":8: [Socks5] BindAddress: missing: expected ADDRESS:PORT"),
        (door("[Socks5]\nBindAddress = 1080"), ":9: [Socks5] BindAddress: expected ADDRESS:PORT"),
        (
            door("[Socks5]\nBindAddress=:1\nPassword=a"),
            ":10: [Socks5] Password: expected a Username",
        ),
        (
            door("[http]\nBindAddress=:1\nUsername=a:b\nPassword=c"),
            ":10: [http] Username: expected a name without a colon",
        ),
        (door("[http]\nBindAddress=:1\nCertFile=a"), ":10: [http] CertFile: expected a KeyFile"),
        (door("[TCPClientTunnel]\nBindAddress=:1"), ":8: [TCPClientTunnel] Target: missing"),
        (
            door("[TCPServerTunnel]\nListenPort = 0\nTarget = a:1"),
            ":9: [TCPServerTunnel] ListenPort: expected a port from 1",
        ),
        (door("[STDIOTunnel]\nTarget = a:0"), ":9: [STDIOTunnel] Target: expected ADDRESS:PORT"),
        (
            door("[STDIOTunnel]\nTarget = [fe80::1%eth0]:22"),
            ":9: [STDIOTunnel] Target: expected an address without a zone",
        ),
        (
            door("[UDPProxyTunnel]\nBindAddress=:1\nTarget=a:1\nInactivityTimeout=-1"),
            ":11: [UDPProxyTunnel] InactivityTimeout: expected seconds",
        ),
        (
            door(
                "[TCPServerTunnel]\nListenPort=5\nTarget=a:1\n\
                  [TCPServerTunnel]\nListenPort=5\nTarget=b:1",
            ),
            ":11: [TCPServerTunnel] ListenPort: expected one that is free: [TCPServerTunnel] in \
             line 8 has it already",
        ),
        (
            door("[Socks5]\nBindAddress=127.0.0.1:5\n[http]\nBindAddress=0.0.0.0:5"),
            ":10: [http] BindAddress: expected one that is free: [Socks5] in line 8 has it",
        ),
        (
            tunnel("ListenPort=5", "", "[UDPProxyTunnel]\nBindAddress=127.0.0.1:5\nTarget=a:1"),
            ":8: [UDPProxyTunnel] BindAddress: expected another port: 5 is ListenPort of",
        ),
        (door("[SNI]\nBindAddress = x y:1"), ":9: [SNI] BindAddress: expected ADDRESS:PORT"),
        (door("[Resolve]\nResolveStrategy = ipv5"), ":9: [Resolve] ResolveStrategy: expected auto"),
    ]);
}

#[test]
fn secrets_are_in_no_error_and_no_debug_text() {
    let other = &PRIVATE[..42];
    for text in [
        format!("[Interface]\nPrivateKey = {other}\n"),
        format!("[Interface]\nPrivateKey {PRIVATE}\n"),
        format!("[Interface]\n{PRIVATE}\n"),
        format!("[Interface]\n{other} = \n"),
        format!("{PRIVATE}\n"),
        format!("[{PRIVATE}]\n"),
        tunnel("", &format!("PresharedKey = {other}"), ""),
        tunnel("", "", &format!("[http]\nBindAddress = :1\nUsername = a\nPassword = {other}\nx")),
    ] {
        let error = Given::new(&text).read().map(|_| ()).expect_err(&text);
        assert!(!format!("{error}{error:?}").contains(&other[..30]), "{error}");
    }
    let login = format!("[http]\nBindAddress = :1\nUsername = a\nPassword = {OTHER}");
    let file = read(tunnel("", &format!("PresharedKey = {OTHER}"), &login));
    let shown = format!("{file:?}");
    assert!(!shown.contains(&PRIVATE[..30]) && !shown.contains(&OTHER[..30]), "{shown}");
}

#[test]
fn lines_may_go_on_and_end_as_on_other_systems() {
    let text = format!(
        "\u{feff}[Interface] # ours\r\nPrivateKey : `{PRIVATE}`\r\nAddress = 10.0.0.1, \\\r\n  \
         10.0.0.2\r\n[Peer]\r\nPublicKey = \"{PUBLIC}\" # theirs\r\n"
    );
    assert_eq!(read(text).interface.addresses.len(), 2);
}

#[test]
fn hosts_are_printed_as_they_are_read() {
    for text in ["192.0.2.1:1", "[2001:db8::1]:2", "vpn.example.org:3", ":4", "[fe80::1%eth0]:5"] {
        assert_eq!(host_port(text).to_string(), text);
    }
    for text in ["", ":", "a", "a:", "a:+1", "[::1]", "::1:1", "[]:1", "1.2.3:1", "a b:1"] {
        assert_eq!(HostPort::parse(text), None, "{text}");
    }
    for (text, shown) in [("[192.0.2.1]:1", "192.0.2.1:1"), ("[a.test]:2", "a.test:2")] {
        assert_eq!(host_port(text).to_string(), shown);
    }
    assert!(host_port("localhost:1").is_local() && host_port("[::1]:1").is_local());
    assert!(!host_port(":1").is_local() && !host_port("10.0.0.1:1").is_local());
}

#[test]
fn places_that_only_one_socket_can_have_are_known() {
    for (one, other, overlaps) in [
        (":1", "127.0.0.1:1", true),
        ("[::]:1", "a.test:1", true),
        ("0.0.0.0:1", "10.0.0.1:1", true),
        ("A.test:1", "a.test:1", true),
        ("0.0.0.0:1", "[::1]:1", false),
        ("127.0.0.1:1", "127.0.0.2:1", false),
        ("127.0.0.1:1", "localhost:1", false),
        (":0", ":0", false),
        (":1", ":2", false),
    ] {
        let (one, other) = (host_port(one), host_port(other));
        assert_eq!((one.overlaps(&other), other.overlaps(&one)), (overlaps, overlaps), "{one}");
    }
}

/// Lines that are nearly right.
fn line() -> impl Strategy<Value = String> {
    let keys = prop::sample::select(vec![
        "PrivateKey",
        "Address",
        "DNS",
        "MTU",
        "ListenPort",
        "FwMark",
        "PublicKey",
        "PresharedKey",
        "AllowedIPs",
        "Endpoint",
        "PersistentKeepalive",
        "BindAddress",
        "Target",
        "Username",
        "Password",
        "CertFile",
        "KeyFile",
        "InactivityTimeout",
        "ResolveStrategy",
        "WGConfig",
        "CheckAlive",
        "CheckAliveInterval",
        "PostUp",
    ]);
    let values = prop::sample::select(vec![
        PRIVATE,
        PUBLIC,
        "10.0.0.1/8",
        "10.0.0.1",
        "fd00::1/64",
        "0x10",
        "off",
        "25",
        "a:1",
        ":1",
        "[::1]:1",
        "$KEY",
        "$",
        "$$",
        "\"",
        "\"\"\"",
        "#",
        "\\",
        "a, b",
        "wg0.conf",
        "%(x)s",
    ]);
    let sections = prop::sample::select(vec![
        "[Interface]",
        "[Peer]",
        "[Socks5]",
        "[http]",
        "[TCPClientTunnel]",
        "[TCPServerTunnel]",
        "[STDIOTunnel]",
        "[UDPProxyTunnel]",
        "[Resolve]",
        "[SNI]",
        "[",
        "]",
        "=",
    ]);
    prop_oneof![
        4 => (keys, values).prop_map(|(key, value)| format!("{key} = {value}")),
        2 => sections.prop_map(str::to_owned),
        1 => "\\PC{0,20}",
    ]
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(lines in prop::collection::vec(line(), 0..24)) {
        let _ = Given::new(lines.join("\n")).read();
        let _ = Given::new(tunnel("", "", &lines.join("\n"))).read();
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Given::new(bytes).read();
    }
}

#[test]
fn the_text_of_a_file_and_its_secrets_are_wiped() {
    fn wiped<S, T: zeroize::ZeroizeOnDrop>(_: impl Fn(&S) -> &T) {}
    wiped(|text: &Text| &text.bytes);
    wiped(|entry: &super::lines::Entry| &entry.value);
    wiped(|value: &super::keys::Value| &value.text);
    wiped(|password: &Password| &password.0);
}
