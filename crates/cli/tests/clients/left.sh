# Containers and networks that are killed, and what they leave behind.

# Processes that are not of these scripts, and the sockets and namespaces that have a name.
machine() {
    for process in /proc/[0-9]*; do
        words=$(tr '\0' ' ' <"$process/cmdline" 2>/dev/null) || continue
        case "$words" in
        "" | "sh "* | "tr "* | "sort "* | "find "* | "setpriv "* | "/bin/sh "*) ;;
        *) echo "process $words" ;;
        esac
    done
    # Podman keeps the file of a port handler's socket as long as the container.
    find "$XDG_RUNTIME_DIR" \( -type s -o -path '*/netns/*' \) ! -path '*/libpod/*' 2>/dev/null
}

# Whether there is nothing but what was there at first, which is in the file `first`.
nothing_is_left() {
    machine | sort >now
    diff first now
}

# pid_of WORDS: the first process with these arguments
pid_of() {
    for process in /proc/[0-9]*; do
        if tr '\0' ' ' <"$process/cmdline" 2>/dev/null | grep -q "^$1"; then
            echo "${process#/proc/}"
            return
        fi
    done
    fail "no process $1"
}

# kill_both NETWORK WORDS: a container whose network is a process with these arguments
kill_both() {
    machine | sort >first
    podman run -d --name web --network "$1" -p 18080:80 box:1 /bin/httpd -f -p 80 -h /www >/dev/null
    eventually "published" wget -q -O - "http://$host:18080/page"
    kill -9 "$(pid_of "/bin/httpd -f -p 80")"
    podman wait web >/dev/null
    eventually "nothing is left of a killed container's network" nothing_is_left
    podman start web >/dev/null
    eventually "published after a new start" wget -q -O - "http://$host:18080/page"
    for process in "$2" "neap gateway resolvers"; do
        killed=$(pid_of "$2")
        kill -9 "$(pid_of "$process")"
        [ "$process" != "$2" ] || eventually "no process of a killed network" sh -c \
            "! grep -l -a -z -e '^neap\$' -e '/bin/slirp4netns\$' /proc/[0-9]*/cmdline"
        same "exec: $process is killed" "$(podman exec web /bin/echo "it goes on")" "it goes on"
        podman stop -t 0 web >/dev/null
        eventually "the ports of $killed are closed" sh -c \
            "! wget -q -O - -T 2 -t 1 'http://$host:18080/page'"
        podman start web >/dev/null
        eventually "published once more" wget -q -O - "http://$host:18080/page"
    done
    podman rm -f -t 0 web >/dev/null
    eventually "nothing is left in the end" nothing_is_left
}
