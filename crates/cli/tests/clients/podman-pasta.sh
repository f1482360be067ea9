# Podman 5 with its pasta network: by neap, and by the real pasta on the same command lines.
. ./expect.sh
. ./box.sh

# choose FOLDER: the one that Podman finds pasta in
choose() {
    configure "helper_binaries_dir = [\"$1\", \"/usr/libexec/podman\", \"/usr/lib/podman\"]"
}

box() {
    podman run --rm --network pasta box:1 /bin/sh -c "$1"
}

# What a container sees, and what reaches it, without what differs from one to the next: its own
# address of the link. The real pasta copies routes that the kernel makes with an address as well, so
# that there are two of each.
report() {
    box 'ip addr; ip route; ip -6 route' |
        grep -v -e link/ -e "inet6 fe80" -e "^fe80" -e valid_lft -e "dev lo" -e "^1:" \
            -e "127.0.0.1" -e "::1/128" |
        sed -e 's/ qdisc .*//' -e 's/ metric .*//' -e 's/ scope link.*//' -e 's/ *$//' | sort -u
    box "grep nameserver /etc/resolv.conf; nslookup -type=a $name"
    echo "by name: $(box "wget -q -O - http://$name:8000/small")"
    echo "over IPv6: $(box "wget -q -O - 'http://[$server_v6]:8000/small'")"
    echo "the host: $(box "wget -q -O - http://169.254.1.2:18500/small")"
    box "nc -w 2 127.0.0.1 8001 </dev/null" || echo "the loopback address is the container's own"
    # shellcheck disable=SC2086
    podman run -d --name web --network pasta -p 18090:80 -p 19090:9000 -p 5353:53/udp \
        $programs $files box:1 \
        /bin/sh -c "nc -ll -p 9000 -e sha256sum & /usr/bin/perl /files/datagrams.pl serve :: 53 &
            exec httpd -f -v -p '[::]:80' -h /www" >/dev/null
    for address in "$host" "$host_v6"; do
        echo "datagrams to $address from $(perl /mnt/files/datagrams.pl ask "$address" 5353)"
    done
    # The real pasta shows clients at these addresses by the container's own one.
    for address in 127.0.0.1 ::1; do
        perl /mnt/files/datagrams.pl ask "$address" 5353 >/dev/null || fail "datagrams to $address"
    done
    for address in 127.0.0.1 "$host" "[::1]" "[$host_v6]"; do
        eventually "published at $address" wget -q -O - "http://$address:18090/page"
    done
    hashes "$host" 19090
    echo "a hash: $(busybox nc "$host" 19090 </mnt/files/small | head -n 1)"
    # Clients that are not the host itself.
    wget -q -O /dev/null --bind-address="$server" "http://$host:18090/page"
    wget -q -O /dev/null --bind-address="$server_v6" "http://[$host_v6]:18090/page"
    # What the server has said may be copied later.
    eventually "$server in the log" sh -c "podman logs web 2>&1 | grep -q -F '$server'"
    eventually "$server_v6 in the log" sh -c "podman logs web 2>&1 | grep -q -F '$server_v6'"
    podman logs web 2>&1 | grep -o -e "$server" -e "$server_v6" | sort -u
    echo "exec: $(podman exec web /bin/wget -q -O - "http://$name:8000/small")"
    podman stop -t 0 web >/dev/null
    wget -q -O - -T 2 -t 1 "http://$host:18090/page" || echo "stopped"
    podman start web >/dev/null
    eventually "published after a new start" wget -q -O - "http://$host:18090/page"
    podman rm -f -t 0 web >/dev/null
    podman pod create --name pod --network pasta -p 18091:80 --infra-image box:1 \
        --infra-command "/bin/sleep 1000" >/dev/null
    podman run -d --pod pod --name web box:1 /bin/httpd -f -p 80 -h /www >/dev/null
    eventually "published by a pod" wget -q -O - "http://$host:18091/page"
    echo "pod: $(podman run --rm --pod pod box:1 /bin/wget -q -O - http://127.0.0.1/page)"
    podman pod rm -f -t 0 pod >/dev/null
}

export PODMAN_IGNORE_CGROUPSV1_WARNING=1
choose "$bin"
make_box
busybox httpd -f -p "$host:18500" -h /mnt/files &
podman run -d --name first --network pasta box:1 /bin/sleep 1000 >/dev/null
runs "neap pasta --in-background --config-net" || fail "Podman does not use neap"
podman rm -f -t 0 first >/dev/null
sum=$(sha256sum </mnt/files/large)
same "a download by name" "$(box "wget -q -O - http://$name:8000/large | sha256sum")" "$sum"
same "a download over IPv6" \
    "$(box "wget -q -O - 'http://[$server_v6]:8000/large' | sha256sum")" "$sum"
same "an upload" \
    "$(box "wget -q -O - http://$server:8000/large | nc $server 9000 | head -n 1")" "$sum"
same "an upload over IPv6" \
    "$(box "wget -q -O - 'http://[$server_v6]:8000/large' | nc $server_v6 9000 | head -n 1")" "$sum"
for address in "$server" "$server_v6"; do
    # shellcheck disable=SC2086
    same "datagrams to $address" "$(podman run --rm --network pasta $programs $files box:1 \
        /usr/bin/perl /files/datagrams.pl ask "$address" 7000)" "$address"
done
# shellcheck disable=SC2086
podman run -d --name sink --network pasta -p 19091:9000 -p 18092:80 $files box:1 /bin/sh \
    -c "httpd -f -p '[::]:80' -h /www & exec nc -ll -p 9000 -e sha256sum" >/dev/null
for address in "$host" "$host_v6"; do
    hashes "$address" 19091
    same "64 MiB in by $address" \
        "$(busybox nc "$address" 19091 </mnt/files/large | head -n 1)" "$sum"
done
for address in "$host" "[$host_v6]"; do
    eventually "a page of $address" wget -q -O - "http://$address:18092/page"
    same "64 MiB out by $address" \
        "$(wget -q -O - "http://$address:18092/large" | sha256sum)" "$sum"
done
podman rm -f -t 0 sink >/dev/null
report >report-neap
choose /usr/bin
podman run -d --name first --network pasta box:1 /bin/sleep 1000 >/dev/null
runs "/usr/bin/pasta --config-net" || fail "Podman does not use the real pasta"
podman rm -f -t 0 first >/dev/null
report >report-real
diff report-real report-neap >log || fail "neap and pasta differ"
for router in 192.0.2.254 fe80::1; do
    grep -q "^default via $router dev outside" report-neap || fail "no route by $router"
done
cat report-neap
echo "all of podman-pasta"
