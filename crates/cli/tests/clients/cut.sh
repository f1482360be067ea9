# A transfer whose link goes and comes.

sum=$(sha256sum </mnt/files/large)

# through_a_cut WHAT COMMAND...: the command gets the file of the servers, at a limited rate, keeps it in
# the file `got` and sends it to be hashed while the link goes and comes. It prints the hash.
through_a_cut() {
    what="$1"
    shift
    : >got
    "$@" >hash &
    transfer=$!
    eventually "$what: it begins" test -s got
    same "$what: the link comes again" "$(busybox nc 127.0.0.1 9002 </dev/null)" ""
    [ "$(wc -c <got)" -lt 60000000 ] || fail "$what: it is over before the link has gone"
    wait $transfer || fail "$what: status $?"
    same "$what: the download" "$(sha256sum <got)" "$sum"
    same "$what: the upload" "$(head -n 1 hash)" "$sum"
}
