# RootlessKit with its slirp4netns network by neap.
. ./expect.sh

# Whether RootlessKit asks slirp4netns to give up its rights.
confine=auto

# kit PORT_DRIVER SCRIPT: runs the script in RootlessKit, with the port 18080 published.
kit() {
    rootlesskit --net=slirp4netns --slirp4netns-binary="$bin/slirp4netns" --mtu=65520 \
        --slirp4netns-sandbox="$confine" --slirp4netns-seccomp="$confine" \
        --disable-host-loopback --ipv6 --port-driver="$1" -p 127.0.0.1:18080:80/tcp \
        -p 127.0.0.1:5353:53/udp -p 127.0.0.1:19000:9000/tcp \
        --copy-up=/etc --copy-up=/run sh -c "$2"
}

network=$(kit builtin 'ip -4 addr show tap0; ip route; cat /etc/resolv.conf')
for line in "inet 10.0.2.100/24" "default via 10.0.2.2 dev tap0" "nameserver 10.0.2.3"; do
    case "$network" in *"$line"*) echo "ok: $line" ;; *) fail "no $line in $network" ;; esac
done
sum=$(sha256sum </mnt/files/large)
same "a download by name" "$(kit builtin "wget -q -O - http://$name:8000/large | sha256sum")" "$sum"
same "an upload" \
    "$(kit builtin "busybox nc $server 9000 </mnt/files/large | head -n 1")" "$sum"
# The address comes by an advertisement.
over_v6=". ./expect.sh
    eventually 'an address' wget -q -O /dev/null 'http://[$server_v6]:8000/small' >&2"
same "a download over IPv6" "$(kit builtin "$over_v6
    wget -q -O - 'http://[$server_v6]:8000/large' | sha256sum")" "$sum"
same "an upload over IPv6" "$(kit builtin "$over_v6
    busybox nc $server_v6 9000 </mnt/files/large | head -n 1")" "$sum"
mkdir www
echo "a page" >www/page
ln -s /mnt/files/large www/large
for driver in builtin slirp4netns; do
    [ $driver = builtin ] || confine=false
    rm -f done
    kit "$driver" "busybox httpd -p 80 -h www
        busybox nc -ll -p 9000 -e sha256sum & hasher=\$!
        perl /mnt/files/datagrams.pl serve 0.0.0.0 53 &
        while [ ! -e done ]; do sleep 0.1; done; kill \$! \$hasher" >"kit-$driver" 2>&1 &
    eventually "$driver: a page" wget -q -O - http://127.0.0.1:18080/page
    same "$driver: its text" "$(wget -q -O - http://127.0.0.1:18080/page)" "a page"
    same "$driver: 64 MiB out" \
        "$(wget -q -O - http://127.0.0.1:18080/large | sha256sum)" "$sum"
    hashes 127.0.0.1 19000
    same "$driver: 64 MiB in" \
        "$(busybox nc 127.0.0.1 19000 </mnt/files/large | head -n 1)" "$sum"
    [ -n "$(perl /mnt/files/datagrams.pl ask 127.0.0.1 5353)" ] || fail "$driver: datagrams"
    echo "ok: $driver: datagrams"
    touch done
    wait
done
echo "all of rootlesskit"
