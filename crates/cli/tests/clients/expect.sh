# What client scripts have in common.

# The servers on the outside, which the test has started.
server=203.0.113.1
server_v6=2001:db8:3::1
# The host's own addresses.
host=192.0.2.1
host_v6=2001:db8::1
# A name that the resolver of the host knows, with the address of the servers.
name=server.test

fail() {
    echo "FAILED: $*" >&2
    [ ! -e log ] || tail -n 20 log >&2
    # Whether the servers listen: port 9000 is 2328 here.
    echo "listening: $(grep ' 0A ' /proc/net/tcp | tr -s ' ' | cut -d ' ' -f 3 | tr '\n' ' ')" >&2
    exit 1
}

# same WHAT FOUND EXPECTED
same() {
    [ "$2" = "$3" ] || fail "$1: found '$2', expected '$3'"
    echo "ok: $1"
}

# eventually WHAT COMMAND...: until it succeeds, for a minute
eventually() {
    what="$1"
    shift
    tries=0
    until "$@" >log 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || fail "$what: $*"
        sleep 0.1
    done
    echo "ok: $what"
}

# Whether a process with these first arguments runs.
runs() {
    cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' ' | grep -qF "$1"
}

# hashes HOST PORT: waits until a container says there which hash what it gets has
hashes() {
    eventually "port $2" sh -c "busybox nc $1 $2 </dev/null | grep -q -e -"
}
