# Podman 5 and its pasta network, when either is killed.
. ./expect.sh
. ./box.sh
. ./left.sh

export PODMAN_IGNORE_CGROUPSV1_WARNING=1
configure "helper_binaries_dir = [\"$bin\", \"/usr/libexec/podman\", \"/usr/lib/podman\"]"
make_box
kill_both pasta "neap pasta --in-background"
echo "all of kill-pasta"
