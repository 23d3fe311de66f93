"""Every use of a sandbox is written down before it begins and after it has ended, or it does not happen."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from poold.errors import LedgerFull
from poold.ledger.audit import Entry
from tests.unit.poold.poold_fake_guest import LOG, refusal
from tests.unit.poold.poold_host import Host, open_host

pytestmark = pytest.mark.usefixtures("nothing_warm")

STREAM = {"Accept": "text/event-stream"}


async def uses(host: Host, sandbox: str, count: int = 2) -> list[Entry]:
    """The rows about the use of a sandbox, once there are `count`. The last may come just after the reply."""
    while True:
        rows = [row for row in await host.audit(sandbox=sandbox) if not row.action.startswith("sandbox.")]
        if len(rows) >= count:
            return rows


async def the_use(host: Host, sandbox: str) -> tuple[Entry, Entry]:
    begun, ended = await uses(host, sandbox)
    assert ended.action == f"{begun.action}.end"
    assert (begun.owner, begun.request, begun.sandbox) == (ended.owner, ended.request, ended.sandbox)
    assert (begun.exit_code, begun.bytes, begun.duration_ms) == (None, None, None)
    assert ended.duration_ms is not None
    assert ended.duration_ms >= 0
    assert ended.at_ms > begun.at_ms
    return begun, ended


@pytest.mark.parametrize("headers", [{}, STREAM], ids=["whole", "streamed"])
async def test_a_command_is_written_down_with_its_end(tmp_path: Path, headers: dict[str, str]) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create(owner="ann")
        command = {"cmd": "fail 3", "env": {"KEY": "secret"}}
        asked = {"X_Request_Id": "my-exec", **headers}
        await host.ask("POST", f"/v1/sandboxes/{sandbox}/exec", command, owner="ann", **asked)
        begun, ended = await the_use(host, sandbox)
        assert (begun.action, begun.owner, begun.request) == ("exec", "ann", "my-exec")
        assert begun.detail == {"cmd": "/bin/bash -lc 'fail 3'"}  # and never its environment
        assert (ended.exit_code, ended.bytes, ended.detail) == (3, len(b"it failed\n"), {})


async def test_a_long_command_is_written_down_in_part(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await host.exec(sandbox, "echo " + "x" * 10_000)
        begun, ended = await the_use(host, sandbox)
        assert len(begun.detail["cmd"]) == 501
        assert begun.detail["cmd"].endswith("…")
        assert ended.bytes == 10_001


BROKEN = {"missing": "program_not_found", "cut": "guest_failed", "garbage": "guest_failed", "late": "deadline_passed"}


@pytest.mark.parametrize("headers", [{}, STREAM], ids=["whole", "streamed"])
@pytest.mark.parametrize(("command", "code"), BROKEN.items())
async def test_a_command_that_does_not_end_well_says_why(
    tmp_path: Path, command: str, code: str, headers: dict[str, str]
) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await host.ask("POST", f"/v1/sandboxes/{sandbox}/exec", {"cmd": command}, **headers)
        _, ended = await the_use(host, sandbox)
        assert (ended.exit_code, ended.detail) == (None, {"error": code})


async def test_a_command_whose_client_leaves_has_its_end_too(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        body = b'{"cmd": "hang"}'
        reader, writer = await asyncio.open_connection("127.0.0.1", host.port)
        lines = "Accept: text/event-stream", f"Content-Length: {len(body)}"
        writer.write(host.head("POST", f"/v1/sandboxes/{sandbox}/exec", *lines) + body)
        await reader.readuntil(b"hanging")
        writer.close()
        _, ended = await the_use(host, sandbox)
        assert (ended.exit_code, ended.bytes) == (None, len(b"hanging"))


async def test_files_are_written_down_with_their_size(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await host.file("PUT", sandbox, "/a", b"x" * 1000)
        await uses(host, sandbox, 2)
        await host.file("GET", sandbox, "/a")
        rows = await uses(host, sandbox, 4)
        assert [row.action for row in rows] == ["file.write", "file.write.end", "file.read", "file.read.end"]
        assert [row.detail for row in rows[::2]] == [{"path": "/a"}] * 2
        assert [row.bytes for row in rows[1::2]] == [1000, 1000]
        await host.file("GET", sandbox, "/missing")
        *_, ended = await uses(host, sandbox, 6)
        assert ended.detail == {"error": "not_found"}
        host.engine.guest_of(sandbox).says["/files/content"] = refusal(507, "disk_full")
        await host.file("PUT", sandbox, "/b", b"x")
        *_, ended = await uses(host, sandbox, 8)
        assert (ended.action, ended.detail) == ("file.write.end", {"error": "disk_full"})


async def test_a_terminal_is_written_down_with_its_end(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create(owner="ann")
        async with host.dial(f"/v1/sandboxes/{sandbox}/terminal", owner="ann") as socket:
            await socket.recv()
            (begun,) = await uses(host, sandbox, 1)
            assert (begun.action, begun.owner) == ("terminal", "ann")  # before a byte was typed
            await socket.send(b"exit\n")
            while "exit" not in str(await socket.recv()):
                pass
        _, ended = await the_use(host, sandbox)
        assert (ended.exit_code, ended.bytes) == (0, len(b"$ "))


async def test_a_terminal_whose_machine_dies_says_so(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        async with host.dial(f"/v1/sandboxes/{sandbox}/terminal") as socket:
            await socket.recv()
            await socket.recv()
            host.engine.kill(host.engine.machine_of(sandbox), "killed by signal 9")
            _, ended = await the_use(host, sandbox)
        assert (ended.exit_code, ended.detail) == (None, {"error": "machine_died"})


async def test_a_look_at_the_log_is_written_down(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        reply = await host.ask("GET", f"/v1/sandboxes/{sandbox}/logs?lines=7")
        assert (reply.body, reply.headers["content-type"]) == (LOG, "text/plain; charset=utf-8")
        assert "/logs?lines=7" in host.engine.guest_of(sandbox).asked
        begun, _ = await the_use(host, sandbox)
        assert begun.action == "logs"


async def test_what_never_began_is_not_written_down(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await host.ask("DELETE", f"/v1/sandboxes/{sandbox}")
        await host.exec(sandbox, "echo")
        await host.ask("POST", f"/v1/sandboxes/{sandbox}/exec", {"cmd": []})
        assert [row.action for row in await host.audit()][-1] == "sandbox.stop"


async def test_a_full_ledger_refuses_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        guest = host.engine.guest_of(sandbox)
        asked = [path for path in guest.asked if not path.startswith("/events")]

        async def full(*_: Any, **__: Any) -> None:
            raise LedgerFull(host.ledger_path)

        monkeypatch.setattr(host.services.ledger, "write", full)
        for reply in (
            await host.exec(sandbox, "echo"),
            await host.ask("POST", f"/v1/sandboxes/{sandbox}/exec", {"cmd": "echo"}, **STREAM),
            await host.file("PUT", sandbox, "/a", b"x"),
            await host.file("GET", sandbox, "/a"),
            await host.ask("GET", f"/v1/sandboxes/{sandbox}/logs"),
            await host.ask("POST", f"/v1/sandboxes/{sandbox}/timeout", {"timeout_sec": 5}),
            await host.ask("DELETE", f"/v1/sandboxes/{sandbox}"),
            await host.ask("POST", f"/v1/sandboxes/{sandbox}/pause"),
        ):
            assert (reply.status, reply.code) == (503, "ledger_full")
            assert int(reply.headers["retry-after"]) > 0
        assert [path for path in guest.asked if not path.startswith("/events")] == asked
        assert (guest.commands, guest.files) == ([], {})
        async with host.dial(f"/v1/sandboxes/{sandbox}/terminal") as socket:
            assert "ledger_full" in str(await socket.recv())
        monkeypatch.undo()
        assert (await host.exec(sandbox, "echo on")).json["stdout"] == "on\n"  # no restart is needed
        assert await host.state(sandbox) == "running"
        assert host.engine.saved == set()


async def test_a_full_ledger_takes_no_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_host(tmp_path) as host:

        def full(*_: Any, **__: Any) -> "asyncio.Future[None]":
            refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            refused.set_exception(LedgerFull(host.ledger_path))
            refused.exception()
            return refused

        with monkeypatch.context() as patch:
            patch.setattr(host.services.ledger, "submit", full)
            for _ in range(3):
                reply = await host.ask("POST", "/v1/sandboxes", {})
                assert (reply.status, reply.code) == (503, "ledger_full")
        await host.assert_nothing_is_used()
