"""`pooldctl` without a poold that answers as it should: what it tells about it, and how it exits."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from poold.ctl import client
from poold.ctl.errors import Unreachable
from tests.unit.ctl.conftest import Ctl
from tests.unit.ctl.ctl_poold import Poold, Refusal


class TestUnreachable:
    def test_no_socket(self, ctl: Ctl, folder: Path) -> None:
        ran = ctl("status")
        assert ran.code == 3
        assert str(folder / "poold.sock") in ran.err
        assert "is poold running?" in ran.err

    def test_sockets_that_are_elsewhere_are_named(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(client, "RUN", folder)
        there = [folder / name / "poold.sock" for name in ("warren-one", "warren-two")]
        for path in there:
            path.parent.mkdir()
            path.touch()
        with pytest.raises(Unreachable) as caught:
            client.Client(folder / "warren" / "poold.sock", 1).get("/healthz")
        assert f"{there[0]}, {there[1]}; name one with --socket PATH or POOLD_SOCKET" in caught.value.hint

    def test_nobody_listens(self, ctl: Ctl, folder: Path) -> None:
        with socket.socket(socket.AF_UNIX) as left_behind:
            left_behind.bind(str(folder / "poold.sock"))
        ran = ctl("sandboxes", "ls")
        assert ran.code == 3
        assert "nobody listens" in ran.err

    def test_no_permission(self, folder: Path, poold: Poold, environment: dict[str, str]) -> None:
        """As somebody else, who may read the sources but not use the socket."""
        os.chmod(folder, 0o755)
        os.chmod(folder / "poold.sock", 0)
        program = (
            "import os, sys\nfrom poold.ctl import client, context, parser, program, status\n"
            "from poold.ctl.__main__ import main\n"
            "if os.geteuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            "sys.argv = ['pooldctl', 'status']; main()"
        )
        ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=False)
        assert ran.returncode == 3
        assert b"are you root?" in ran.stderr

    def test_no_answer(self, ctl: Ctl, folder: Path) -> None:
        with socket.socket(socket.AF_UNIX) as silent:
            silent.bind(str(folder / "poold.sock"))
            silent.listen()
            ran = ctl("status", "--timeout", "0.2")
        assert ran.code == 3
        assert "did not answer within 0.2 s" in ran.err

    def test_an_answer_that_is_not_one(self, ctl: Ctl, poold: Poold) -> None:
        poold.answers["GET", "/admin/status"] = "hello"
        ran = ctl("status")
        assert ran.code == 1
        assert "not JSON" in ran.err

    def test_an_older_poold(self, ctl: Ctl, poold: Poold) -> None:
        poold.answers["GET", "/admin/status"] = Refusal(404, "no_such_route", "Not Found")
        ran = ctl("status")
        assert ran.code == 1
        assert "older" in ran.err

    def test_where_the_socket_is_looked_for(self, ctl: Ctl, poold: Poold, folder: Path) -> None:
        path = str(folder / "poold.sock")
        assert ctl("status", POOLD_RUN_DIR="/nowhere", POOLD_SOCKET=path).code == 0
        assert ctl("--socket", path, "status", POOLD_RUN_DIR="/nowhere", POOLD_SOCKET="/nowhere").code == 0
        assert ctl("status", "--socket", path, POOLD_RUN_DIR="/nowhere").code == 0
        assert "/run/warren/poold.sock" in ctl("--help").out
