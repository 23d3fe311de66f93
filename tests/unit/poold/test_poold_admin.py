"""What the operator asks over the unix socket: each answer, and each refusal."""

import asyncio
import contextlib
import os
import stat
from pathlib import Path
from typing import Any

import orjson
import pytest

from poold.errors import LedgerFull
from poold.images import Images
from poold.ledger import Ledger, sandboxes
from poold.ledger.driver import sqlite3
from poold.pressure import Pressure
from tests.unit.poold.poold_fake_engine import FakeEngine
from tests.unit.poold.poold_host import MACHINE_MB, SLOTS, Host, open_host
from tests.unit.poold.poold_refusals import OPERATORS

pytestmark = pytest.mark.usefixtures("nothing_warm")


def run(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        for sql in statements:
            db.execute(sql)


def build_images(folder: Path, *names: str) -> Images:
    """A folder as the builder leaves it."""
    for name in names:
        build = folder / f"{name}-build"
        build.mkdir(parents=True)
        defaults = {"vcpus": 1, "memory_mb": 256, "disk_mb": 1024}
        files = dict.fromkeys(("rootfs", "kernel", "initramfs"), "file")
        manifest = {"name": name, "key": f"key-of-{name}", **files, "defaults": defaults}
        (build / "manifest.json").write_bytes(orjson.dumps(manifest))
        (folder / name).symlink_to(build.name)
    return Images(folder)


# The socket.


async def test_only_the_operator_reaches_the_socket_and_it_goes_with_the_daemon(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        found = os.stat(host.socket)
        assert stat.S_ISSOCK(found.st_mode)
        assert stat.S_IMODE(found.st_mode) == 0o600
        sandbox = (await host.admin("POST", "/v1/sandboxes", {})).json["id"]  # everything else is there, too
        assert (await host.admin("GET", f"/v1/sandboxes/{sandbox}")).json["state"] == "running"
        assert (await host.admin("GET", "/healthz")).json["ok"] is True
    assert not host.socket.exists()


async def test_a_socket_that_a_killed_daemon_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "poold.sock").write_text("of the past")
    async with open_host(tmp_path) as host:
        assert (await host.admin("GET", "/admin/status")).status == 200


# What there is.


async def test_the_status_says_what_there_is(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        first, second = await host.create(), await host.create()
        await host.ask("POST", f"/v1/sandboxes/{first}/pause")
        found = (await host.admin("GET", "/admin/status")).json
        assert (found["version"], found["engine"], found["accel"], found["serving"]) == ("0", "fake", "none", True)
        assert found["slots"] == {"all": SLOTS, "free": SLOTS - 1}
        budget = SLOTS * MACHINE_MB
        assert found["memory"] == {"budget_mb": budget, "left_mb": budget - MACHINE_MB}
        assert {state: n for state, n in found["sandboxes"].items() if n} == {"running": 1, "paused": 1}
        assert (found["draining"], found["pressure"]) == (False, None)
        assert found["ledger"]["path"] == str(host.ledger_path)
        assert found["ledger"]["bytes"] == host.ledger_path.stat().st_size
        assert found["recovery"].keys() == {"at_ms", "adopted", "undone", "lost", "removed"}
        assert found["started_ms"] <= found["recovery"]["at_ms"] <= host.clock()
        assert second


async def test_top_says_which_machines_run_for_whom(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        assert (await host.admin("GET", "/admin/top")).json["machines"] == []
        made = (await host.ask("POST", "/v1/sandboxes", {"idle_sec": 60}, owner="ann")).json
        paused = await host.create()
        await host.ask("POST", f"/v1/sandboxes/{paused}/pause")
        (machine,) = (await host.admin("GET", "/admin/top")).json["machines"]
        assert (machine["sandbox"], machine["owner"]) == (made["id"], "ann")
        assert machine["machine"] == host.engine.machine_of(made["id"])
        assert machine["next"]["why"] == "idle"
        assert machine["cpu_s"] is machine["memory_used_mb"] is machine["pids"] is None  # nobody counts here


# The pool and the images.


async def test_the_pool_is_resized_and_refilled(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        reply = await host.admin("PUT", "/admin/pool", {"image": "host", "floor": 2, "ceiling": 3})
        (share,) = reply.json["pool"]
        assert (share["image"], share["floor"], share["ceiling"]) == ("host", 2, 3)
        await host.ready()
        assert len(host.engine.machines) == 2
        for body in ({}, {"image": "host"}):
            before = set(host.engine.machines)
            assert (await host.admin("POST", "/admin/pool/refill", body)).status == 200
            assert not before & set(host.engine.machines)
            await host.ready()
        await host.admin("PUT", "/admin/pool", {"image": "host", "floor": 0, "ceiling": 0})
        await host.until(lambda: not host.engine.machines)
        told = [row.action for row in await host.audit(owner="operator")]
        assert told == ["pool.set", "pool.refill", "pool.refill", "pool.set"]


async def test_an_image_that_nobody_uses_can_be_removed(tmp_path: Path) -> None:
    images = build_images(tmp_path / "images", "host", "spare")
    async with open_host(tmp_path, images=images) as host:
        sandbox = await host.create()
        listed = (await host.admin("GET", "/admin/images")).json["images"]
        assert listed == [
            {"name": "host", "key": "key-of-host", "in_use": True},
            {"name": "spare", "key": "key-of-spare", "in_use": False},
        ]
        await host.ask("POST", f"/v1/sandboxes/{sandbox}/pause")  # it needs its image as much as before
        reply = await host.admin("DELETE", "/admin/images/host")
        assert (reply.status, reply.code, reply.json["error"]["image"]) == (409, "in_use", "host")
        assert sandbox in reply.json["error"]["message"]
        gone = await host.admin("DELETE", "/admin/images/spare")
        assert (gone.status, gone.json) == (200, {"name": "spare", "key": "key-of-spare"})
        assert images.names() == ["host"]
        assert not (tmp_path / "images" / "spare-build").exists()
        assert (await host.admin("DELETE", "/admin/images/spare")).json["error"]["field"] == "image"
        await host.ask("DELETE", f"/v1/sandboxes/{sandbox}")
        await host.admin("PUT", "/admin/pool", {"image": "host", "floor": 0, "ceiling": 1})
        reply = await host.admin("DELETE", "/admin/images/host")
        assert (reply.code, "the pool" in reply.json["error"]["message"]) == ("in_use", True)
        await host.admin("PUT", "/admin/pool", {"image": "host", "floor": 0, "ceiling": 0})
        assert (await host.admin("DELETE", "/admin/images/host")).status == 200


# The audit.


async def test_the_audit_is_filtered_and_paged(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        made = [await host.create(owner=name) for name in ("ann", "bob")]
        await host.ask("POST", f"/v1/sandboxes/{made[0]}/exec", {"cmd": "echo"}, owner="ann")

        async def rows(query: str = "") -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = (await host.admin("GET", f"/admin/audit?{query}")).json["rows"]
            return found

        while not await rows("action=exec.end"):  # it is written after the reply
            await asyncio.sleep(0.01)
        everything = await rows()
        assert [row["seq"] for row in everything] == list(range(1, len(everything) + 1))
        assert {row["sandbox"] for row in await rows(f"sandbox={made[1]}")} == {made[1]}
        assert {row["owner"] for row in await rows("owner=ann")} == {"ann"}
        assert [row["sandbox"] for row in await rows("action=sandbox.create")] == made
        assert await rows(f"action=sandbox.create&owner=ann&sandbox={made[1]}") == []

        paged, after = [], 0
        while after is not None:
            page = (await host.admin("GET", f"/admin/audit?limit=2&after={after}")).json
            assert len(page["rows"]) <= 2
            paged += page["rows"]
            after = page["next"]
        assert paged == everything


async def test_an_audit_that_was_changed_is_found_out(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        await host.create()
        found = (await host.admin("GET", "/admin/audit/verify")).json
        assert found == {"ok": True, "rows": 3, "first": 1, "last": 3, "broken_at": None, "why": None}
        check = (await host.admin("GET", "/admin/ledger/check")).json
        assert (check["ok"], check["problems"]) == (True, [])
        assert check["version"] >= 2
        assert check["bytes"] > 0
        run(host.ledger_path, "DROP TRIGGER audit_is_final", "UPDATE audit SET owner = 'eve' WHERE seq = 2")
        found = (await host.admin("GET", "/admin/audit/verify")).json
        assert (found["ok"], found["broken_at"]) == (False, 2)
        assert "row 2" in found["why"]
        check = (await host.admin("GET", "/admin/ledger/check")).json
        assert check["ok"] is False
        assert "audit_is_final" in check["problems"][0]


async def test_a_backup_is_a_ledger(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        target = tmp_path / "copy" / "ledger.db"
        target.parent.mkdir()
        reply = await host.admin("POST", "/admin/ledger/backup", {"path": str(target)})
        assert reply.json == {"path": str(target), "bytes": target.stat().st_size}
        again = await host.admin("POST", "/admin/ledger/backup", {"path": str(target)})
        assert (again.status, again.code) == (500, "ledger_failed")
        assert "overwrites nothing" in again.json["error"]["message"]
    async with Ledger.open(target) as ledger:
        assert (await ledger.read(lambda db: sandboxes.get(db, sandbox))).id == sandbox


# Emptying the host.


async def drained(host: Host, body: object) -> list[tuple[str, Any]]:
    reply = await host.admin("POST", "/admin/drain", body)
    assert reply.status == 200
    return reply.events


async def test_a_drain_pauses_everything_and_lets_nothing_in(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        made = [await host.create(auto_resume=True) for _ in range(3)]
        *progress, (kind, ended) = await drained(host, {"mode": "pause"})
        assert [name for name, _ in progress] == ["progress"] * 3
        assert [(told["done"], told["left"]) for _, told in progress] == [(1, 2), (2, 1), (3, 0)]
        assert {told["sandbox"] for _, told in progress} == set(made)
        assert (kind, sorted(ended["paused"]), ended["destroyed"], ended["failed"]) == ("drained", sorted(made), [], {})
        assert [await host.state(sandbox) for sandbox in made] == ["paused"] * 3

        for reply in (
            await host.ask("POST", "/v1/sandboxes", {}),
            await host.ask("POST", f"/v1/sandboxes/{made[0]}/resume"),
            await host.exec(made[0], "echo"),
        ):
            assert (reply.status, reply.code) == (503, "draining")
            assert int(reply.headers["retry-after"]) > 0
        ready = await host.ask("GET", "/readyz")
        assert (ready.status, ready.code) == (503, "not_ready")
        assert (await host.ask("GET", "/healthz")).status == 200
        assert (await host.admin("GET", "/admin/status")).json["draining"] is True

        assert (await host.admin("POST", "/admin/undrain")).json == {"draining": False}
        assert (await host.ask("GET", "/readyz")).json == {"ready": True, "store": None, "cluster": None}
        assert (await host.exec(made[0], "echo on")).status == 200
        told = [(row.action, row.detail) for row in await host.audit(owner="operator")]
        assert told == [("host.drain", {"mode": "pause"}), ("host.undrain", {})]


async def test_a_drain_forgets_nothing_that_is_under_way(tmp_path: Path) -> None:
    """What is being created is given up, what is being resumed is waited for."""
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        await host.ask("POST", f"/v1/sandboxes/{sandbox}/pause")
        host.engine.held.update({"restore", "load"})
        creating = asyncio.create_task(host.ask("POST", "/v1/sandboxes", {}))
        resuming = asyncio.create_task(host.ask("POST", f"/v1/sandboxes/{sandbox}/resume"))
        await host.until(lambda: host.engine.calls["restore"] == 2 and host.engine.calls["load"] == 1)
        draining = asyncio.create_task(drained(host, {"mode": "pause"}))
        assert ((await creating).status, (await creating).code) == (503, "draining")
        host.engine.held.clear()
        assert (await resuming).status == 200
        assert (await draining)[-1][1]["paused"] == [sandbox]
        assert (host.engine.machines, host.sandboxes.machines()) == ({}, [])


async def test_a_drain_may_destroy(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        made = [await host.create() for _ in range(2)]
        *_, (_, ended) = await drained(host, {"mode": "destroy"})
        assert sorted(ended["destroyed"]) == sorted(made)
        view = (await host.ask("GET", f"/v1/sandboxes/{made[0]}")).json
        assert (view["state"], view["reason"]) == ("stopped", "the host was drained")
        await host.admin("POST", "/admin/undrain")
        await host.assert_nothing_is_used()


async def test_a_drain_tells_what_it_could_not_do(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        sandbox = await host.create()
        host.engine.broken.add("save")
        *_, (kind, ended) = await drained(host, None)
        assert (kind, ended["paused"], list(ended["failed"])) == ("drained", [], [sandbox])
        assert "save" in ended["failed"][sandbox]
        assert await host.state(sandbox) == "running"


async def test_a_host_that_is_alone_says_that_nothing_can_be_moved(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        refused = await host.admin("POST", "/admin/drain", {"mode": "move"})
        assert (refused.status, refused.code) == (409, "cannot_drain")
        assert "POOLD_STORE is not set" in refused.json["error"]["message"]
        assert "--in-place" in refused.json["error"]["message"]
        assert host.sandboxes.is_draining is False


async def test_an_empty_host_is_drained_at_once(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        assert await drained(host, {}) == [("drained", {"paused": [], "destroyed": [], "failed": {}})]


# A host that is short of something.


async def test_a_host_under_pressure_takes_nothing_new_and_leaves_the_rest_alone(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        running, paused = await host.create(), await host.create(auto_resume=True)
        await host.ask("POST", f"/v1/sandboxes/{paused}/pause")
        host.services.pressure.pressure = Pressure("memory", "this host is short of memory", frozenset({"memory"}))
        ready = await host.ask("GET", "/readyz")
        assert (ready.status, ready.code, ready.json["error"]["message"]) == (
            503,
            "not_ready",
            "this host is short of memory",
        )
        for reply in (await host.ask("POST", "/v1/sandboxes", {}), await host.exec(paused, "echo")):
            assert (reply.status, reply.code, reply.json["error"]["what"]) == (503, "host_pressure", "memory")
            assert "retry-after" in reply.headers
        assert (await host.exec(running, "echo on")).status == 200
        told = (await host.admin("GET", "/admin/status")).json["pressure"]
        assert told == {"what": "memory", "message": "this host is short of memory"}
        host.services.pressure.pressure = None
        assert (await host.exec(paused, "echo on")).status == 200


# Refusals. `test_poold_routes.py` sees to it that every route has one.


async def test_every_bad_request_of_the_operator_names_its_field_and_value(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        for method, path, body, status, code, field in OPERATORS:
            reply = await host.admin(method, path, body)
            assert (reply.status, reply.code) == (status, code), (method, path, reply.body[:200])
            assert reply.json["error"]["message"]
            if field is not None:
                assert (reply.json["error"]["field"], "value" in reply.json["error"]) == (field, True), path
        assert [row for row in await host.audit() if row.owner == "operator"] == []  # none of them was done
        await host.assert_nothing_is_used()


async def test_nothing_of_the_operators_is_served_on_the_port(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        for method, path, body, *_ in OPERATORS:
            reply = await host.ask(method, path, body)
            assert (reply.status, reply.code) == (404, "no_such_route"), path


async def test_a_full_ledger_lets_the_operator_do_nothing_unrecorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine()
    async with open_host(tmp_path, warm=1, engine=engine) as host:
        await host.ready()
        before = set(engine.machines)

        async def full(*_: object, **__: object) -> None:
            raise LedgerFull(host.ledger_path)

        monkeypatch.setattr(host.services.ledger, "write", full)
        for method, path in (
            ("POST", "/admin/drain"),
            ("POST", "/admin/pool/refill"),
            ("POST", "/admin/undrain"),
            ("PUT", "/admin/owners/ann/rules"),
        ):
            reply = await host.admin(method, path, {})
            assert (reply.status, reply.code) == (503, "ledger_full"), path
        assert (host.sandboxes.is_draining, set(engine.machines)) == (False, before)


async def test_what_owners_have_used_is_told(tmp_path: Path) -> None:
    async with open_host(tmp_path) as host:
        made = await host.create(owner="ann")
        await host.create(owner="bob")
        assert (await host.ask("DELETE", f"/v1/sandboxes/{made}", owner="ann")).status == 200
        told = (await host.admin("GET", "/admin/usage")).json
        assert [total["owner"] for total in told["owners"]] == ["ann", "bob"]
        (ann,) = (await host.admin("GET", "/admin/usage?owner=ann")).json["owners"]
        assert (ann["owner"], ann["runs"], ann["egress_bytes"]) == ("ann", 1, 0)
        assert ann["vcpu_s"] > 0
        assert ann["gib_s"] == ann["vcpu_s"] / 4  # one vCPU and 256 MiB
