# RootlessKit 2 with its pasta network: by neap, and by the real pasta on the same command lines.
. ./expect.sh

# kit FOLDER SCRIPT: runs the script in RootlessKit, with pasta of this folder.
kit() {
    PATH="$1:$PATH" rootlesskit --net=pasta --mtu=65520 --port-driver=implicit --copy-up=/etc \
        --copy-up=/run sh -c "$2"
}

# What a namespace sees, and what reaches it; its interface may have no carrier yet.
report() {
    kit "$1" 'ip -o -4 addr; ip -4 route; grep nameserver /etc/resolv.conf; ip -o link' |
        grep -v -e " lo" -e loopback |
        sed -e 's/ valid_lft.*//' -e 's/ qdisc .*//' -e 's/link.ether.*//' -e 's/ linkdown//' \
            -e 's/NO-CARRIER,//' -e 's/,LOWER_UP//' | sort
    echo "by name: $(kit "$1" "wget -q -O - http://$name:8000/small")"
    rm -f done
    kit "$1" "busybox httpd -p 18080 -h www; busybox nc -ll -p 19000 -e sha256sum &
        while [ ! -e done ]; do sleep 0.1; done; kill \$!" &
    eventually "a port that is followed" wget -q -O - "http://$host:18080/page"
    echo "page: $(wget -q -O - "http://$host:18080/page")"
    same "64 MiB out" "$(wget -q -O - "http://$host:18080/large" | sha256sum)" "$sum"
    hashes "$host" 19000
    same "64 MiB in" "$(busybox nc "$host" 19000 </mnt/files/large | head -n 1)" "$sum"
    touch done
    wait
    rm -f done
    kit "$1" "perl /mnt/files/datagrams.pl serve 0.0.0.0 15353 &
        while [ ! -e done ]; do sleep 0.1; done; kill \$!" &
    echo "datagrams from $(perl /mnt/files/datagrams.pl ask "$host" 15353)"
    [ "$1" != "$bin" ] || runs "neap pasta-inside" || fail "RootlessKit does not use neap"
    touch done
    wait
}

mkdir www
echo "a page" >www/page
ln -s /mnt/files/large www/large
sum=$(sha256sum </mnt/files/large)
same "a download by name" \
    "$(kit "$bin" "wget -q -O - http://$name:8000/large | sha256sum")" "$sum"
same "an upload" "$(kit "$bin" "busybox nc $server 9000 </mnt/files/large | head -n 1")" "$sum"
same "datagrams outwards" \
    "$(kit "$bin" "perl /mnt/files/datagrams.pl ask $server 7000")" "$server"
report "$bin" >report-neap
report /usr/bin >report-real
diff report-real report-neap >log || fail "neap and pasta differ"
cat report-neap
echo "all of rootlesskit-pasta"
