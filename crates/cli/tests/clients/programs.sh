# curl, git, iperf3, ping and traceroute in sandboxes of `neap gateway run`.
. ./expect.sh

run() {
    "$bin/neap" gateway run -- "$@"
}

# As `run iperf3`, again while the server is at the test before or opens its port anew.
run_iperf3() {
    until run iperf3 "$@" >iperf3.out 2>&1; do
        grep -q -e "is busy" -e "refused" -e "reset by peer" -e "unable to connect" \
            -e "closed unexpectedly" iperf3.out || fail "$(cat iperf3.out)"
    done
    cat iperf3.out
}

sum=$(b2sum </mnt/files/huge)
same "1 GiB down" "$(run sh -c "curl -sS http://$server:8080/huge | b2sum")" "$sum"
same "1 GiB up" "$(run curl -sS -T /mnt/files/huge "http://$server:8080/upload")" "$sum"
codes=$(run curl -sS --parallel --parallel-immediate --parallel-max 200 -o /dev/null \
    -w '%{http_code}\n' "http://$name:8080/small?[1-200]" | sort | uniq -c | tr -s ' ')
same "200 small requests at once" "$codes" " 200 200"

sum=$(b2sum </mnt/files/large)
version=$(run curl -sS --http2-prior-knowledge -o /dev/null -w '%{http_version}' \
    "http://$server:8081/small")
same "HTTP/2" "$version" "2"
same "64 MiB over HTTP/2" \
    "$(run sh -c "curl -sS --http2-prior-knowledge http://$server:8081/large | b2sum")" "$sum"
same "64 MiB over IPv6" \
    "$(run sh -c "curl -sS 'http://[$server_v6]:8080/large' | b2sum")" "$sum"

for url in "git://$name/repository.git" "http://$name:8080/repository.git"; do
    rm -rf copy
    run git clone -q "$url" copy
    same "clone of $url" "$(git -C copy rev-parse HEAD)" "$(cat /mnt/files/head)"
    git -C copy fsck --no-progress || fail "fsck of $url"
done

run_iperf3 -c "$server" -R -P 32 -t 2 >streams
# A line for each stream, and one for the sum.
same "32 streams" "$(grep -c 'Bytes .*receiver' streams)" "33"
! grep -q ' 0.00 Bytes .*receiver' streams || fail "a stream got nothing: $(cat streams)"
for way in "" -R; do
    # shellcheck disable=SC2086
    run_iperf3 -c "$server" -u -b 200M -l 1400 -t 1 $way >datagrams
    ! grep -q ' 0.00 Bytes .*receiver' datagrams || fail "no datagrams: $(cat datagrams)"
    # So few that the sockets of both ends hold all of them, however slow the machine is.
    # shellcheck disable=SC2086
    run_iperf3 -c "$server" -u -b 1M -l 1400 -t 1 $way >datagrams
    grep -q ' (0%) .*receiver' datagrams || fail "datagrams are lost: $(cat datagrams)"
    echo "ok: datagrams $way"
done

# One of each: after its last request ping waits for twice the longest time and no longer.
case $(run ping -n -c 1 -W 30 "$server") in
*" 0% packet loss"*) echo "ok: ping" ;;
*) fail "ping" ;;
esac
hops=$(run traceroute -T -p 8080 -n -q 1 -N 1 -w 30 "$server" | tail -n +2 | tr -s ' ' | cut -d ' ' -f 3)
same "traceroute by TCP" "$hops" "10.0.2.2
$server"
echo "all of programs"
