"""The command line of a QEMU process, from facts. No I/O.

A restored machine must have the very hardware of the one that was frozen, so one function writes both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from poold.images import Image

GUEST_MAC = "02:57:41:52:00:02"  # the slot's network has a permanent neighbour entry for it

# `panic=-1` and `-no-reboot`: a guest kernel that panics ends the process, and so the machine, at once.
KERNEL_ARGS = "console=ttyS0 quiet panic=-1 reboot=t tsc=reliable no_timer_check random.trust_cpu=on mitigations=off"

# Under TCG the default CPU lacks instructions that today's native agent binaries need, and `max` does not boot.
TCG_CPU = "Haswell-noTSX"
# Translated code is each machine's own memory; QEMU's default would let it grow to 1 GiB.
TCG_CODE_MB = 128


@dataclass(frozen=True)
class Accel:
    """How a guest's instructions are run."""

    name: str  # "kvm" or "tcg"

    def args(self) -> list[str]:
        if self.name == "kvm":
            return ["-accel", "kvm", "-cpu", "host"]
        return ["-accel", f"tcg,thread=multi,tb-size={TCG_CODE_MB}", "-cpu", TCG_CPU]


@dataclass(frozen=True)
class Memory:
    """Where a machine's RAM comes from: a file that it writes to, or one that it maps privately."""

    path: Path
    shared: bool


def confine(netns: Path, uid: int, gid: int, argv: Sequence[str]) -> list[str]:
    """`argv` inside the slot's network, as the slot's own user, with no way back."""
    return [
        "nsenter",
        f"--net={netns}",
        f"--setuid={uid}",
        f"--setgid={gid}",
        "--",
        *argv,
    ]


def hardware(
    accel: Accel, image: Image, *, vcpus: int, memory_mb: int, memory: Memory, drive: Path, tap_fd: int
) -> list[str]:
    """The machine itself: the same for the one that is frozen and for all that are restored from it."""
    share = "on" if memory.shared else "off"
    # A drive lives no longer than its machine, so the guest's flushes need not reach the platter.
    disk = "driver=raw,cache.no-flush=on,file.driver=file"
    return [
        *accel.args(),
        "-machine", "microvm,pit=on,pic=on,rtc=on,isa-serial=on,memory-backend=ram",
        "-object", f"memory-backend-file,id=ram,size={memory_mb}M,mem-path={memory.path},share={share}",
        "-m", f"{memory_mb}M",
        "-smp", str(vcpus),
        "-kernel", str(image.kernel),
        "-initrd", str(image.initramfs),
        "-append", KERNEL_ARGS,
        "-blockdev", f"{disk},node-name=root,read-only=on,file.filename={image.rootfs}",
        "-device", "virtio-blk-device,drive=root,serial=root",
        "-blockdev", f"{disk},node-name=drive,discard=unmap,file.filename={drive}",
        "-device", "virtio-blk-device,drive=drive,serial=drive",
        "-netdev", f"tap,id=net,fd={tap_fd},vhost=off",
        "-device", f"virtio-net-device,netdev=net,mac={GUEST_MAC}",
        "-device", "virtio-rng-device",
    ]  # fmt: skip


def command(
    machine_id: str, hardware_args: Sequence[str], *, qmp_fd: int, console: str, extra: Sequence[str] = ()
) -> list[str]:
    """A whole QEMU command line. `-name` is the mark by which a later daemon finds the process again."""
    return [
        "qemu-system-x86_64",
        "-name", machine_id,
        "-nodefaults", "-no-user-config", "-nographic", "-no-reboot",
        "-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
        "-chardev", f"socket,id=qmp,fd={qmp_fd},server=on,wait=off",
        "-mon", "chardev=qmp,mode=control",
        "-chardev", f"{console},id=console",
        "-serial", "chardev:console",
        *hardware_args,
        *extra,
    ]  # fmt: skip
