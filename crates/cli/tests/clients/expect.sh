# What client scripts have in common.

# The servers on the outside, which the test has started.
server=192.0.2.1
server_v6=2001:db8::1
# A name that the resolver of the host knows, with the address of the servers.
name=server.test

fail() {
    echo "FAILED: $*" >&2
    [ ! -e log ] || tail -n 20 log >&2
    exit 1
}

# same WHAT FOUND EXPECTED
same() {
    [ "$2" = "$3" ] || fail "$1: found '$2', expected '$3'"
    echo "ok: $1"
}

# eventually WHAT COMMAND...: until it succeeds
eventually() {
    what="$1"
    shift
    tries=0
    until "$@" >log 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 100 ] || fail "$what: $*"
        sleep 0.1
    done
    echo "ok: $what"
}
