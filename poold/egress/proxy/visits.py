"""One connection from the guest, and what it has on the other side."""

import asyncio
import contextlib
import time
from dataclasses import dataclass
from enum import Enum

from poold.egress.addresses import Address, literal
from poold.egress.names import canonical
from poold.egress.policy import Target
from poold.egress.proxy import refusals
from poold.egress.proxy.dial import Dialer
from poold.egress.proxy.ends import KEPT_BYTES, LITTLE_BYTES, MUCH_BYTES, End, Gone
from poold.egress.proxy.gate import Flow, Gate
from poold.egress.proxy.refusals import Refusal

FIRST_BYTES_S = 30.0
HEAD_S = 30.0
FEW_FLOWS = 32  # these may have large buffers: some 20 MB if nobody reads
FLUSH_S = 30.0  # for what was written to be read


class Face(Enum):
    """What the guest speaks, as far as it is known: how it can be told of a refusal."""

    RAW = "raw"
    HTTP = "http"
    TLS = "tls"


@dataclass(frozen=True)
class Meant:
    """Where the guest wants to go, before it has said more: a name, an address, or (both None) it is not known."""

    port: int
    name: str | None = None
    address: Address | None = None

    @property
    def target(self) -> Target:
        return Target(self.port, self.name, self.address)


class Visit:
    """Has at most one flow and one end in the world at a time. When `closed` returns, none of them is left."""

    def __init__(self, gate: Gate, dialer: Dialer, client: End, via: str, face: Face) -> None:
        self.gate = gate
        self.client = client
        self.via = via
        self.face = face
        self.flow: Flow | None = None
        self.upstream: End | None = None
        self.said: tuple[str | None, Address | None, int | None] = (None, None, None)  # name, address, port
        self.cut_why: str | None = None
        self.task: asyncio.Task[None] | None = None
        self.still_since = time.monotonic()  # nothing has moved since then, as far as was looked
        self._dialer = dialer

    def mean(self, meant: Meant) -> None:
        """Remember what to write down if it is refused."""
        self.said = (meant.name, meant.address, meant.port)

    async def reach(self, target: Target) -> End:
        """Connect to `target`, if it is allowed. What was reached before is left. Raises `Refusal`."""
        self.leave()
        self.said = (target.name, target.address, target.port)
        self.flow = flow = await self.gate.enter(self, target)
        try:
            self.upstream = await self._dialer.dial(target.name, target.address, target.port, flow.check)
        except BaseException:
            flow.end()
            raise
        flow.open()
        return self._opened(self.upstream)

    def _opened(self, upstream: End) -> End:
        """From here on much may be read at once, on both sides, unless a guest has made many of these."""
        count = MUCH_BYTES if len(self.gate.flows) <= FEW_FLOWS else LITTLE_BYTES
        self.client.read_at_once(count)
        upstream.read_at_once(count)
        return upstream

    def leave(self) -> None:
        """End what it has with its target."""
        if self.flow is not None:
            self.flow.end()
            self.flow = None
        if self.upstream is not None:
            self.upstream.part()
            self.upstream = None

    async def pour_both(self) -> None:
        """Let bytes pass in both directions until both sides have ended."""
        upstream, flow = self.upstream, self.flow
        if upstream is None or flow is None:
            raise Gone
        self.client.pour(upstream, flow.add_up)
        if self.flow is not None:  # the first bytes were not too many
            upstream.pour(self.client, flow.add_down)
        await self.client.closed()
        await upstream.closed()

    def write_down(self, refusal: Refusal) -> None:
        name, address, port = self.said
        where = refusal.address or address
        self.gate.refused(self.via, refusal.why, name=name, address=None if where is None else str(where), port=port)

    async def refuse(self, refusal: Refusal) -> None:
        """Write it down, and tell the guest in the way that it understands."""
        if self.flow is not None and self.flow.is_open:
            self.flow.end(refusal.why, verdict="refused")
        else:
            self.write_down(refusal)
        self.leave()
        match self.face:
            case Face.HTTP:
                await self.client.leave(refusals.answer(refusal))
            case Face.TLS:
                await self.client.leave(refusals.TLS_ALERT)
            case Face.RAW:
                self.client.abort()

    def cut(self, why: str) -> None:
        """End it now: after this not one more byte passes, and its row is written."""
        if self.cut_why is not None:
            return
        self.cut_why = why
        if self.flow is not None:
            self.flow.end(why)
        self.client.abort()
        self._drop_upstream()
        if self.task is not None:
            self.task.cancel()

    async def has_left(self) -> None:
        with contextlib.suppress(Gone):
            while len(self.client.data) < KEPT_BYTES:
                if not await self.client.more():
                    return
            await self.client.closed()  # it has said so much that its end cannot be heard

    async def closed(self) -> None:
        """Leave nothing behind."""
        self.leave()
        if self.client.is_closing:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    await self.client.closed()
        self.client.abort()
        await self.client.closed()

    def _drop_upstream(self) -> None:
        if self.upstream is not None:
            self.upstream.abort()
            self.upstream = None


def read_host(text: str) -> tuple[str | None, Address | None]:
    """A name or an address as a guest wrote it. Raises `Refusal`."""
    address = literal(text)
    if address is not None:
        return None, address
    name = canonical(text)
    if name is None:
        raise Refusal("bad_name", f"{text[:80]!r} is not the name of a host")
    return name, None
