#!/bin/sh
# Runs a client script as a user who has nothing but a range of subordinate identities, with a copy
# of /etc, a home and a /run/user of its own. Everything is in a mount namespace and in a process
# namespace, so that nothing is left of files and processes when this script ends.
#
#   unshare -mpf --kill-child --mount-proc sh user.sh NEAP SCRIPT
#
# NEAP is the program under test; SCRIPT finds it in $bin as neap and by the names of its faces.
set -eu
neap=$(readlink -f "$1")
script=$(readlink -f "$2")
uid=64999

mount --make-rprivate /
mount --make-rshared /
mount -t tmpfs -o mode=755 tmpfs /mnt
cp -a /etc /mnt/etc
echo "boat:x:$uid:$uid::/mnt/user:/bin/sh" >>/mnt/etc/passwd
echo "boat:x:$uid:" >>/mnt/etc/group
echo "boat:1000000:65536" >/mnt/etc/subuid
echo "boat:1000000:65536" >/mnt/etc/subgid
[ -e /mnt/etc/hosts ] || echo "127.0.0.1 localhost" >/mnt/etc/hosts
rm -f /mnt/etc/resolv.conf
echo "nameserver 203.0.113.1" >/mnt/etc/resolv.conf
mount --bind /mnt/etc /etc
mkdir -p /run/user
mount -t tmpfs -o mode=755 tmpfs /run/user
mkdir "/run/user/$uid" /mnt/user /mnt/bin
# The node may be root's only.
mkdir -p /dev/net
mount -t tmpfs -o mode=755 tmpfs /dev/net
mknod -m 666 /dev/net/tun c 10 200
cp "$neap" /mnt/bin/neap
mkdir /mnt/files
[ -z "${FILES:-}" ] || mount --bind "$FILES" /mnt/files
ln -s neap /mnt/bin/slirp4netns
ln -s neap /mnt/bin/pasta
cp "$(dirname "$script")"/*.sh /mnt/user
chown -R "$uid:$uid" /mnt/user "/run/user/$uid"
chmod 700 "/run/user/$uid"
cd /mnt/user
setpriv --reuid "$uid" --regid "$uid" --clear-groups --inh-caps=-all \
    env -i HOME=/mnt/user USER=boat XDG_RUNTIME_DIR="/run/user/$uid" bin=/mnt/bin \
    PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin sh -eu "/mnt/user/$(basename "$script")"
