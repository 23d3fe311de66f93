"""What processes that outlive poold know of it."""

from pathlib import Path

import pytest

from poold import processes
from tests.vm.client import until


async def test_a_machine_does_not_inherit_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest that breaks into its QEMU finds nothing of the store's or of the operator's there."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    monkeypatch.setenv("POOLD_STORE", "s3://bucket")
    pid = await processes.start(["sleep", "600"], log=tmp_path / "log")
    try:
        until(lambda: b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes())
        names = {line.split(b"=")[0] for line in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if line}
        assert names <= {b"PATH", b"LANG"}
    finally:
        await processes.end(pid)
