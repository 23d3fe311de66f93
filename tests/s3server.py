"""A real S3 server on free ports of loopback, gone with all that it kept when the block ends."""

import contextlib
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from poold.devstore import PORTS, REGION, S3Server
from tests.ports import free_port

LIMIT_S = 60.0


@contextlib.contextmanager
def running_s3() -> Iterator[S3Server]:
    """The server, once its bucket is there."""
    folder = Path(tempfile.mkdtemp(prefix="warren-s3-"))
    server = S3Server(
        folder / "data", [free_port() for _ in PORTS], f"key{secrets.token_hex(8)}", secrets.token_hex(20)
    )
    server.folder.mkdir()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            server.argv(),
            env={"PATH": os.environ["PATH"], **server.environment()},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait_for(server, process, folder / "log")
        yield server
    finally:
        process.kill()  # what it has is thrown away: it need not put it in order first
        process.wait()
        server.clear()
        shutil.rmtree(folder)


def raw_client(server: S3Server) -> Any:
    """A client of AWS's own that does what it is told: for looking behind the store's back. Its calls block."""
    import botocore.session
    from botocore.config import Config

    return botocore.session.Session().create_client(
        "s3",
        region_name=REGION,
        endpoint_url=server.url,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, read_timeout=30),
    )


def _wait_for(server: S3Server, process: "subprocess.Popen[bytes]", log: Path) -> None:
    give_up = time.monotonic() + LIMIT_S
    while not server.is_ready():
        assert process.poll() is None, log.read_text(errors="replace")[-2000:]
        assert time.monotonic() < give_up, log.read_text(errors="replace")[-2000:]
        time.sleep(0.05)
