#!/bin/sh
# Runs a client script as user.sh does, on the system in a folder: it becomes the root of the file
# system, and what is written to it is in memory. A chroot would not do, as no user namespace can be
# made in one.
#
#   unshare -mpf --kill-child --mount-proc sh system.sh FOLDER NEAP SCRIPT
set -eu
folder=$(readlink -f "$1")
neap=$(readlink -f "$2")
script=$(readlink -f "$3")

mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay -o "lowerdir=$folder,upperdir=/mnt/upper,workdir=/mnt/work" overlay /mnt/root
cd /mnt/root
mkdir client client/files old
cp "$neap" client/neap
cp "$(dirname "$script")"/*.sh client
mount --bind "$FILES" client/files
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
pivot_root . old
cd /
umount -l /old
export FILES=/client/files
exec sh /client/user.sh /client/neap "/client/$(basename "$script")"
