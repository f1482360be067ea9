# wget in containers of Podman 5 with its pasta network, over a link that goes and comes.
. ./expect.sh
. ./box.sh
. ./cut.sh

export PODMAN_IGNORE_CGROUPSV1_WARNING=1
configure "helper_binaries_dir = [\"$bin\", \"/usr/libexec/podman\", \"/usr/lib/podman\"]"
make_box

# transfer SERVER ADDRESS: from the servers and back
transfer() {
    # shellcheck disable=SC2086
    through_a_cut "pasta, $2" podman run --rm --network pasta $programs -v "$PWD:/out" box:1 /bin/sh \
        -c "/usr/bin/wget -q -O - --limit-rate=32m 'http://$1:8000/large' | tee /out/got | nc $2 9000"
}

transfer "$server" "$server"
transfer "[$server_v6]" "$server_v6"
echo "all of link-pasta"
