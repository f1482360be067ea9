//! What a client of DHCP in the namespace is told.

use super::folder::Folder;
use super::namespace::{in_namespace, run, skip};
use super::{NO_PORTS, Namespace, host, join, pasta, succeed};
use std::process::Command;

#[test]
fn a_client_is_told_of_all_search_domains_and_of_a_router_outside_of_its_network() {
    in_namespace(|| {
        if Command::new("busybox").arg("udhcpc").arg("--help").output().is_err() {
            return skip("busybox is not installed");
        }
        host();
        let (folder, namespace) = (Folder::new("pasta-dhcp"), Namespace::new());
        let pid = namespace.pid();
        let options = "--quiet -a 10.1.2.3 -n 24 -g 192.168.0.1 --dhcp-search -S a.example -S \
                       b.example";
        let options: Vec<_> = options.split_whitespace().collect();
        succeed(pasta(&[&options, &NO_PORTS[..], &[pid.as_str()]].concat()));
        let text = "#!/bin/sh\n[ $1 != bound ] || echo \"$ip/$mask; $search; $staticroutes\"\n";
        let script = folder.write("script", text);
        run(&format!("chmod 755 {script}"));
        let inside = |line: &str| run(&format!("nsenter -t {pid} -n {line}"));
        inside("ip link set eth7 up");
        let line = inside(&format!("busybox udhcpc -i eth7 -nqf -s {script}"));
        let routes = "192.168.0.1/32 0.0.0.0 0.0.0.0/0 192.168.0.1";
        assert!(line.contains(&format!("10.1.2.3/24; a.example b.example; {routes}")), "{line}");
    });
}

#[test]
fn clients_are_told_the_names_of_the_namespace() {
    in_namespace(|| {
        host();
        let namespace = Namespace::new();
        let names = ["--hostname", "web", "--fqdn", "web.example.org"];
        join(&namespace, &[&names[..], &NO_PORTS[..]].concat());
        let said = succeed(namespace.program("solicit", "127.0.0.1:1"));
        // RFC 4704: flags, and labels behind their lengths.
        let name = "[0, 3, 119, 101, 98, 7, 101, 120, 97, 109, 112, 108, 101, 3, 111, 114, 103, 0]";
        assert!(said.contains(&format!("qualified name: {name}")), "{said}");
        if Command::new("busybox").arg("udhcpc").arg("--help").output().is_err() {
            return skip("busybox is not installed");
        }
        let folder = Folder::new("pasta-names");
        let text = "#!/bin/sh\n[ $1 != bound ] || echo \"it is $hostname\"\n";
        let script = folder.write("script", text);
        run(&format!("chmod 755 {script}"));
        let client = format!("busybox udhcpc -i eth7 -nqf -O hostname -s {script}");
        let line = run(&format!("nsenter -t {} -n {client}", namespace.pid()));
        assert!(line.contains("it is web"), "{line}");
    });
}
