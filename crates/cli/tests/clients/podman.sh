# Podman with its slirp4netns network by neap.
. ./expect.sh

mkdir -p .config/containers root/bin
cat >.config/containers/containers.conf <<END
[engine]
network_cmd_path = "$bin/slirp4netns"
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "file"
END
cat >.config/containers/storage.conf <<END
[storage]
driver = "vfs"
END
cp /bin/busybox root/bin/busybox
for applet in sh ip wget nc sha256sum head cat ping sleep nslookup httpd echo tr; do
    ln -s busybox "root/bin/$applet"
done
mkdir root/proc root/sys root/dev root/etc root/tmp root/www
echo "a page" >root/www/page
tar -C root -cf root.tar .
podman import -q root.tar box:1 >/dev/null

box() {
    podman run --rm --network slirp4netns:enable_ipv6=true box:1 /bin/sh -c "$1"
}

network=$(box 'ip -4 addr show tap0; ip route; cat /etc/resolv.conf')
for line in "inet 10.0.2.100/24" "default via 10.0.2.2 dev tap0" "nameserver 10.0.2.3"; do
    case "$network" in *"$line"*) echo "ok: $line" ;; *) fail "no $line in $network" ;; esac
done

sum=$(sha256sum </mnt/files/large)
same "a download by name" "$(box "wget -q -O - http://$name:8000/large | sha256sum")" "$sum"
same "a download over IPv6" "$(box "wget -q -O - 'http://[$server_v6]:8000/large' | sha256sum")" "$sum"
same "an upload" "$(box "wget -q -O - http://$server:8000/large | nc $server 9000 | head -n 1")" "$sum"
box "! nc -w 3 10.0.2.2 8001 </dev/null" >log 2>&1 ||
    fail "the loopback address of the host is out of reach"
echo "ok: the loopback address of the host is out of reach"

# Published ports: by Podman's own handler, and by that of slirp4netns, which keeps addresses.
for handler in rootlesskit slirp4netns; do
    podman run -d --name "web-$handler" --network "slirp4netns:port_handler=$handler" \
        -p 18080:80 box:1 /bin/httpd -f -v -p 80 -h /www >/dev/null
    for address in 127.0.0.1 "$server"; do
        eventually "$handler: a page at $address" wget -q -O - "http://$address:18080/page"
        same "$handler: its text" "$(wget -q -O - "http://$address:18080/page")" "a page"
    done
    same "$handler: exec" "$(podman exec "web-$handler" /bin/sh -c "wget -q -O - http://$name:8000/small")" "small"
    podman stop -t 1 "web-$handler" >/dev/null
    if wget -q -O - -T 2 -t 1 "http://$server:18080/page" >log 2>&1; then
        fail "$handler: the port is closed with the container"
    fi
    podman start "web-$handler" >/dev/null
    eventually "$handler: a page after a new start" wget -q -O - "http://$server:18080/page"
    podman logs "web-$handler" >"log-$handler" 2>&1
    podman rm -f -t 1 "web-$handler" >/dev/null
done
grep -q "192.0.2.1" log-slirp4netns || fail "the client's address: $(cat log-slirp4netns)"
echo "ok: the container sees its client's address"
grep -q "10.0.2.2" log-slirp4netns || fail "loopback clients: $(cat log-slirp4netns)"
echo "ok: loopback clients have the gateway's address"
echo "all of podman"
