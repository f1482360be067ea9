# Podman with its slirp4netns network by neap.
. ./expect.sh
. ./box.sh

configure "network_cmd_path = \"$bin/slirp4netns\""
make_box

box() {
    podman run --rm --network slirp4netns:enable_ipv6=true box:1 /bin/sh -c "$1"
}

network=$(box 'ip -4 addr show tap0; ip route; cat /etc/resolv.conf')
for line in "inet 10.0.2.100/24" "default via 10.0.2.2 dev tap0" "nameserver 10.0.2.3"; do
    case "$network" in *"$line"*) echo "ok: $line" ;; *) fail "no $line in $network" ;; esac
done
case $(box "nslookup -type=a $name") in
*"Address: $server"*) echo "ok: a name" ;;
*) fail "a name" ;;
esac

sum=$(sha256sum </mnt/files/large)
same "a download by name" \
    "$(box "wget -q -O - http://$name:8000/large | sha256sum")" "$sum"
same "a download over IPv6" \
    "$(box "wget -q -O - 'http://[$server_v6]:8000/large' | sha256sum")" "$sum"
same "an upload" \
    "$(box "wget -q -O - http://$server:8000/large | nc $server 9000 | head -n 1")" "$sum"
same "an upload over IPv6" \
    "$(box "wget -q -O - http://$server:8000/large | nc $server_v6 9000 | head -n 1")" "$sum"
# shellcheck disable=SC2086
same "datagrams outwards" "$(podman run --rm --network slirp4netns $programs $files box:1 \
    /usr/bin/perl /files/datagrams.pl ask "$server" 7000)" "$server"
box "! nc -w 3 10.0.2.2 8001 </dev/null" >log 2>&1 ||
    fail "the loopback address of the host is out of reach"
echo "ok: the loopback address of the host is out of reach"

# Published ports: by Podman's own handler, and by that of slirp4netns, which keeps addresses.
for handler in rootlesskit slirp4netns; do
    # shellcheck disable=SC2086
    podman run -d --name "web-$handler" --network "slirp4netns:port_handler=$handler" \
        -p 18080:80 -p 19000:9000 -p 5353:53/udp $programs $files box:1 \
        /bin/sh -c "nc -ll -p 9000 -e sha256sum & /usr/bin/perl /files/datagrams.pl serve 0.0.0.0 53 &
            exec httpd -f -v -p 80 -h /www" >/dev/null
    for address in 127.0.0.1 "$host"; do
        eventually "$handler: a page at $address" wget -q -O - "http://$address:18080/page"
        same "$handler: its text" "$(wget -q -O - "http://$address:18080/page")" "a page"
    done
    hashes "$host" 19000
    same "$handler: 64 MiB into the container" \
        "$(busybox nc "$host" 19000 </mnt/files/large | head -n 1)" "$sum"
    same "$handler: 64 MiB out of the container" \
        "$(wget -q -O - "http://$host:18080/large" | sha256sum)" "$sum"
    clients=$(for address in "$host" 127.0.0.1; do
        perl /mnt/files/datagrams.pl ask "$address" 5353
    done | tr '\n' ' ')
    # Podman's own handler has one address for all.
    [ "$handler" = slirp4netns ] || clients=$(echo "$clients" | tr ' ' '\n' | sort -u | wc -w)
    [ "$handler" = slirp4netns ] && expected="$host 10.0.2.2 " || expected=1
    same "$handler: datagrams, and their clients" "$clients" "$expected"
    same "$handler: exec" "$(podman exec "web-$handler" \
        /bin/sh -c "wget -q -O - http://$name:8000/small")" "small"
    same "$handler: out of one container and into the other" \
        "$(box "wget -q -O - http://$host:18080/page")" "a page"
    podman stop -t 0 "web-$handler" >/dev/null
    if wget -q -O - -T 2 -t 1 "http://$host:18080/page" >log 2>&1; then
        fail "$handler: the port is closed with the container"
    fi
    podman start "web-$handler" >/dev/null
    eventually "$handler: a page after a new start" wget -q -O - "http://$host:18080/page"
    podman logs "web-$handler" >"log-$handler" 2>&1
    podman rm -f -t 0 "web-$handler" >/dev/null
done
grep -q "$host" log-slirp4netns || fail "the client's address: $(cat log-slirp4netns)"
echo "ok: the container sees its client's address"
grep -q "10.0.2.2" log-slirp4netns || fail "loopback clients: $(cat log-slirp4netns)"
echo "ok: loopback clients have the gateway's address"

# The containers of a pod have one network.
podman pod create --name pod --network slirp4netns:port_handler=slirp4netns -p 18081:80 \
    --infra-image box:1 --infra-command "/bin/sleep 1000" >/dev/null
podman run -d --pod pod --name web box:1 /bin/httpd -f -p 80 -h /www >/dev/null
eventually "pod: a page from outside" wget -q -O - "http://$host:18081/page"
same "pod: one container asks the other" \
    "$(podman run --rm --pod pod box:1 /bin/wget -q -O - http://127.0.0.1/page)" "a page"
same "pod: a download" \
    "$(podman run --rm --pod pod box:1 /bin/sh -c "wget -q -O - http://$name:8000/large | sha256sum")" \
    "$sum"
podman pod stop -t 0 pod >/dev/null
podman pod start pod >/dev/null
eventually "pod: a page after a new start" wget -q -O - "http://$host:18081/page"
podman pod rm -f -t 0 pod >/dev/null
echo "all of podman"
