//! What is shown of a tunnel: `neap wg show` beside wg(8), which prints an interface of the same
//! figures that answers by its protocol; and no page, list or log has a secret.

use super::host::Host;
use super::namespace::{in_namespace, skip};
use super::world::{FAR, Folder, Keys, Tunnel, get, veth};
use super::{ALIVE, INFO, confined, readiness, wait_until_ready};
use neap_wireguard::{PrivateKey, PublicKey};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs::DirBuilder;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{env, fs, thread};

/// Tells this binary that it has a `/run` of its own, with what an interface answers there.
const ANSWER: &str = "NEAP_TEST_UAPI";
/// The words that wg is asked by then.
const QUESTION: &str = "NEAP_TEST_QUESTION";
/// Where Prometheus asks.
const METRICS: &str = "127.0.0.1:9081";
/// The longest that figures may change between any two looks: far above what they do.
const PATIENCE: Duration = Duration::from_secs(60);

/// What both are asked for, besides an interface in words for people.
const FIELDS: [&str; 11] = [
    "public-key",
    "listen-port",
    "fwmark",
    "peers",
    "preshared-keys",
    "endpoints",
    "allowed-ips",
    "latest-handshakes",
    "transfer",
    "persistent-keepalive",
    "dump",
];

/// What wg(8) prints if the interface answers it so.
fn of_wg(question: &str, answer: &str) -> String {
    let own = env::current_exe().expect("the test knows its binary");
    let script = "mount -t tmpfs none /run && mkdir /run/wireguard && \
                  exec \"$0\" --exact shown::wg_prints_what_it_is_answered --nocapture";
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", script])
        .arg(own)
        .env(ANSWER, answer)
        .env(QUESTION, question)
        .stdin(Stdio::null())
        .output()
        .expect("unshare runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    let lines = text.lines().filter_map(|line| line.strip_prefix("wg| "));
    lines.map(|line| format!("{line}\n")).collect()
}

/// What this binary does with a `/run` of its own: it answers as an interface, and prints what wg
/// says of that.
#[test]
fn wg_prints_what_it_is_answered() {
    let (Ok(answer), Ok(question)) = (env::var(ANSWER), env::var(QUESTION)) else { return };
    let listener = UnixListener::bind("/run/wireguard/near.sock").expect("a socket");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut lines = BufReader::new(stream.try_clone().expect("a socket")).lines();
            // wg looks whether somebody is there first.
            if lines.next().is_some_and(|line| line.expect("a line") == "get=1") {
                stream.write_all(format!("{answer}errno=0\n\n").as_bytes()).expect("sent");
            }
        }
    });
    let output = Command::new("wg").arg("show").args(question.split(' ')).output();
    let output = output.expect("wg runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // With one processor the harness has begun a line.
    println!();
    for line in String::from_utf8(output.stdout).expect("text").lines() {
        println!("wg| {line}");
    }
}

/// Both print the same, but for keys that neap never has. `uapi` is what the interface answers now.
fn assert_same(folder: &Folder, question: &str, keys: &Keys, uapi: impl Fn() -> String) {
    let ours = || {
        let words: Vec<_> = ["wg", "show"].into_iter().chain(question.split(' ')).collect();
        folder.print(&words)
    };
    let begin = Instant::now();
    loop {
        let before = ours();
        let theirs = keys.hidden(&of_wg(question, &uapi()));
        // Figures rise and time passes, so that nothing has changed in between if these are equal.
        if ours() == before {
            assert_eq!(before, theirs, "wg show {question}");
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "it changes all the time: {before}");
    }
}

fn has_wg() -> bool {
    let has = Command::new("wg").arg("--version").output().is_ok();
    if !has {
        skip("there is no wg(8)");
    }
    has
}

#[test]
fn two_tunnels_reach_each_other_and_show_no_secret() {
    in_namespace(|| {
        let folder = Folder::new("pair");
        let far_host = Host::new(false);
        veth(&far_host);
        let keys = Keys::new();
        let near = folder.write("near.conf", &keys.near(ALIVE, ""));
        let far = folder.write("far.conf", &keys.far("", ""));
        let log = ["--log", "trace"];
        let of_far =
            far_host.inside(|| Tunnel::start(&folder, &[&["-c", &far], &log[..]].concat()));
        let arguments = ["-c", &near, "-i", INFO, "--metrics", METRICS];
        let tunnel = Tunnel::start(&folder, &[&arguments, &log[..]].concat());
        confined::check(tunnel.pid(), 0);
        wait_until_ready();
        let (status, uapi) = get(INFO, "/metrics");
        assert_eq!(status, 200);
        assert_eq!(readiness("//./x/../readyz/").0, 200);
        assert_eq!(get(INFO, "/readyz/x").0, 404);
        assert!(uapi.contains("private_key=REDACTED\n"));
        assert!(uapi.contains("preshared_key=REDACTED\n"));
        let shown = folder.print(&["wg", "show", "near"]);
        for line in [
            "interface: near\n",
            &format!("  public key: {}\n", keys.near_public()),
            "  private key: (hidden)\n  listening port: 51821\n\n",
            &format!("peer: {}\n  preshared key: (hidden)\n", keys.far_public()),
            &format!("  endpoint: {FAR}:51820\n  allowed ips: 10.9.0.2/32\n"),
            "  latest handshake: ",
            "  transfer: ",
            "  persistent keepalive: every 25 seconds\n",
        ] {
            assert!(shown.contains(line), "{line}\n{shown}");
        }
        assert_eq!(folder.print(&["wg", "show", "interfaces"]), "far near\n");
        if has_wg() {
            let uapi = || keys.with_secrets(&get(INFO, "/metrics").1);
            assert_same(&folder, "near", &keys, uapi);
            for field in FIELDS {
                assert_same(&folder, &format!("near {field}"), &keys, uapi);
            }
        }
        show_no_secret(&folder, &keys, tunnel, of_far);
    });
}

/// Looks for the keys of both tunnels in all that is shown of them, and in their logs at last.
fn show_no_secret(folder: &Folder, keys: &Keys, near: Tunnel, far: Tunnel) {
    let mut texts: Vec<(String, String)> = Vec::new();
    for (address, path) in [(INFO, "/metrics"), (INFO, "/readyz"), (METRICS, "/metrics")] {
        texts.push((format!("{address}{path}"), get(address, path).1));
    }
    let mut commands = vec!["wg show", "wg show --json", "wg show near private-key"];
    let fields: Vec<_> = FIELDS.iter().map(|field| format!("wg show all {field}")).collect();
    commands.extend(fields.iter().map(String::as_str));
    commands.extend(["nstat -a --name near", "ss -tunai --name near"]);
    for command in commands {
        let words: Vec<_> = command.split(' ').collect();
        texts.push((command.to_owned(), folder.print(&words)));
    }
    // A file that is wrong at its secrets, and one that changes them.
    for (name, tunnel) in [("near", &near), ("far", &far)] {
        let file = folder.path(&format!("{name}.conf"));
        let text = fs::read_to_string(&file).expect("it is there");
        for (key, from, to) in [
            ("PrivateKey", "=\n", "\n"),
            ("PresharedKey", "=\n", "\n"),
            ("PresharedKey", " = ", " "),
        ] {
            let at = text.find(key).expect("it is there");
            let spoiled = format!("{}{}", &text[..at], text[at..].replacen(from, to, 1));
            folder.write(&format!("{name}.conf"), &spoiled);
            tunnel.reload();
        }
        folder.write(&format!("{name}.conf"), &keys.exchanged(&text));
        tunnel.reload();
    }
    texts.push(("log of near".to_owned(), near.end()));
    texts.push(("log of far".to_owned(), far.end()));
    for (place, text) in &texts {
        for secret in keys.traces() {
            assert!(!text.contains(&secret), "{secret} in {place}: {text}");
        }
    }
    // They are the places where keys would be.
    let has = |wanted: &str, text: &str| {
        let found = texts.iter().find(|(place, _)| place == wanted);
        found.unwrap_or_else(|| panic!("{wanted}")).1.contains(text)
    };
    let (public, metrics) = (keys.far_public(), format!("{METRICS}/metrics"));
    assert!(has(&format!("{INFO}/metrics"), &hex(&public)));
    for place in [metrics.as_str(), "wg show", "wg show --json", "wg show all dump"] {
        assert!(has(place, &public), "{place}");
    }
    for log in ["log of near", "log of far"] {
        assert!(has(log, "[Interface] PrivateKey: expected a key"), "{log}");
        assert!(has(log, "[Peer] PresharedKey: expected a key"), "{log}");
    }
}

/// The bytes of a public key, as the configuration protocol has them.
fn hex(key: &str) -> String {
    let key: PublicKey = key.parse().expect("a key");
    key.as_bytes().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Bytes that peers have sent and received.
const SIZES: [u64; 20] = [
    0,
    0,
    1,
    999,
    1023,
    1024,
    1029,
    (1 << 20) - 1,
    1 << 20,
    1_258_291,
    (1 << 30) - 1,
    1 << 30,
    5 << 29,
    (1 << 40) - 1,
    1 << 40,
    3 << 40,
    1 << 50,
    123 << 52,
    u64::MAX - 1,
    u64::MAX,
];
/// How long ago their handshakes were, seconds.
const AGES: [u64; 18] = [
    1,
    1,
    2,
    58,
    60,
    62,
    119,
    3600,
    3661,
    7322,
    DAY - 1,
    DAY,
    DAY + 3661,
    364 * DAY,
    365 * DAY,
    366 * DAY + 3661,
    730 * DAY,
    3653 * DAY + 7,
];
/// Seconds of a day.
const DAY: u64 = 86_400;

/// A peer of an interface that is only told of.
struct Told {
    key: PublicKey,
    is_shared: bool,
    endpoint: Option<&'static str>,
    allowed: &'static [&'static str],
    /// Seconds and nanoseconds since 1970.
    handshake: Option<(u64, u32)>,
    received: u64,
    sent: u64,
    keepalive: Option<u16>,
}

impl Told {
    /// In the words of neap's control socket.
    fn report(&self) -> Value {
        json!({
            "public_key": self.key.to_string(),
            "has_preshared_key": self.is_shared,
            "endpoint": self.endpoint,
            "allowed_ips": self.allowed,
            "latest_handshake": self.handshake,
            "received": self.received,
            "sent": self.sent,
            "persistent_keepalive": self.keepalive,
            "failed_handshakes": 0,
        })
    }

    /// In the words of the configuration protocol.
    fn uapi(&self) -> String {
        let mut text = format!("public_key={}\n", hex(&self.key.to_string()));
        if self.is_shared {
            text += "preshared_key=REDACTED\n";
        }
        if let Some(endpoint) = self.endpoint {
            text += &format!("endpoint={endpoint}\n");
        }
        let (seconds, nanos) = self.handshake.unwrap_or_default();
        text += &format!("last_handshake_time_sec={seconds}\nlast_handshake_time_nsec={nanos}\n");
        text += &format!("tx_bytes={}\nrx_bytes={}\n", self.sent, self.received);
        text += &format!("persistent_keepalive_interval={}\n", self.keepalive.unwrap_or(0));
        let allowed = self.allowed.iter().map(|prefix| format!("allowed_ip={prefix}\n"));
        text + &allowed.collect::<String>()
    }
}

/// Peers with sizes from bytes to far above TiB, and handshakes from seconds to years ago, one of
/// them in the time to come.
fn told() -> Vec<Told> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let peer = |index: usize| Told {
        key: PrivateKey::from([index as u8 + 100; 32]).public_key(),
        is_shared: index.is_multiple_of(3),
        endpoint: [None, Some("192.0.2.1:51820"), Some("[2001:db8::1]:1")][index % 3],
        allowed: [
            &["10.0.0.0/24", "fd00::/64", "0.0.0.0/0"] as &[_],
            &[],
            &["192.0.2.7/32"],
            &["::/0"],
        ][index % 4],
        handshake: match index.checked_sub(1) {
            // One without, and one in the time to come.
            None => None,
            Some(0) => Some((now + 100_000, 0)),
            // Two in the same second.
            Some(index) => Some((now - AGES[index - 1], index as u32)),
        },
        received: SIZES[index],
        sent: SIZES[(index * 7 + usize::from(index > 0)) % SIZES.len()],
        keepalive: [None, Some(1), Some(25), Some(60), Some(3661), Some(65_535)][index % 6],
    };
    (0..SIZES.len()).map(peer).collect()
}

/// Tells of an interface at a control socket, as a process with a tunnel does.
fn tell(folder: &Folder, report: Value) {
    let place = folder.path("neap");
    DirBuilder::new().mode(0o700).create(&place).expect("a folder");
    let pid = std::process::id();
    let listener = UnixListener::bind(place.join(format!("{pid}-near.sock"))).expect("a socket");
    let head =
        json!({"neap": 1, "pid": pid, "name": "near", "program": "test", "uid": 0, "uptime": 0});
    thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.expect("a connection");
            let mut request = String::new();
            BufReader::new(&stream).read_line(&mut request).expect("a line");
            // Others look whether somebody listens.
            let Ok(request) = serde_json::from_str::<Value>(&request) else { continue };
            let lines = Vec::from_iter((request["get"] == "wireguard").then_some(&report));
            let mut answer = format!("{head}\n");
            lines.iter().for_each(|line| answer += &format!("{line}\n"));
            answer += &format!("{}\n", json!({"end": lines.len()}));
            (&stream).write_all(answer.as_bytes()).expect("sent");
        }
    });
}

#[test]
fn sizes_and_times_of_many_peers_are_printed_as_wg_prints_them() {
    if !has_wg() {
        return;
    }
    in_namespace(|| {
        let (folder, keys) = (Folder::new("told"), Keys::new());
        let peers = told();
        let report = json!({
            "name": "near",
            "public_key": keys.near_public(),
            "listen_port": 51821,
            "fwmark": 0xca6c,
            "peers": peers.iter().map(Told::report).collect::<Vec<_>>(),
        });
        tell(&folder, report);
        let peers: String = peers.iter().map(Told::uapi).collect();
        let uapi = format!("private_key=REDACTED\nlisten_port=51821\nfwmark={}\n{peers}", 0xca6c);
        let uapi = || keys.with_secrets(&uapi);
        for question in ["near", "all", "interfaces", "all dump", "all transfer", "all listen-port"]
        {
            assert_same(&folder, question, &keys, uapi);
        }
        for field in FIELDS {
            assert_same(&folder, &format!("near {field}"), &keys, uapi);
        }
    });
}
