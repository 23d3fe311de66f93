"""How fast the host's time-stamp counter runs.

TCG hands it through to the guest, whose kernel would find out its rate by counting against an emulated timer. On a
busy host that fails, and then the kernel hangs or is left without a usable clock. So we measure, and tell it.
"""

import ctypes
import mmap
import time

# rdtsc; shl rdx, 32; or rax, rdx; ret
READ_COUNTER = bytes.fromhex("0f31 48c1e220 4809d0 c3")
MEASURE_S = 0.1
ROUNDS = 5  # the one with the tightest reading wins: in the others we were interrupted


def measure_khz() -> int:
    """The counter's rate in kHz, to within some parts per million. Blocks for half a second."""
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as page:
        page.write(READ_COUNTER)
        address = ctypes.c_char.from_buffer(page)
        read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(address))
        try:
            _, khz = min(_round(read) for _ in range(ROUNDS))
        finally:
            del address, read  # the page can only be closed when nothing points into it
    return khz


def _round(read: "ctypes._CFunctionType") -> tuple[int, int]:
    """One measurement: how uncertain it is (in ns), and what it found."""
    start_doubt, start_ns, start_ticks = _both(read)
    time.sleep(MEASURE_S)
    end_doubt, end_ns, end_ticks = _both(read)
    return start_doubt + end_doubt, (end_ticks - start_ticks) * 1_000_000 // (end_ns - start_ns)


def _both(read: "ctypes._CFunctionType") -> tuple[int, int, int]:
    """The clock and the counter at the same moment, and how far apart the moments may have been."""
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    ticks = read()
    after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    return after - before, (before + after) // 2, ticks
