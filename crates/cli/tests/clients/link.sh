# curl in sandboxes and containers, over a link that goes and comes.
. ./expect.sh
. ./box.sh
. ./cut.sh

configure "network_cmd_path = \"$bin/slirp4netns\""
make_box

# transfer FOLDER SERVER: from the servers and back
transfer() {
    echo "curl -sS --limit-rate 32M 'http://$2:8000/large' | tee '$1/got' | busybox nc $3 9000"
}

through_a_cut "gateway run" "$bin/neap" gateway run -- sh -c "$(transfer . "$server" "$server")"
through_a_cut "gateway run, IPv6" "$bin/neap" gateway run -- \
    sh -c "$(transfer . "[$server_v6]" "$server_v6")"
# shellcheck disable=SC2086
through_a_cut "slirp4netns" podman run --rm --network slirp4netns $programs -v "$PWD:/out" box:1 \
    /bin/sh -c "$(transfer /out "$server" "$server")"
echo "all of link"
