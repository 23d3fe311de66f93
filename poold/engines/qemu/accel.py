"""KVM or TCG, found by trying: on some hosts `/dev/kvm` opens and makes machines, and still no guest runs on it."""

import asyncio
import contextlib
import os
from pathlib import Path

from poold.engines.qemu.argv import Accel
from poold.engines.qemu.tsc import measure_khz
from poold.images import Image

TRY_LIMIT_S = 5.0  # a kernel prints its first line within a tenth of a second on KVM that works
FIRST_WORDS = b"Linux version"
UNTRIED = Accel("tcg", tsc_khz=0)  # for an engine that starts nothing: there may be no kernel to try it with


async def find_accel(image: Image) -> Accel:
    """KVM if a kernel says its first words on it, else TCG."""
    works = os.access("/dev/kvm", os.R_OK | os.W_OK) and await _runs_on_kvm(image.kernel)
    return Accel("kvm" if works else "tcg", tsc_khz=await asyncio.to_thread(measure_khz))


async def _runs_on_kvm(kernel: Path) -> bool:
    argv = [
        "qemu-system-x86_64",
        "-nodefaults", "-no-user-config", "-nographic", "-no-reboot",
        "-machine", "microvm,pit=on,pic=on,rtc=on,isa-serial=on",
        "-accel", "kvm", "-cpu", "host", "-m", "128M",
        "-kernel", str(kernel), "-append", "console=ttyS0 earlyprintk=ttyS0 panic=-1",
        "-serial", "stdio",
    ]  # fmt: skip
    qemu = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(TRY_LIMIT_S):
            return await _says(qemu, FIRST_WORDS)
    except TimeoutError:
        return False
    finally:
        with contextlib.suppress(ProcessLookupError):
            qemu.kill()
        await qemu.wait()


async def _says(qemu: asyncio.subprocess.Process, words: bytes) -> bool:
    said = b""
    if qemu.stdout is not None:
        while chunk := await qemu.stdout.read(4096):
            said += chunk
            if words in said:
                return True
    return False
