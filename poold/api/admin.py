"""What only the operator may ask, over the unix socket: the whole host, its pool, its ledger, its owners."""

import asyncio
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from contract.errors import BadField, CallerError
from contract.fields import Fields
from contract.models import FILES, RulesAsked, owner_name
from poold import sweeping
from poold.api.drains import drain_of, note
from poold.api.listing import number
from poold.api.observe import usage_of
from poold.api.replies import json_reply, read_body
from poold.api.services import caller_of, services
from poold.config import PoolSize
from poold.ledger import audit, care, inheriting, leftovers, sandboxes, usage
from poold.lifetimes import finish

MAX_PAGE = 1000
MAX_WARM = 4096


async def status(request: Request) -> Response:
    found = services(request)
    facts, places, pressure = found.facts, found.pool.places, found.pressure.pressure
    counted = await found.ledger.read(sandboxes.count_by_state)
    return json_reply(
        {
            "version": facts.version,
            "engine": facts.engine,
            "accel": facts.accel,
            "serving": True,
            "draining": found.sandboxes.is_draining,
            "drain": drain_of(found),
            "started_ms": facts.started_ms,
            "slots": {"all": facts.slots, "free": places.free},
            "memory": {"budget_mb": places.memory_budget_mb, "left_mb": places.memory_left_mb},
            "sandboxes": {state.value: count for state, count in counted.items()},
            "pool": found.pool.keeper.shares(),
            "pressure": None if pressure is None else {"what": pressure.what, "message": pressure.message},
            "ledger": _ledger(facts.ledger_path),
            "images_dir": str(facts.images_dir),
            "store": None if facts.store is None else {"place": facts.store, "cluster": facts.cluster},
            "recovery": found.recovery.view(),
        }
    )


async def lease(request: Request) -> Response:
    """This host's lease, and all that it sees of others'."""
    return json_reply(services(request).membership.view())


def _ledger(path: Path) -> dict[str, Any]:
    wal = path.with_name(path.name + "-wal")
    return {
        "path": str(path),
        "bytes": path.stat().st_size,
        "wal_bytes": wal.stat().st_size if wal.exists() else 0,
    }


async def top(request: Request) -> Response:
    found = services(request)
    machines = []
    for live in found.sandboxes.machines():
        used_now = usage_of(found, live)
        shown = (await found.sandboxes.get(live.sandbox.id)).view()
        machines.append(
            {
                **{name: shown[name] for name in ("owner", "image", "vcpus", "memory_mb", "started_ms", "next")},
                "sandbox": live.sandbox.id,
                "machine": live.place.machine_id,
                "cpu_s": None if used_now is None else used_now.cpu_s,
                "memory_used_mb": None if used_now is None else used_now.memory_bytes >> 20,
                "pids": None if used_now is None else used_now.pids,
            }
        )
    return json_reply({"at_ms": found.sandboxes.now_ms(), "machines": machines})


async def set_pool(request: Request) -> Response:
    found = services(request)
    fields = Fields.parse(await read_body(request))
    shape = found.images.find(fields.text("image", max_chars=64)).defaults
    floor = fields.integer("floor", low=0, high=MAX_WARM)
    ceiling = fields.integer("ceiling", low=floor, high=MAX_WARM)
    fields.end()
    found.pool.keeper.resize(shape, PoolSize(floor, ceiling))
    await note(request, "pool.set", image=shape.image, floor=floor, ceiling=ceiling)
    return json_reply({"pool": found.pool.keeper.shares()})


async def refill(request: Request) -> Response:
    found = services(request)
    fields = Fields.parse(await read_body(request))
    image = fields.text("image", max_chars=64, default=None)
    fields.end()
    if image is not None:
        found.images.find(image)
    await note(request, "pool.refill", image=image)
    await found.pool.keeper.refill(image)
    return json_reply({"pool": found.pool.keeper.shares()})


async def images(request: Request) -> Response:
    found = services(request)
    used = await _used_images(request)
    names = found.images.names()
    listed = [{"name": name, "key": found.images.find(name).key, "in_use": name in used} for name in names]
    return json_reply({"images": listed})


async def remove_image(request: Request) -> Response:
    found = services(request)
    name = request.path_params["name"]
    key = found.images.find(name).key
    used = await _used_images(request)
    if name in used:
        raise InUse(f"image {name} is in use by {used[name]}", image=name)
    await note(request, "image.remove", image=name, key=key)
    await asyncio.to_thread(found.images.remove, name)
    return json_reply({"name": name, "key": key})


async def _used_images(request: Request) -> dict[str, str]:
    """The images in use, and by what."""
    found = services(request)
    used = {share["image"]: "the pool" for share in found.pool.keeper.shares() if share["ceiling"]}
    alive = await found.ledger.read(lambda db: [*sandboxes.alive(db), *sandboxes.hibernating(db)])
    return used | {sandbox.shape.image: f"sandbox {sandbox.id}" for sandbox in alive}


async def take_over(request: Request) -> Response:
    """Let a sandbox be this host's that another one put into the store and has given up."""
    fields = Fields.parse(await read_body(request))
    key = fields.text("manifest", max_chars=512)
    fields.end()
    host = services(request).sandboxes
    taken = await host.hibernation.import_hibernated(key, caller_of(request))
    host.wait_for(taken)
    return json_reply((await host.get(taken.id)).view())


async def sweep_store(request: Request) -> Response:
    """Remove what is provably nobody's in the store, or (`dry_run`) tell of it."""
    found = services(request)
    fields = Fields.parse(await read_body(request))
    days = fields.integer("older_days", low=0, high=3650, default=sweeping.USUAL_DAYS)
    is_dry = bool(fields.flag("dry_run", default=False))
    fields.end()
    await note(request, "store.sweep", older_days=days, dry_run=is_dry)
    store = found.sandboxes.hibernation.depot("the store", FILES).store
    named = await found.ledger.read(lambda db: leftovers.in_store(db) | inheriting.in_store(db))
    before_ms = found.sandboxes.now_ms() - days * sweeping.DAY_MS
    swept = await finish(sweeping.sweep(store, named=named, before_ms=before_ms, is_dry=is_dry))
    return json_reply({"dry_run": is_dry, **swept.view()})


async def audit_rows(request: Request) -> Response:
    query = request.query_params
    limit = number(request, "limit", 100, 1, MAX_PAGE)
    after = number(request, "after", 0, 0, 1 << 53)
    filters = {name: query[name] for name in ("sandbox", "owner", "action") if name in query}
    rows = await services(request).ledger.read(lambda db: audit.listed(db, after=after, limit=limit + 1, **filters))
    page = rows[:limit]
    return json_reply({"rows": [row.view() for row in page], "next": page[-1].seq if len(rows) > limit else None})


async def used(request: Request) -> Response:
    """What each owner has used since the beginning of the records: vCPU-seconds, GiB-seconds, bytes of egress."""
    found = services(request)
    asked = request.query_params.get("owner")
    owner = None if asked is None else owner_name(asked)
    now_ms = found.sandboxes.now_ms()
    totals = await found.ledger.read(lambda db: usage.totals(db, owner, now_ms=now_ms))
    return json_reply({"at_ms": now_ms, "owners": [total.view() for total in totals]})


async def audit_verify(request: Request) -> Response:
    verdict = await services(request).ledger.read(audit.verify)
    return json_reply(verdict.view())


async def backup(request: Request) -> Response:
    """A copy of the ledger as it is now, in a file of the host."""
    found = services(request)
    fields = Fields.parse(await read_body(request))
    path = Path(fields.text("path", max_chars=4096))
    fields.end()
    if not path.is_absolute():
        raise BadField("path", str(path), "must be absolute")
    await note(request, "ledger.backup", path=str(path))
    size = await finish(asyncio.to_thread(care.backup, found.facts.ledger_path, path))
    return json_reply({"path": str(path), "bytes": size})


async def ledger(request: Request) -> Response:
    """The ledger and its replica: what is acknowledged when, where it is, how far behind it is."""
    found = services(request)
    extent = await found.ledger.read(care.extent)
    return json_reply(
        {
            **_ledger(found.facts.ledger_path),
            **extent,
            "durability": found.facts.durability,
            "lag_s": found.ledger.lag_s,
            "replica": None if found.replica is None else await found.replica.view(),
        }
    )


async def check(request: Request) -> Response:
    """Everything that is wrong with the ledger. Reads all of it."""
    found = services(request)
    problems, version = await found.ledger.read(lambda db: (care.check(db), care.version(db)))
    size = found.facts.ledger_path.stat().st_size
    return json_reply({"ok": not problems, "problems": problems, "version": version, "bytes": size})


async def rules(request: Request) -> Response:
    owner = owner_name(request.path_params["owner"])
    return json_reply({"owner": owner, **vars(await services(request).sandboxes.rules.get(owner))})


async def set_rules(request: Request) -> Response:
    owner = owner_name(request.path_params["owner"])
    fields = Fields.parse(await read_body(request))
    asked = RulesAsked.read(fields)
    fields.end()
    await services(request).sandboxes.rules.put(owner, asked, caller_of(request))
    return json_reply({"owner": owner, **vars(asked)})


class InUse(CallerError):
    status = 409
    code = "in_use"
