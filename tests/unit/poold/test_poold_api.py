"""poold's API over HTTP, from create to destroy."""

import asyncio
from pathlib import Path

import orjson
import pytest

from tests.unit.poold.poold_fake_guest import refusal
from tests.unit.poold.poold_host import SLOTS, Host, open_host

UNKNOWN = "/v1/sandboxes/sb-aaaaaaaaaaaaaaaa"


async def test_a_sandbox_lives_from_create_to_destroy(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        created = await host.ask("POST", "/v1/sandboxes", {"metadata": {"a": "b"}, "env": {"TOKEN": "secret"}})
        assert created.status == 201
        sandbox = created.json
        assert created.headers["location"] == f"/v1/sandboxes/{sandbox['id']}"
        assert (sandbox["state"], sandbox["image"], sandbox["metadata"]) == ("running", "host", {"a": "b"})
        assert sandbox["started_ms"] >= sandbox["created_ms"]
        assert b"secret" not in created.body
        identity = host.engine.guest_of(sandbox["id"]).identity
        assert (identity["generation"], identity["env"]) == (1, {"TOKEN": "secret"})

        assert (await host.ask("GET", f"/v1/sandboxes/{sandbox['id']}")).json == sandbox
        assert (await host.ask("GET", f"/v1/sandboxes/{sandbox['id']}/health")).json["generation"] == 1
        gone = await host.ask("DELETE", f"/v1/sandboxes/{sandbox['id']}")
        assert (gone.status, gone.json["state"], gone.json["reason"]) == (200, "stopped", "destroyed by request")
        assert gone.json["ended_ms"] > sandbox["started_ms"]
        await host.assert_nothing_is_used()


async def test_destroying_twice_is_fine(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        first = await host.ask("DELETE", f"/v1/sandboxes/{sandbox}")
        assert first.json == (await host.ask("DELETE", f"/v1/sandboxes/{sandbox}")).json
        await host.assert_nothing_is_used()


async def test_destroying_at_the_same_moment_is_fine(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        replies = await asyncio.gather(*(host.ask("DELETE", f"/v1/sandboxes/{sandbox}") for _ in range(5)))
        assert {reply.status for reply in replies} == {200}
        await host.assert_nothing_is_used()


async def test_no_two_sandboxes_share_an_identity(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        ids = await asyncio.gather(*(host.create() for _ in range(5)))
        told = [host.engine.guest_of(sandbox).identity for sandbox in ids]
        for name in ("id", "hostname", "machine_id", "entropy"):
            assert len({identity[name] for identity in told}) == 5


async def test_the_list_is_paged_newest_first(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        made = [await host.create() for _ in range(5)]
        await host.ask("DELETE", f"/v1/sandboxes/{made[2]}")
        seen: list[str] = []
        before = ""
        while True:
            page = (await host.ask("GET", f"/v1/sandboxes?limit=2{before}")).json
            seen += [sandbox["id"] for sandbox in page["sandboxes"]]
            if page["next"] is None:
                break
            before = f"&before={page['next']}"
        assert seen == [made[i] for i in (4, 3, 1, 0)]
        stopped = (await host.ask("GET", "/v1/sandboxes?state=stopped,error")).json
        assert [sandbox["id"] for sandbox in stopped["sandboxes"]] == [made[2]]


async def test_a_command_is_answered_as_one_json_object(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        reply = await host.exec(sandbox, "echo hello")
        assert (reply.status, reply.json["stdout"], reply.json["exit_code"]) == (200, "hello\n", 0)
        assert reply.json["stdout_truncated"] is False
        reply = await host.exec(sandbox, "fail 3")
        assert (reply.status, reply.json["stderr"], reply.json["exit_code"]) == (200, "it failed\n", 3)
        reply = await host.exec(sandbox, "cat", stdin="from the caller")
        assert reply.json["stdout"] == "from the caller"
        reply = await host.exec(sandbox, "flood 40")
        assert len(reply.json["stdout"]) == 1 << 20
        assert reply.json["stdout_truncated"] is True
        reply = await host.exec(sandbox, "late", timeout_sec=5)
        assert (reply.status, reply.code) == (408, "deadline_passed")
        assert host.engine.guest_of(sandbox).commands[-1]["timeout_ms"] == 5000


async def test_a_command_is_told_as_events(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        path = f"/v1/sandboxes/{await host.create()}/exec"
        stream = {"Accept": "text/event-stream"}
        reply = await host.ask("POST", path, {"cmd": "echo grüße"}, **stream)
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert reply.events == [
            ("start", {"pid": 7}),
            ("stdout", {"data": "grüße\n"}),
            ("exit", {"exit_code": 0, "signal": None, "duration_ms": 3}),
        ]
        reply = await host.ask("POST", f"{path}?encoding=base64", {"cmd": "echo hi"}, **stream)
        assert ("stdout", {"data": "aGkK"}) in reply.events
        reply = await host.ask("POST", path, {"cmd": "missing"}, **stream)
        assert (reply.status, reply.code) == (400, "program_not_found")
        reply = await host.ask("POST", f"{path}?encoding=rot13", {"cmd": "echo"}, **stream)
        assert (reply.status, reply.code, reply.json["error"]["field"]) == (400, "bad_field", "encoding")
        for command, code in (("cut", "guest_failed"), ("garbage", "guest_failed"), ("late", "deadline_passed")):
            events = (await host.ask("POST", path, {"cmd": command}, **stream)).events
            assert events[-1][0] == "error"
            assert events[-1][1]["code"] == code
            assert "exit" not in dict(events)


async def test_files_go_up_and_come_down_byte_for_byte(tmp_path: Path) -> None:
    content = bytes(range(256)) * 40_000  # about 10 MB
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        sent = await host.file("PUT", sandbox, "/workspace/ä b&c.bin", content)
        assert (sent.status, sent.json["bytes"]) == (200, len(content))
        assert host.engine.guest_of(sandbox).files["/workspace/ä b&c.bin"] == content
        got = await host.file("GET", sandbox, "/workspace/ä b&c.bin")
        assert (got.status, got.body == content, got.headers["content-length"]) == (200, True, str(len(content)))
        part = await host.file("GET", sandbox, "/workspace/ä b&c.bin", Range="bytes=2-4")
        assert (part.status, part.body) == (206, bytes([2, 3, 4]))
        assert part.headers["content-range"] == f"bytes 2-4/{len(content)}"
        empty = await host.file("PUT", sandbox, "/empty", b"")
        assert empty.json["bytes"] == 0
        missing = await host.file("GET", sandbox, "/missing")
        assert (missing.status, missing.code) == (404, "not_found")


async def test_a_download_that_the_guest_cuts_is_seen_to_be_cut(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        reader, writer = await asyncio.open_connection("127.0.0.1", host.port)
        writer.write(host.head("GET", f"/v1/sandboxes/{sandbox}/files?path=/cut"))
        raw = await reader.read()
        writer.close()
        assert b"abc" in raw
        assert not raw.endswith(b"0\r\n\r\n")


async def test_a_client_that_leaves_an_upload_costs_nobody_anything(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        _, writer = await asyncio.open_connection("127.0.0.1", host.port)
        writer.write(host.head("PUT", f"/v1/sandboxes/{sandbox}/files?path=/a", "Content-Length: 100") + b"abc")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()
        assert (await host.exec(sandbox, "echo on")).json["stdout"] == "on\n"
        assert "/a" not in host.engine.guest_of(sandbox).files
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_client_that_leaves_a_command_hangs_up_on_the_guest(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        guest = host.engine.guest_of(sandbox)
        reader, writer = await asyncio.open_connection("127.0.0.1", host.port)
        body = b'{"cmd": "hang"}'
        lines = "Accept: text/event-stream", f"Content-Length: {len(body)}"
        writer.write(host.head("POST", f"/v1/sandboxes/{sandbox}/exec", *lines) + body)
        await reader.readuntil(b"hanging")
        assert guest.streams == 1
        writer.close()
        assert (await host.exec(sandbox, "echo on")).json["stdout"] == "on\n"


BAD_REQUESTS: list[tuple[str, str, object, int, str]] = [
    ("GET", UNKNOWN, None, 404, "not_mine"),
    ("DELETE", UNKNOWN, None, 404, "not_mine"),
    ("GET", UNKNOWN + "/health", None, 404, "not_mine"),
    ("POST", UNKNOWN + "/exec", {"cmd": "true"}, 404, "not_mine"),
    ("GET", UNKNOWN + "/files?path=/a", None, 404, "not_mine"),
    ("PUT", UNKNOWN + "/files?path=/a", b"x", 404, "not_mine"),
    ("GET", "/v1/sandboxes/sb-UPPERCASEUPPERCA", None, 404, "not_found"),
    ("GET", "/v1/sandboxes/1", None, 404, "not_found"),
    ("GET", "/v1/sandboxes/..%2f..%2fetc", None, 404, "no_such_route"),
    ("GET", "/v1/sandboxes/%00", None, 404, "not_found"),
    ("GET", "/v2", None, 404, "no_such_route"),
    ("PATCH", UNKNOWN, None, 405, "method_not_allowed"),
    ("PUT", "/v1/sandboxes", None, 405, "method_not_allowed"),
    ("POST", UNKNOWN + "/files", None, 405, "method_not_allowed"),
    ("GET", UNKNOWN + "/exec", None, 405, "method_not_allowed"),
    ("POST", "/v1/sandboxes", b"{", 400, "bad_request"),
    ("POST", "/v1/sandboxes", b"\xff\xfe", 400, "bad_request"),
    ("POST", "/v1/sandboxes", b"[]", 400, "bad_request"),
    ("POST", "/v1/sandboxes", b"[" * 500_000, 400, "bad_request"),
    ("POST", "/v1/sandboxes", b'{"image":' + b"[" * 1000 + b"]" * 1000 + b"}", 400, "bad_field"),
    ("POST", "/v1/sandboxes", b"[" * 1000 + b"]" * 1000, 400, "bad_request"),
    ("POST", "/v1/sandboxes", {"image": "windows"}, 400, "bad_field"),
    ("POST", "/v1/sandboxes", {"image": "../../etc"}, 400, "bad_field"),
    ("POST", "/v1/sandboxes", {"memory_mb": -256}, 400, "bad_field"),
    ("POST", "/v1/sandboxes", {"disk_mb": -1}, 400, "bad_field"),
    ("POST", "/v1/sandboxes", {"vcpus": 0}, 400, "bad_field"),
    ("POST", "/v1/sandboxes", {"vcpus": True}, 400, "bad_field"),
    ("POST", "/v1/sandboxes", {"timeout_sec": -1}, 400, "bad_field"),
    ("POST", "/v1/sandboxes", {"memroy_mb": 256}, 400, "bad_field"),
    ("POST", UNKNOWN + "/exec", {}, 400, "bad_field"),
    ("POST", UNKNOWN + "/exec", {"cmd": []}, 400, "bad_field"),
    ("POST", UNKNOWN + "/exec", b"nope", 400, "bad_request"),
    ("GET", "/v1/sandboxes?limit=0", None, 400, "bad_field"),
    ("GET", "/v1/sandboxes?limit=-1", None, 400, "bad_field"),
    ("GET", "/v1/sandboxes?limit=" + "9" * 5000, None, 400, "bad_field"),
    ("GET", "/v1/sandboxes?limit=%C2%B2", None, 400, "bad_field"),
    ("GET", "/v1/sandboxes?state=happy", None, 400, "bad_field"),
    ("GET", "/v1/sandboxes?before=x", None, 400, "bad_field"),
    ("GET", UNKNOWN + "/files", None, 400, "bad_field"),
    ("GET", UNKNOWN + "/files?path=../etc/passwd", None, 400, "bad_field"),
    ("GET", UNKNOWN + "/files?path=/a%00b", None, 400, "bad_field"),
    ("GET", UNKNOWN + "/files?path=" + "a" * 5000, None, 400, "bad_field"),
    ("PUT", UNKNOWN + "/files?path=/a&mode=0999", b"", 400, "bad_field"),
    ("PUT", UNKNOWN + "/files?path=/a&mode=%C2%B2", b"", 400, "bad_field"),
    ("PUT", UNKNOWN + "/files?path=/a&user=a%0d%0ab", b"", 400, "bad_field"),
]


async def stopped(host: Host) -> str:
    """The path of a sandbox that there was: what is wrong with a request is told before its state is looked at."""
    path = f"/v1/sandboxes/{await host.create()}"
    assert (await host.ask("DELETE", path)).status == 200
    return path


async def test_every_bad_request_has_its_status_and_code(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        known = await stopped(host)
        for method, path, body, status, code in BAD_REQUESTS:
            reply = await host.ask(method, path if status == 404 else path.replace(UNKNOWN, known), body)
            assert (reply.status, reply.code) == (status, code), (method, path[:80], reply.body[:200])
            assert reply.json["error"]["message"]
            assert len(reply.body) < 2000
        await host.assert_nothing_is_used()


async def test_ten_megabytes_of_json_are_refused(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        reply = await host.ask("POST", "/v1/sandboxes", b'{"image": "' + b"a" * 10_000_000 + b'"}')
        assert (reply.status, reply.code) == (413, "body_too_large")


async def test_a_refusal_arrives_also_at_a_client_that_sends_everything_first(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        body = bytes(20_000_000)
        reply = await host.ask("PUT", UNKNOWN + "/files?path=/a", body)
        assert (reply.status, reply.code) == (404, "not_mine")
        assert (await host.ask("POST", "/v2", body)).status == 404
        assert (await host.ask("PATCH", "/v1/sandboxes", body)).status == 405
        host.engine.guest_of(sandbox).says["/files/content"] = refusal(507, "disk_full")
        assert (await host.file("PUT", sandbox, "/a", body)).code == "disk_full"


async def test_a_stopped_sandbox_refuses_what_needs_a_machine(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await host.ask("DELETE", f"/v1/sandboxes/{sandbox}")
        for reply in (
            await host.exec(sandbox, "echo"),
            await host.file("GET", sandbox, "/a"),
            await host.file("PUT", sandbox, "/a", b"x"),
            await host.ask("GET", f"/v1/sandboxes/{sandbox}/health"),
        ):
            assert (reply.status, reply.code, reply.json["error"]["state"]) == (409, "wrong_state", "stopped")


async def test_a_refusal_of_the_guest_reaches_the_caller(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        guest = host.engine.guest_of(sandbox)
        guest.says["/files/content"] = refusal(507, "disk_full")
        reply = await host.file("PUT", sandbox, "/a", b"x" * 100)
        assert (reply.status, reply.code) == (507, "disk_full")
        guest.says["/files/content"] = refusal(500, "internal")
        assert (await host.file("GET", sandbox, "/a")).code == "guest_failed"


async def test_a_guest_that_talks_garbage_costs_its_own_sandbox_only(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        bad, good = await host.create(), await host.create()
        host.engine.guest_of(bad).says.update({"/health": b"garbage\r\n\r\n", "/files/content": b"\0" * 100})
        replies = await asyncio.gather(
            host.ask("GET", f"/v1/sandboxes/{bad}/health"),
            host.file("GET", bad, "/a"),
            host.exec(bad, "garbage"),
            host.exec(bad, "cut"),
            *(host.exec(good, "echo fine") for _ in range(5)),
        )
        assert [(reply.status, reply.code) for reply in replies[:4]] == [(502, "guest_failed")] * 4
        assert [reply.json["stdout"] for reply in replies[4:]] == ["fine\n"] * 5
        assert await host.state(good) == "running"
        assert (await host.ask("DELETE", f"/v1/sandboxes/{bad}")).status == 200


async def test_a_machine_that_dies_ends_its_sandbox_with_the_reason(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox, other = await host.create(), await host.create()
        guest = host.engine.guest_of(sandbox)
        running = asyncio.create_task(host.exec(sandbox, "hang"))
        path = f"/v1/sandboxes/{sandbox}/exec"
        streaming = asyncio.create_task(host.ask("POST", path, {"cmd": "hang"}, Accept="text/event-stream"))
        await host.until(lambda: guest.streams == 2)
        host.engine.kill(host.engine.machine_of(sandbox), "killed by signal 9")

        reply = await running
        assert (reply.status, reply.code) == (502, "machine_died")
        assert "exit_code" not in reply.json
        assert (await streaming).events[-1][0] == "error"
        assert (await streaming).events[-1][1]["code"] == "machine_died"
        dead = host.engine.machine_of(sandbox)
        await host.until(lambda: dead not in host.engine.machines)
        view = (await host.ask("GET", f"/v1/sandboxes/{sandbox}")).json
        assert view["state"] == "error"
        assert "killed by signal 9" in view["reason"]
        assert (await host.exec(sandbox, "echo")).code == "machine_died"
        assert (await host.exec(other, "echo on")).status == 200
        assert (await host.ask("DELETE", f"/v1/sandboxes/{sandbox}")).json["state"] == "stopped"
        await host.ask("DELETE", f"/v1/sandboxes/{other}")
        await host.assert_nothing_is_used()


async def test_a_sandbox_whose_time_is_up_is_destroyed(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create(timeout_sec=1)
        running = asyncio.create_task(host.exec(sandbox, "hang"))
        await host.until(lambda: host.engine.calls["destroy"] == 2)  # of the one that was frozen, and of this one
        view = (await host.ask("GET", f"/v1/sandboxes/{sandbox}")).json
        assert (view["state"], view["reason"]) == ("stopped", "its time was up")
        reply = await running
        assert (reply.status, reply.code) == (409, "sandbox_stopped")
        await host.assert_nothing_is_used()


async def test_a_full_host_says_when_to_come_back(tmp_path: Path) -> None:
    async with open_host(tmp_path, slots=2) as host:
        kept = [await host.create(), await host.create()]
        reply = await host.ask("POST", "/v1/sandboxes")
        assert (reply.status, reply.code) == (503, "no_capacity")
        assert int(reply.headers["retry-after"]) > 0
        assert reply.json["error"]["retry_after_s"] == int(reply.headers["retry-after"])
        await host.ask("DELETE", f"/v1/sandboxes/{kept[0]}")
        await host.create()


async def test_a_machine_too_large_for_what_is_left_is_refused(tmp_path: Path) -> None:
    async with open_host(tmp_path, memory_mb=1000) as host:
        await host.create(memory_mb=512)
        assert (await host.ask("POST", "/v1/sandboxes", {"memory_mb": 512})).code == "no_capacity"
        assert host.slots.free == SLOTS - 1  # what was refused took nothing


async def test_twenty_creations_on_eight_slots_fail_with_no_capacity_only(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        replies = await asyncio.gather(*(host.ask("POST", "/v1/sandboxes") for _ in range(20)))
        made = [reply.json["id"] for reply in replies if reply.status == 201]
        assert len(made) >= SLOTS - 1  # one place may just be taken by a machine that becomes warm
        assert {(reply.status, reply.code) for reply in replies if reply.status != 201} == {(503, "no_capacity")}
        await asyncio.gather(*(host.ask("DELETE", f"/v1/sandboxes/{sandbox}") for sandbox in made))
        await host.assert_nothing_is_used()


async def test_health_says_what_the_pool_has(tmp_path: Path) -> None:
    async with open_host(tmp_path, warm=2) as host:
        await host.ready()
        reply = await host.ask("GET", "/healthz")
        assert reply.json["ok"] is True
        assert "2" in orjson.dumps(reply.json).decode()


async def test_a_daemon_that_stops_leaves_its_sandboxes_running_and_no_warm_machine(tmp_path: Path) -> None:
    async with open_host(tmp_path, warm=2) as host:
        sandbox = await host.create()
        await host.ready()
        engine = host.engine
    (machine,) = engine.machines
    assert engine.machine_of(sandbox) == machine
    async with open_host(tmp_path) as host:
        assert await host.state(sandbox) == "running"  # what is to become of it is for the recovery to say
