#!/bin/busybox sh
# The first program of a machine, out of the initramfs: load the drivers, find the root file system, hand over to the guest.
#
# Disks are known by the label in their file system, never by their place: the order in which a machine finds them is
# the engine's affair. The guest starts with /proc, /sys and /dev mounted and with links to both disks:
# /dev/warren-root, mounted read-only at /, and /dev/warren-drive, if the machine has a writable one, not mounted.

stop() {
    echo "warren: $*; the machine stops here" >/dev/console
    poweroff -f
}

find_disk() {
    found=$(findfs "LABEL=$1") && ln -s "$found" "/dev/$1"
}

mount -t devtmpfs devtmpfs /dev || stop "cannot mount /dev"
mount -t proc proc /proc || stop "cannot mount /proc"
mount -t sysfs sysfs /sys || stop "cannot mount /sys"

while read -r module; do
    insmod "/modules/$module.ko" || stop "cannot load the kernel module $module"
done </modules/order

find_disk warren-root || stop "no disk has a file system labelled warren-root"
find_disk warren-drive
mount -t ext4 -o ro,noatime /dev/warren-root /root || stop "cannot mount $found"

guest="/opt/warren-guest/bin/python -I -m warren_guest --init"
# For looking around without a guest: warren.init=/bin/bash on the kernel's command line.
read -r words </proc/cmdline
for word in $words; do
    case $word in warren.init=*) guest=${word#warren.init=} ;; esac
done
[ -x "/root${guest%% *}" ] || [ -L "/root${guest%% *}" ] || stop "the root file system has no ${guest%% *}"

for folder in dev proc sys; do
    mount --move "/$folder" "/root/$folder" || stop "cannot hand over /$folder"
done
# shellcheck disable=SC2086  # a command with its arguments
exec switch_root /root $guest
