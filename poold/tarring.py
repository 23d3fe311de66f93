"""Folders and archives of others as what a workspace begins with: one tar stream, all of it below `workspace/`.

Modes are what git keeps of them; owner and times are nobody's. The same files give the same bytes. All of this blocks.
"""

import contextlib
import tarfile
from pathlib import Path
from typing import IO

TOP = "workspace"
USER = 1000  # whose files they are in a machine


def put_folder(folder: Path, into: IO[bytes]) -> None:
    """Write the stream of `folder`. Raises `OSError`."""
    with tarfile.open(fileobj=into, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            header = tar.gettarinfo(path, f"{TOP}/{path.relative_to(folder)}")
            if header is None:  # a socket
                continue
            header.type = tarfile.REGTYPE if header.islnk() else header.type  # each name has its own content
            header.size = path.stat().st_size if header.isreg() else 0
            with path.open("rb") if header.isreg() else contextlib.nullcontext() as file:
                tar.addfile(_plain(header), file)


def put_archive(archive: IO[bytes], into: IO[bytes]) -> None:
    """Write the stream of what is in a tar archive, plain or compressed. Raises `tarfile.TarError` or `OSError`."""
    with (
        tarfile.open(fileobj=archive, mode="r|*") as given,
        tarfile.open(fileobj=into, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for header in given:
            name = header.name.removeprefix("./").strip("/")
            if name in ("", "."):
                continue
            header.name = f"{TOP}/{name}"
            if header.islnk():
                header.linkname = f"{TOP}/{header.linkname.removeprefix('./')}"
            tar.addfile(_plain(header), given.extractfile(header) if header.isreg() else None)


def _plain(header: tarfile.TarInfo) -> tarfile.TarInfo:
    header.uid = header.gid = USER
    header.uname = header.gname = ""
    header.mtime = 0
    header.mode = 0o755 if header.isdir() or header.mode & 0o100 else 0o644
    header.pax_headers = {}
    return header
