"""`pooldctl template`: what workspaces begin with. They are in the store, for all hosts that share it."""

import io
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import IO, Any, cast

from poold.ctl import errors
from poold.ctl.context import Context
from poold.ctl.errors import CtlError, UsageError
from poold.tarring import put_archive, put_folder
from warren_console.text import size

TITLES = ("NAME", ">SIZE", ">FILES", "FROM")
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def add(context: Context) -> int:
    path = Path(context.asked.path)
    with tempfile.TemporaryFile() as stream:
        _pack(path, cast(IO[bytes], stream))
        stream.seek(0)
        told = context.poold.send("PUT", f"/admin/templates/{context.asked.template}", cast(IO[bytes], stream))
    if context.out.as_json:
        context.out.json(told)
    else:
        context.out.line(f"{told['name']}: {told['files']} files, {size(told['size_bytes'])}")
    return errors.DONE


def ls(context: Context) -> int:
    rows = context.poold.get("/v1/templates")["templates"]
    if context.out.as_json:
        context.out.json({"templates": rows})
    else:
        context.out.table(TITLES, [_cells(row) for row in rows])
    return errors.DONE


def rm(context: Context) -> int:
    answer = context.poold.call("DELETE", f"/admin/templates/{context.asked.template}")
    if context.out.as_json:
        context.out.json(answer)
    else:
        context.out.line(f"{context.asked.template} removed")
    return errors.DONE


def _cells(row: dict[str, Any]) -> tuple[object, ...]:
    return row["name"], size(row["size_bytes"]), row["files"], "Warren" if row["is_shipped"] else "the operator"


def _pack(path: Path, into: IO[bytes]) -> None:
    try:
        if path.is_dir():
            put_folder(path, into)
        else:
            with path.open("rb") as file:
                put_archive(_plain(file), into)
    except tarfile.TarError as error:
        raise UsageError(f"{path} is neither a folder nor a tar archive: {error}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None


def _plain(file: IO[bytes]) -> IO[bytes]:
    """What Python's own library cannot unpack is unpacked by the program that can."""
    head = file.read(len(ZSTD_MAGIC))
    file.seek(0)
    if head != ZSTD_MAGIC:
        return file
    try:
        done = subprocess.run(["zstd", "-q", "-d", "-c"], stdin=file, capture_output=True, check=False)
    except FileNotFoundError:
        raise CtlError("zstd is not installed", hint="install the package zstd") from None
    if done.returncode:
        raise UsageError(f"zstd cannot unpack it: {done.stderr.decode(errors='replace').strip()}")
    return io.BytesIO(done.stdout)
