# An image for Podman that is made from busybox, and Podman's settings.

# configure LINE: a line for the section of the engine
configure() {
    mkdir -p .config/containers
    cat >.config/containers/containers.conf <<END
[engine]
$1
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "file"
END
    cat >.config/containers/storage.conf <<END
[storage]
driver = "vfs"
END
}

# What gives a container the programs of the host, and the files of the servers.
programs="-v /usr:/usr:ro"
files="-v /mnt/files:/files:ro"

make_box() {
    mkdir -p root/bin root/proc root/sys root/dev root/etc root/tmp root/www root/usr root/files
    # Where programs of the host are, if a container has its /usr.
    ln -s usr/lib root/lib
    ln -s usr/lib64 root/lib64
    cp "$(command -v busybox)" root/bin/busybox
    for applet in sh ip wget nc sha256sum head cat ping sleep nslookup httpd echo tee tr true; do
        ln -s busybox "root/bin/$applet"
    done
    echo "a page" >root/www/page
    ln -s /files/large root/www/large
    tar -C root -cf root.tar .
    podman import -q root.tar box:1 >/dev/null
}
