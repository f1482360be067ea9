# Podman 4 and its slirp4netns network, when either is killed.
. ./expect.sh
. ./box.sh
. ./left.sh

configure "network_cmd_path = \"$bin/slirp4netns\""
make_box
kill_both slirp4netns:port_handler=slirp4netns "$bin/slirp4netns "
kill_both slirp4netns "$bin/slirp4netns "
echo "all of kill"
