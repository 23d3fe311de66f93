"""How much one machine may take, from its shape. No I/O."""

from dataclasses import dataclass

from contract.models import Shape

# The emulator's own threads (devices, control socket, disk) work beside the guest's processors.
EMULATOR_CPUS = 0.5
# A page of the snapshot that was never written is made when the first of all clones touches it, and is counted as that
# clone's beside its own copy. So the first to use all of its RAM has it twice.
RAM_COUNTED = 2
# Besides that: translated code (up to 128 MB), the emulator itself, and what the kernel keeps for it. The pool reckons
# with 160 MB; a machine that behaves must never be killed, so where that happens is well beyond.
OVERHEAD_MB = 224
# QEMU's pool for disk requests may have 64 threads; the rest is its main, RCU and control threads, and room to spare.
EMULATOR_THREADS = 96
# A disk that one machine reads as fast as it can is a disk that its neighbours wait for.
IO_BYTES_PER_S = 256 << 20


@dataclass(frozen=True)
class Limits:
    """What a machine may have at most."""

    vcpus: float  # processors' worth of time
    memory_mb: int
    pids: int  # processes and threads of the host
    io_bytes_per_s: int | None  # of reading, and as much of writing; None: no limit


@dataclass(frozen=True)
class Usage:
    """What a machine has taken so far (`cpu_s`, `oom_kills`) and has now (the others)."""

    cpu_s: float
    memory_bytes: int  # its own: without the kernel's cache of its files, and what it shares with other machines
    pids: int
    oom_kills: int


def limits_of(shape: Shape) -> Limits:
    """What a machine of `shape` needs to be all that was asked for, and no more."""
    return Limits(
        vcpus=shape.vcpus + EMULATOR_CPUS,
        memory_mb=RAM_COUNTED * shape.memory_mb + OVERHEAD_MB,
        pids=shape.vcpus + EMULATOR_THREADS,
        io_bytes_per_s=IO_BYTES_PER_S,
    )
