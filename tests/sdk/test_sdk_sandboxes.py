"""Both clients on the real service: a sandbox's life, its commands, files, events and terminals."""

import asyncio
import hashlib
import io
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from contract.keys import USUAL_GRACE_S
from tests.sdk.conftest import LIMIT_S
from tests.sdk.sdk_service import BARE, Service
from warren import (
    AsyncWarren,
    BadKey,
    CallerError,
    CommandFailed,
    DeadlinePassed,
    Event,
    Exited,
    Forbidden,
    NotFound,
    PoolExhausted,
    Sandbox,
    Started,
    Stderr,
    Stdout,
    Warren,
    WrongState,
)

MIB = 1 << 20


def until(is_so: Callable[[], bool]) -> None:
    give_up = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def test_a_sandbox_is_what_was_asked_for_and_is_gone_after_its_block(warren: Warren) -> None:
    with warren.create(metadata={"job": "7"}, env={**BARE, "WORD": "hello"}, timeout_sec=600) as sandbox:
        assert sandbox.state == "running"
        assert sandbox.info.metadata == {"job": "7"}
        assert sandbox.info.rules["timeout_sec"] == 600
        assert sandbox.run("echo $WORD").stdout == "hello\n"
        assert warren.get(sandbox.id).info.id == sandbox.id
    assert sandbox.state == "stopped"
    assert warren.get(sandbox.id).state == "stopped"
    with pytest.raises(WrongState):
        sandbox.run("true")


def test_lists_have_every_sandbox_once_and_filters_hold(warren: Warren) -> None:
    made = [warren.create(metadata={"list": "yes", "n": str(n)}, env=BARE) for n in range(3)]
    try:
        assert [found.id for found in warren.sandboxes(metadata={"list": "yes"})] == [one.id for one in reversed(made)]
        assert [found.id for found in warren.sandboxes(metadata={"list": "yes", "n": "1"})] == [made[1].id]
        made[0].kill()
        assert made[0].id not in [found.id for found in warren.sandboxes()]
        assert made[0].id in [found.id for found in warren.sandboxes(state=["stopped", "running"])]
    finally:
        for sandbox in made:
            sandbox.kill()


def test_a_sandbox_that_is_not_there_is_not_found(warren: Warren) -> None:
    with pytest.raises(NotFound) as missing:
        warren.get("sb-" + "a" * 16)
    assert missing.value.status == 404


def test_a_command_tells_its_output_and_its_end(sandbox: Sandbox) -> None:
    result = sandbox.run("echo out; echo err >&2; exit 3")
    assert (result.exit_code, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert sandbox.run(["printf", "%s", "a b"]).stdout == "a b"
    assert sandbox.run("cat", stdin="typed").stdout == "typed"
    assert sandbox.run("pwd", cwd="/").stdout == "/\n"
    assert sandbox.run("echo $A", env={"A": "b"}).stdout == "b\n"
    assert sandbox.run("kill -9 $$").signal == "SIGKILL"
    with pytest.raises(CommandFailed):
        sandbox.run("false", check=True)


def test_a_command_that_takes_too_long_is_told_as_such(sandbox: Sandbox) -> None:
    with pytest.raises(DeadlinePassed):
        sandbox.run("sleep 60", timeout_sec=1)


def test_a_command_that_cannot_be_started_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(CallerError) as refused:
        sandbox.run(["no-such-program"])
    assert refused.value.code == "program_not_found"


def test_output_comes_as_it_is_said(sandbox: Sandbox) -> None:
    """The second line is said only after the first was heard."""
    said = sandbox.stream("echo first; until [ -e /tmp/heard-$PPID-$$ ]; do sleep 0.02; done; echo second; echo $$ >&2")
    assert isinstance(next(said), Started)
    assert next(said) == Stdout(b"first\n")
    sandbox.run("for p in /proc/[0-9]*; do touch /tmp/heard-$(awk '{print $4}' $p/stat 2>/dev/null)-${p#/proc/}; done")
    rest = list(said)
    assert Stdout(b"second\n") in rest
    assert any(isinstance(event, Stderr) for event in rest)
    assert isinstance(rest[-1], Exited)
    sandbox.run("rm -f /tmp/heard-*")


def test_more_output_than_a_pipe_holds_arrives_whole(sandbox: Sandbox) -> None:
    result = sandbox.run("head -c 3000000 /dev/zero | tr '\\0' x")
    assert len(result.stdout) == 3_000_000
    assert not result.is_truncated


def test_a_signal_ends_a_command_and_what_it_started(sandbox: Sandbox) -> None:
    said = sandbox.stream("sleep 300 & sleep 300")
    started = next(said)
    assert isinstance(started, Started)
    assert sandbox.signal(started.pid, "KILL")
    assert list(said)[-1] == Exited(None, "SIGKILL", pytest.approx(0, abs=60_000))
    assert not sandbox.signal(started.pid, "KILL")


def test_files_arrive_byte_for_byte(sandbox: Sandbox, tmp_path: Path) -> None:
    here, there, back = tmp_path / "here", f"{tmp_path}/deep/er/there", tmp_path / "back"
    content = hashlib.sha256(b"seed").digest() * 100_000
    here.write_bytes(content)
    told: list[tuple[int, int | None]] = []
    up = sandbox.upload(here, there, mode=0o640, progress=lambda done, total: told.append((done, total)))
    assert up.sha256 == hashlib.sha256(content).hexdigest()
    assert told[-1] == (len(content), len(content))
    assert sandbox.download(there, back, sha256=up.sha256) == up
    assert back.read_bytes() == content
    assert sandbox.run(["stat", "-c", "%a", there]).stdout == "640\n"
    kept = io.BytesIO()
    sandbox.download(there, kept)
    assert kept.getvalue() == content


def test_small_files_are_written_and_read(sandbox: Sandbox, tmp_path: Path) -> None:
    assert sandbox.write(f"{tmp_path}/a b?&.txt", "größe").bytes == 7
    assert sandbox.read(f"{tmp_path}/a b?&.txt").decode() == "größe"
    with pytest.raises(CallerError) as refused:
        sandbox.read(str(tmp_path))
    assert refused.value.code == "is_a_directory"
    with pytest.raises(NotFound):
        sandbox.read(f"{tmp_path}/nothing")


def test_events_go_on_until_the_sandbox_has_ended(warren: Warren) -> None:
    with warren.create(env=BARE) as sandbox:
        seen: list[Event] = []
        following = threading.Thread(target=lambda: seen.extend(sandbox.events()))
        following.start()
        until(lambda: any(event.kind == "running" for event in seen))
        sandbox.run("true")
        until(lambda: any(event.kind == "process_ended" for event in seen))
        sandbox.kill()
        following.join(LIMIT_S)
        assert not following.is_alive()
    assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
    assert seen[-1].kind == "stopped"
    assert list(sandbox.events()) == seen
    assert list(sandbox.events(after=2, follow=False)) == seen[2:]


def test_a_timeout_can_be_moved(sandbox: Sandbox) -> None:
    before = sandbox.info.expires_ms
    assert before is not None
    assert (sandbox.extend(7200).expires_ms or 0) > before + 3_000_000


def test_a_terminal_shows_and_takes_and_ends(sandbox: Sandbox) -> None:
    with sandbox.terminal(cols=100, rows=30) as terminal:
        terminal.resize(120, 40)
        terminal.write(b"stty size; exit 5\n")
        shown = b"".join(terminal)
    assert b"40 120\r\n" in shown
    assert terminal.exited is not None
    assert terminal.exited.exit_code == 5


def test_a_terminal_that_was_left_is_found_again(sandbox: Sandbox) -> None:
    with sandbox.terminal() as terminal:
        terminal.write(b"echo mark-$((1000 + 1))\n")
        seen = b""
        for data in terminal:
            seen += data
            if b"mark-1001" in seen:
                break
        pid = terminal.pid
    with sandbox.terminal(pid=pid) as again:
        assert again.pid == pid
        again.write(b"exit\n")
        assert b"mark-1001" in b"".join(again)


def test_a_terminal_of_a_process_that_is_not_there_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(CallerError):
        sandbox.terminal(pid=999_999)


def test_many_threads_may_use_one_client(warren: Warren, sandbox: Sandbox) -> None:
    results: list[str] = []
    threads = [threading.Thread(target=lambda n=n: results.append(sandbox.run(f"echo {n}").stdout)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert sorted(results) == [f"{n}\n" for n in range(8)]


async def test_asyncio_does_all_of_it_at_once(service: Service, tmp_path: Path) -> None:
    async with AsyncWarren(service.url, service.key) as warren, await warren.create(env=BARE) as sandbox:
        results = await asyncio.gather(*(sandbox.run(f"echo {n}") for n in range(5)))
        assert [result.stdout for result in results] == [f"{n}\n" for n in range(5)]
        up = await sandbox.upload(io.BytesIO(b"y" * MIB), f"{tmp_path}/f")
        assert await sandbox.download(f"{tmp_path}/f", tmp_path / "g") == up
        assert await sandbox.read(f"{tmp_path}/f") == b"y" * MIB
        async with await sandbox.terminal() as terminal:
            await terminal.write(b"exit 4\n")
            assert b"exit 4" in b"".join([data async for data in terminal])
            assert terminal.exited is not None
            assert terminal.exited.exit_code == 4
        assert sandbox.id in [found.id async for found in warren.sandboxes()]
        assert "stopped" not in [event.kind async for event in sandbox.events(follow=False)]
        assert (await sandbox.extend(100)).id == sandbox.id
        await sandbox.kill()
        assert [event.kind async for event in sandbox.events()][-1] == "stopped"


async def test_a_task_that_is_cancelled_in_a_command_leaves_no_sandbox(service: Service) -> None:
    async with AsyncWarren(service.url, service.key) as warren:
        names: list[str] = []

        async def work() -> None:
            async with await warren.create(env=BARE) as sandbox:
                names.append(sandbox.id)
                async for _ in sandbox.stream("echo here; sleep 300"):
                    is_running.set()

        is_running = asyncio.Event()
        task = asyncio.create_task(work())
        await is_running.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await warren.get(names[0])).state == "stopped"


SERVER = """
import http.server, socketserver
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "5"); self.end_headers(); self.wfile.write(b"hello")
    def log_message(self, *_): pass
with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
    print(server.server_address[1], flush=True)
    server.serve_forever()
"""


def test_a_port_is_shown_to_whoever_has_the_link_and_then_to_everybody(sandbox: Sandbox) -> None:
    said = sandbox.stream(["python3", "-u", "-c", SERVER])
    started = next(said)
    assert isinstance(started, Started)
    port = int(next(said).data)  # type: ignore[union-attr]
    link = sandbox.preview_url(port, expires_sec=60)
    clean = link.partition("?")[0]
    with httpx.Client(follow_redirects=True) as browser:
        assert browser.get(clean).status_code in (401, 403, 404)
        assert browser.get(link).text == "hello"
        assert browser.get(clean).text == "hello"  # by the cookie
    assert httpx.get(clean).status_code in (401, 403, 404)
    assert sandbox.preview_url(port, public=True) == clean
    assert httpx.get(clean).text == "hello"
    assert sandbox.info.public_ports == (port,)
    sandbox.unpublish(port)
    until(lambda: httpx.get(clean).status_code in (401, 403, 404))
    sandbox.signal(started.pid, "KILL")
    list(said)


def test_an_admin_sees_hosts_usage_and_keys(warren: Warren, service: Service) -> None:
    assert [host["name"] for host in warren.hosts()] == ["host-0", "host-1"]
    made = warren.keys.create("bert", name="a laptop", pools={"vcpus": 1}, rate=7)
    try:
        assert (made.key.owner, made.key.name, made.key.rate) == ("bert", "a laptop", 7)
        assert made.key.id in [key.id for key in warren.keys.list()]
        with Warren(service.url, made.secret) as bert:
            assert list(bert.sandboxes()) == []
            with pytest.raises(Forbidden):
                bert.hosts()
        with warren.create(env=BARE):
            pass
        assert [row["owner"] for row in warren.usage()["owners"]] == ["anna"]
        newer = warren.keys.rotate(made.key.id)
        assert newer.secret != made.secret
        ends_ms = next(key.expires_ms for key in warren.keys.list() if key.id == made.key.id)
        assert ends_ms == newer.key.created_ms + USUAL_GRACE_S * 1000
    finally:
        warren.keys.revoke(made.key.id)
        warren.keys.revoke(newer.key.id)
    with Warren(service.url, newer.secret) as bert, pytest.raises(BadKey):
        list(bert.sandboxes())


def test_a_pool_that_is_full_says_what_is_used_and_allowed(warren: Warren, service: Service) -> None:
    made = warren.keys.create("carl", pools={"vcpus": 1, "memory_mb": 1024, "disk_mb": 4096})
    with Warren(service.url, made.secret) as carl, carl.create(env=BARE):
        with pytest.raises(PoolExhausted) as full:
            carl.create()
        assert full.value.details["used"]["vcpus"] == full.value.details["allowed"]["vcpus"] == 1
    warren.keys.revoke(made.key.id)


def test_the_same_idempotency_key_gives_the_same_sandbox(warren: Warren) -> None:
    with warren.create(env=BARE, idempotency_key="once-1") as one:
        assert warren.create(env=BARE, idempotency_key="once-1").id == one.id


@pytest.mark.parametrize("direct", [False, True])
def test_a_terminal_opens_by_both_ways(sandbox: Sandbox, direct: bool) -> None:
    with sandbox.terminal(cmd="echo $((6 * 7)); exit 3", direct=direct) as terminal:
        assert b"42\r\n" in b"".join(terminal)
        assert terminal.exited is not None
        assert terminal.exited.exit_code == 3
