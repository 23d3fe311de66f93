"""The ways to services: tunnels are kept for the next request to the same port, for a short time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

from gateway.tunnel import Tunnels
from gateway.upstream import Upstream

IDLE_S = 10.0  # a tunnel that waits keeps its sandbox from being idle
PUBLIC_S = 10.0  # how long a way for everybody is used: a port that is made private is private after that
MAX_KEPT = 1000

Key = tuple[str, int, str]  # sandbox, port, owner


@dataclass
class _Way:
    upstream: Upstream
    made_at: float
    users: int = 0
    used_at: float = 0.0
    is_kept: bool = True


class Kept:
    """At most `MAX_KEPT` ways that nobody uses. `close` ends all."""

    def __init__(self, tunnels: Tunnels) -> None:
        self._tunnels = tunnels
        self._ways: dict[Key, _Way] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.asynccontextmanager
    async def use(self, sandbox: str, port: int, owner: str) -> AsyncIterator[Upstream]:
        """HTTP to a port, during the block. Raises what `Tunnels.open` and `Upstream` raise."""
        way = self._way((sandbox, port, owner))
        way.users += 1
        try:
            yield way.upstream
        finally:
            way.users -= 1
            way.used_at = asyncio.get_running_loop().time()
            if not way.users and not way.is_kept:
                self._end(way)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for way in self._ways.values():
            self._end(way)
        self._ways.clear()
        if self._closing:
            await asyncio.wait(self._closing)

    def _way(self, key: Key) -> _Way:
        now = asyncio.get_running_loop().time()
        way = self._ways.get(key)
        if way is not None and not key[2] and now - way.made_at > PUBLIC_S:
            self._drop(key)
            way = None
        if way is None:
            sandbox, port, owner = key
            connect = partial(self._tunnels.open, sandbox, port, owner)
            way = self._ways[key] = _Way(Upstream(f"http://localhost:{port}", connect=connect), now, used_at=now)
            self._make_room()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._sweep)
        return way

    def _make_room(self) -> None:
        """Those that waited longest go. The newest, and those in use, stay."""
        if len(self._ways) <= MAX_KEPT:
            return
        idle = [key for key, way in self._ways.items() if not way.users][:-1]
        for key in sorted(idle, key=lambda key: self._ways[key].used_at)[: len(self._ways) - MAX_KEPT]:
            self._drop(key)

    def _sweep(self) -> None:
        now = asyncio.get_running_loop().time()
        for key in [key for key, way in self._ways.items() if not way.users and now - way.used_at >= IDLE_S]:
            self._drop(key)
        self._timer = asyncio.get_running_loop().call_later(IDLE_S / 4, self._sweep) if self._ways else None

    def _drop(self, key: Key) -> None:
        """No new request uses it; it ends with those that do now."""
        way = self._ways.pop(key)
        way.is_kept = False
        if not way.users:
            self._end(way)

    def _end(self, way: _Way) -> None:
        task = asyncio.create_task(way.upstream.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
