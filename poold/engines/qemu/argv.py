"""The command line of a QEMU process, from facts. No I/O.

QEMU opens nothing by a path of the host: all that it needs is handed to it as open files, which it finds under
/proc/self/fd. So its user needs access to nothing, and the folders may be anywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from contract.models import Shape

MARK = "-name"
GUEST_MAC = "02:57:41:52:00:02"  # the slot's network has a permanent neighbour entry for it

# `panic=-1` and `-no-reboot`: a guest kernel that panics ends the process, and so the machine, at once. One that finds
# itself broken panics: with a lock that nobody gives back it would answer, and do nothing.
KERNEL_ARGS = "console=ttyS0 quiet oops=panic panic=-1 reboot=t random.trust_cpu=on"

# Under TCG the default CPU lacks instructions that today's native agent binaries need, and `max` does not boot.
TCG_CPU = "Haswell-noTSX"
# Translated code is each machine's own memory; QEMU's default would let it grow to 1 GiB.
TCG_CODE_MB = 128


@dataclass(frozen=True)
class Accel:
    """How a guest's instructions are run."""

    name: str  # "kvm" or "tcg"
    tsc_khz: int  # of the host: a guest that is emulated cannot find it out by itself

    def args(self) -> list[str]:
        if self.name == "kvm":
            return ["-accel", "kvm", "-cpu", "host"]
        return ["-accel", f"tcg,thread=multi,tb-size={TCG_CODE_MB}", "-cpu", TCG_CPU]

    def kernel_args(self) -> str:
        if self.name == "kvm":
            return KERNEL_ARGS
        # No mitigations: they slow emulation down and guard against nothing there, since no instruction speculates.
        return f"{KERNEL_ARGS} mitigations=off no_timer_check tsc=reliable tsc_early_khz={self.tsc_khz}"


@dataclass(frozen=True)
class Files:
    """The open files of every machine."""

    qmp: int
    tap: int
    memory: int
    root: int
    drive: int

    def all(self) -> tuple[int, ...]:
        return (self.qmp, self.tap, self.memory, self.root, self.drive)


@dataclass(frozen=True)
class Boot:
    """The further open files of a machine that boots. Its console is of use; a clone's only has hostile writers."""

    kernel: int
    initramfs: int
    console: int


def confine(netns: Path, uid: int, gid: int, argv: Sequence[str]) -> list[str]:
    """`argv` inside the slot's network, as the slot's own user, with no way back."""
    return ["nsenter", f"--net={netns}", f"--setuid={uid}", f"--setgid={gid}", "--", *argv]


def cold(folder: Path, accel: Accel, shape: Shape, files: Files, boot: Boot) -> list[str]:
    """A machine that boots once it is told to, with its memory in a file that can be frozen."""
    return [
        *_process(folder, files, console=f"file,path={_fd(boot.console)}"),
        *hardware(accel, shape, files, share="on"),
        "-kernel", _fd(boot.kernel),
        "-initrd", _fd(boot.initramfs),
        "-append", accel.kernel_args(),
        "-S",
    ]  # fmt: skip


def restored(folder: Path, accel: Accel, shape: Shape, files: Files) -> list[str]:
    """A machine that waits for the state of its devices, with memory that it maps privately.

    That stream holds devices only, without QEMU's preamble; the kernel is in the memory already. Nobody is told that
    the machine has moved: its neighbour knows it by heart, and the telling would delay the guest's first answer.
    """
    return [
        *_process(folder, files, console="null"),
        *hardware(accel, shape, files, share="off"),
        "-S", "-incoming", "defer",
        "-global", "migration.send-configuration=off",
        "-global", "migration.announce-rounds=0",
    ]  # fmt: skip


def hardware(accel: Accel, shape: Shape, files: Files, *, share: str) -> list[str]:
    """The machine itself: the same for the one that is frozen and for all that are restored from it."""
    memory_mb = shape.memory_mb
    # A drive lives no longer than its machine, so the guest's flushes need not reach the platter.
    disk = "driver=raw,cache.no-flush=on,file.driver=file"
    return [
        *accel.args(),
        "-machine", "microvm,pit=on,pic=on,rtc=on,isa-serial=on,memory-backend=ram",
        "-object", f"memory-backend-file,id=ram,size={memory_mb}M,mem-path={_fd(files.memory)},share={share}",
        "-m", f"{memory_mb}M",
        "-smp", str(shape.vcpus),
        "-blockdev", f"{disk},node-name=root,read-only=on,file.filename={_fd(files.root)}",
        "-device", "virtio-blk-device,drive=root,serial=root",
        "-blockdev", f"{disk},node-name=drive,discard=unmap,file.filename={_fd(files.drive)}",
        "-device", "virtio-blk-device,drive=drive,serial=drive",
        "-netdev", f"tap,id=net,fd={files.tap},vhost=off",
        "-device", f"virtio-net-device,netdev=net,mac={GUEST_MAC},guest_announce=off",
        "-device", "virtio-rng-device",
    ]  # fmt: skip


def mark(folder: Path) -> str:
    """The argument after `MARK` by which a later daemon finds the process of the machine in `folder` again."""
    return str(folder).replace(",", ",,")


def _process(folder: Path, files: Files, *, console: str) -> list[str]:
    """The process around the machine."""
    return [
        "qemu-system-x86_64",
        MARK, mark(folder),
        "-nodefaults", "-no-user-config", "-nographic", "-no-reboot",
        "-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
        "-chardev", f"socket,id=qmp,fd={files.qmp},server=on,wait=off",
        "-mon", "chardev=qmp,mode=control",
        "-chardev", f"{console},id=console",
        "-serial", "chardev:console",
    ]  # fmt: skip


def _fd(number: int) -> str:
    return f"/proc/self/fd/{number}"
