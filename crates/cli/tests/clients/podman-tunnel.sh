# Podman 5 with containers that go through the tunnel of a file.
. ./expect.sh
. ./box.sh

export PODMAN_IGNORE_CGROUPSV1_WARNING=1
configure "helper_binaries_dir = [\"$bin\", \"/usr/libexec/podman\", \"/usr/lib/podman\"]"
make_box
network=pasta:--upstream,wireguard:/mnt/files/near.conf
# The test serves a page by this name behind the tunnel alone.
page=$(podman run --rm --network "$network" box:1 \
    /bin/sh -c "wget -q -O - http://www.example.test/1000000 | sha256sum")
same "a page behind the tunnel" "$page" "$(sha256sum </mnt/files/page)"
podman run -d --name web --network "$network" -p 18090:80 box:1 \
    /bin/httpd -f -p 80 -h /www >/dev/null
eventually "published" wget -q -O - http://192.0.2.2:18090/page
runs "neap pasta --in-background --config-net" || fail "Podman does not use neap"
podman rm -f -t 0 web >/dev/null
echo "all of podman-tunnel"
