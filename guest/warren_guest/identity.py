"""The identity of a machine: what makes one restored from a snapshot different from its siblings.

This is on the path of every claim. It starts no process, waits for no disk, and reads nothing that it can know.
"""

import os
import random
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from warren_guest import syscalls
from warren_guest.errors import RefusedError, refusal_of
from warren_guest.fields import Fields, bad_field
from warren_guest.paths import make_own_folder

_HOSTNAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_MACHINE_ID = re.compile(r"[0-9a-f]{32}")
_PEM = re.compile(r"\s*-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----\s*")
_ENTROPY_LOW, _ENTROPY_HIGH = 32, 512

# A buffer of this size is there at once; a larger one would have to be asked of the kernel and given back.
_HOSTS_BYTES = 1 << 16

CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
CA_FOLDER = "/usr/local/share/ca-certificates"
CA_FILE = "warren.crt"


@dataclass(frozen=True, slots=True)
class NewIdentity:
    """A checked request. None means: left as it was."""

    generation: int
    unix_ns: int
    entropy: bytes
    id: str | None
    hostname: str | None
    machine_id: str | None
    env: dict[str, str] | None
    ca_pem: str | None


def parse_identity(fields: Fields) -> NewIdentity:
    """Check the whole request. Raises `bad_field` and has then changed nothing."""
    entropy = fields.decoded("entropy")
    if entropy is None or not _ENTROPY_LOW <= len(entropy) <= _ENTROPY_HIGH:
        raise bad_field("entropy", f"is required, {_ENTROPY_LOW} to {_ENTROPY_HIGH} bytes in base64")
    return NewIdentity(
        generation=fields.required_number("generation", 1, 2**53),
        unix_ns=fields.required_number("unix_ns", 1, 2**63 - 1),
        entropy=entropy,
        id=fields.text("id", limit=128),
        hostname=fields.matching("hostname", _HOSTNAME, "a host name of at most 63 characters"),
        machine_id=fields.matching("machine_id", _MACHINE_ID, "32 lower-case hex digits"),
        env=fields.environment("env"),
        ca_pem=fields.matching("ca_pem", _PEM, "one certificate in PEM"),
    )


class Machine(Protocol):
    """What an identity changes outside of the guest."""

    def adopt(self, new: NewIdentity) -> None:
        """Become `new`. Called once per generation, with a checked request."""
        ...

    def settle(self) -> None:
        """Files of another machine have taken the place of its own: be who it is with those, too."""
        ...


class HostMachine:
    """A guest on a developer's computer: its clock, names and entropy are not ours to change."""

    def adopt(self, new: NewIdentity) -> None:
        pass

    def settle(self) -> None:
        pass


class VirtualMachine:
    """A guest that is the first process of a machine."""

    def __init__(self, random_fd: int) -> None:
        self._random_fd = random_fd
        self._trusted: str | None = None
        # Where our certificate stands in the bundle, so that the next one takes its place.
        self._bundle = (0, 0)

    def adopt(self, new: NewIdentity) -> None:
        time.clock_settime_ns(time.CLOCK_REALTIME, new.unix_ns)
        syscalls.add_entropy(self._random_fd, new.entropy)
        random.seed()
        if new.hostname is not None:
            set_hostname(new.hostname)
        if new.machine_id is not None:
            write_text("/etc/machine-id", new.machine_id + "\n")
        if new.ca_pem is not None and new.ca_pem != self._trusted:
            self.trust(new.ca_pem)

    def settle(self) -> None:
        """Whom it trusts is its host's affair: the files may be from another one."""
        pem = self._trusted
        if pem is not None:
            bundle = Path(CA_BUNDLE)
            if not bundle.exists() or pem.strip().encode() not in bundle.read_bytes():
                self._bundle = (0, -1)  # we do not know where the other's is
                self.trust(pem)
            else:
                write_text(f"{CA_FOLDER}/{CA_FILE}", pem.strip() + "\n")

    def trust(self, pem: str) -> None:
        """Put one certificate into the machine's bundle, in the place of the one that we put there before."""
        text = pem.strip() + "\n"
        for folder in (CA_FOLDER, os.path.dirname(CA_BUNDLE)):  # noqa: PTH120
            make_own_folder(folder)
        write_text(f"{CA_FOLDER}/{CA_FILE}", text)
        fd = os.open(CA_BUNDLE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            start, end = self._bundle
            size = os.fstat(fd).st_size
            # If somebody changed the bundle after us, the old certificate stays: we do not know where it is.
            at = start if size == end else size
            os.ftruncate(fd, at)
            os.pwrite(fd, f"\n{text}".encode(), at)
            self._bundle = (at, os.fstat(fd).st_size)
        finally:
            os.close(fd)
        self._trusted = pem


def set_hostname(name: str) -> None:
    """Name this machine, in the kernel and in the two files that say so.

    Other lines of /etc/hosts stay; one that is too long to be read at once is left as it is.
    """
    socket.sethostname(name)
    write_text("/etc/hostname", name + "\n")
    known = _read_bytes("/etc/hosts")
    if len(known) < _HOSTS_BYTES:
        lines = [line for line in known.splitlines() if not line.startswith(b"127.0.1.1")]
        write_bytes("/etc/hosts", b"\n".join([*lines, f"127.0.1.1 {name}\n".encode()]))


def _read_bytes(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.read(fd, _HOSTS_BYTES)
    finally:
        os.close(fd)


def write_text(path: str, text: str) -> None:
    write_bytes(path, text.encode())


def write_bytes(path: str, content: bytes) -> None:
    """Replace what a file says, in place and without waiting for the disk. A link is replaced, not followed.

    Not emptied first: giving blocks back and asking for them again costs more than everything else here.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        fd = os.open(path, flags, 0o644)
    except OSError:
        os.unlink(path)  # noqa: PTH108
        fd = os.open(path, flags, 0o644)
    try:
        os.write(fd, content)
        if os.fstat(fd).st_size != len(content):
            os.ftruncate(fd, len(content))
    finally:
        os.close(fd)


class Identity:
    """Who this machine is now. Generation 0: nobody yet."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.generation = 0
        self.id: str | None = None
        self.env: dict[str, str] = {}

    def adopt(self, new: NewIdentity) -> None:
        """Become `new`. Raises `already_identified` for a generation of the past, and has then changed nothing.

        If the machine cannot (its disk is full), the generation stays what it was and the request may be made again.
        """
        if new.generation <= self.generation:
            message = f"generation {new.generation} is not greater than {self.generation}"
            raise RefusedError("already_identified", message, field="generation")
        try:
            self.machine.adopt(new)
        except OSError as exc:
            raise refusal_of(exc, str(exc.filename or "identity")) from exc
        self.generation = new.generation
        self.id = self.id if new.id is None else new.id
        self.env = self.env if new.env is None else new.env
