"""`pooldctl keys`: API keys, in the registry. Needs no poold: gateways read the same folder, or the same bucket."""

import json
import os
import secrets
from typing import Any

from contract import keys
from contract.keys import Key, KeyAsked
from contract.settings import BadSetting
from poold.ctl import errors
from poold.ctl.context import Context
from poold.ctl.errors import UsageError
from poold.ctl.network import network_asked
from poold.ctl.program import say
from poold.ctl.told import told
from poold.keyring import SHOWN_CHARS, Keyring
from poold.places import Places
from warren_console.network import in_short
from warren_console.text import megabytes, relative

DAY_MS = 24 * 3600 * 1000
TITLES = (
    "ID",
    "OWNER",
    "PLAN",
    "SCOPES",
    ">VCPUS",
    ">MEMORY",
    ">DISK",
    ">RATE",
    "CREATED",
    "EXPIRES",
    "STATE",
    "NAME",
    "NETWORK",
)
ONCE = "this is the only time that the secret is shown"


def create(context: Context) -> int:
    with told("cannot create a key"):
        ring = _keyring(context)
        secret = keys.new_secret(secrets.token_bytes)
        now_ms = context.out.now_ms
        key = _asked(context, now_ms).key(keys.key_id(secret), created_ms=now_ms)
        ring.add(key)
    return _hand_over(context, key, secret)


def ls(context: Context) -> int:
    with told("cannot list the keys"):
        found, broken = _keyring(context).all()
    for line in broken:
        say(f"a record that no gateway takes: {line}")
    if context.out.as_json:
        context.out.json({"keys": [key.view() for key in found]})
    else:
        context.out.table(TITLES, [_cells(key, context.out.now_ms) for key in found])
    return errors.DONE


def revoke(context: Context) -> int:
    """Done, also if it was before."""
    with told(f"cannot revoke {context.asked.key}"):
        ring = _keyring(context)
        key = ring.change(ring.find(context.asked.key).id, Key.revoked)
    if context.out.as_json:
        context.out.json(key.view())
    else:
        context.out.line(f"{key.id[:SHOWN_CHARS]} of {key.owner} is revoked: every gateway refuses it within 5 seconds")
    return errors.DONE


def rotate(context: Context) -> int:
    """The new key is there and told before the old one is given its end: nobody is ever without."""
    now_ms, grace_ms = context.out.now_ms, context.asked.grace * 1000
    with told(f"cannot rotate {context.asked.key}"):
        ring = _keyring(context)
        old = ring.find(context.asked.key)
        secret = keys.new_secret(secrets.token_bytes)
        new = old.successor(keys.key_id(secret), now_ms)
        ring.add(new)
    _hand_over(context, new, secret)
    with told(f"the new key works, but {context.asked.key} could not be ended"):
        ring.change(old.id, lambda key: key.ending(now_ms + grace_ms))
    say(f"{old.id[:SHOWN_CHARS]} ends {'now' if not grace_ms else f'in {context.asked.grace} seconds'}")
    return errors.DONE


def _hand_over(context: Context, key: Key, secret: str) -> int:
    """The secret goes to standard output and nowhere else."""
    with told(f"key {key.id[:SHOWN_CHARS]} is made, and its secret could not be told, so revoke it"):
        if context.out.as_json:
            context.out.json({**key.view(), "secret": secret})
        else:
            context.out.line(secret)
    say(f"key {key.id[:SHOWN_CHARS]} of {key.owner}; {ONCE}")
    return errors.DONE


def _asked(context: Context, now_ms: int) -> KeyAsked:
    """Checked as the API checks it."""
    asked = context.asked
    pools = {"vcpus": asked.vcpus, "memory_mb": asked.memory_mb, "disk_mb": asked.disk_mb}
    wanted: dict[str, Any] = {name: getattr(asked, name) for name in ("owner", "name", "plan", "rate")}
    if asked.expires is not None:
        wanted["expires_ms"] = now_ms + asked.expires * DAY_MS
    if asked.scope:
        wanted["scopes"] = list(dict.fromkeys(asked.scope))
    wanted["network"] = network_asked(asked)
    return KeyAsked.parse(json.dumps({**wanted, "pools": pools}).encode())


def _cells(key: Key, now_ms: int) -> tuple[object, ...]:
    return (
        key.id[:SHOWN_CHARS],
        key.owner,
        key.plan,
        ",".join(key.scopes) or "-",
        key.pools.vcpus,
        megabytes(key.pools.memory_mb),
        megabytes(key.pools.disk_mb),
        key.rate,
        relative(key.created_ms, now_ms),
        relative(key.expires_ms, now_ms),
        key.state(now_ms),
        key.name,
        in_short(None if key.network is None else key.network.view()),
    )


def known_ids() -> list[str]:
    """As the table shows them, of keys that are not revoked; for completion."""
    with told("cannot list the keys"):
        return [key.id[:SHOWN_CHARS] for key in _registry(None).all()[0] if key.active]


def _keyring(context: Context) -> Keyring:
    return _registry(context.asked.registry)


def _registry(named: str | None) -> Keyring:
    read = Places(os.environ)
    try:
        place = (
            read.registry_at("--registry", named)
            if named
            else read.registry("POOLD_REGISTRY", read.store("POOLD_STORE"))
        )
    except BadSetting as error:
        raise UsageError(str(error)) from None
    if place is None:
        raise UsageError("where is the registry? Give --registry DIR or s3://BUCKET/PREFIX, or set POOLD_REGISTRY")
    return Keyring(place)
