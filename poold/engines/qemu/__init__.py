"""QEMU's `microvm` machine, on KVM where it works and on TCG everywhere else: a kernel of its own on any Linux host.

A snapshot is a machine that was booted once with its RAM in a file, stopped, and whose device state was written
beside it. A restored machine maps that memory copy-on-write, so restoring takes the same time for any amount of RAM.
"""

from poold.engines.qemu.engine import QemuEngine

__all__ = ["QemuEngine"]
