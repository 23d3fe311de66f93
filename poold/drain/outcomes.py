"""What became of the sandboxes of a drain at the host that has them now: an object in the store, for who was drained.

It is news for people and nothing hangs on it: what counts is in the ledgers. What is read is anybody's word.
"""

import asyncio
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from contract.errors import CallerError
from contract.fields import Fields
from contract.hosts import NAME
from contract.ids import sandbox_id
from poold.store import Store
from poold.store.errors import NoObject

PREFIX = "drains/"
MAX_BYTES = 4 << 20
MAX_WHY_CHARS = 1000


@dataclass(frozen=True)
class Outcome:
    """`state` is what the sandbox is at `host`; `why` it does not run there, if it does not."""

    host: str
    state: str
    why: str | None = None


class BadOutcomes(Exception):
    """What is in the store makes no sense."""


class Outcomes:
    """Of all drains. One writer for each, but for a host that died while it wrote: what it wrote stays."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._turn = asyncio.Lock()

    async def put(self, drain: str, sandbox: str, outcome: Outcome) -> None:
        """Add one. Raises what the store raises."""
        async with self._turn:
            try:
                told = await self.get(drain)
            except BadOutcomes:
                told = {}
            told[sandbox] = outcome
            data = {"version": 1, "sandboxes": {name: asdict(each) for name, each in told.items()}}
            await self._store.put(f"{PREFIX}{drain}", orjson.dumps(data))

    async def get(self, drain: str) -> dict[str, Outcome]:
        """Those that are known. Raises `BadOutcomes`, and what the store raises."""
        try:
            blob = await self._store.get(f"{PREFIX}{drain}")
        except NoObject:
            return {}
        try:
            return _decode(blob.data)
        except CallerError as error:
            raise BadOutcomes(f"{PREFIX}{drain} makes no sense: {error.message}") from None

    async def remove(self, drain: str) -> None:
        await self._store.delete(f"{PREFIX}{drain}")


def _decode(data: bytes) -> dict[str, Outcome]:
    if len(data) > MAX_BYTES:
        raise CallerError(f"it has {len(data)} bytes, and may have {MAX_BYTES}")
    fields = Fields.parse(data)
    fields.integer("version", low=1, high=1)
    told = fields.raw("sandboxes")
    if not isinstance(told, dict):
        raise CallerError("sandboxes must be an object")
    return {sandbox_id(name): _outcome(each) for name, each in told.items()}


def _outcome(told: Any) -> Outcome:
    fields = Fields.parse(orjson.dumps(told))
    return Outcome(
        host=fields.text("host", max_chars=63, pattern=NAME.pattern),
        state=fields.text("state", max_chars=16, pattern="[a-z]{1,16}"),
        why=fields.text("why", max_chars=MAX_WHY_CHARS, default=None),
    )
