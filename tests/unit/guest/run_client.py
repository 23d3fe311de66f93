"""For tests of runs: starts them in a guest and reads their events as a host does."""

import asyncio
from typing import Any

from tests.unit.guest.client import Client, Reply

Event = dict[str, Any]
# Agents are large programs, and the machine may be busy.
LIMIT_S = 90.0


class RunClient:
    """A host that follows the runs of one guest, in the order of their numbers."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.seen: list[Event] = []

    async def start(self, prompt: str, **more: Any) -> Reply:
        body = {"task": "tk-test", "run": 1, "agent": "mock", "prompt": prompt, **more}
        return await self.client.call("POST", "/run", {"cwd": str(self.client.workspace), **body})

    async def started(self, prompt: str, **more: Any) -> None:
        reply = await self.start(prompt, **more)
        assert reply.status == 201, reply

    async def until(self, kind: str, /, **fields: Any) -> Event:
        """Read on to the next event of this kind with these fields."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                found = await self._read(kind, fields)
                if found is not None:
                    return found

    async def _read(self, kind: str, fields: dict[str, Any]) -> Event | None:
        """One stream, which the guest ends after a while."""
        after = self.seen[-1]["number"] if self.seen else 0
        stream = await self.client.stream("GET", f"/run/events?after={after}")
        try:
            async for event in stream.events():
                after += 1
                assert event["number"] == after, event
                self.seen.append(event)
                if event["event"] == kind and all(event.get(name) == value for name, value in fields.items()):
                    return event
            return None
        finally:
            await stream.close()

    async def ended(self) -> Event:
        return await self.until("agent.ended")

    async def whole(self, prompt: str, **more: Any) -> Event:
        """A run from its start to its end."""
        await self.started(prompt, **more)
        return await self.ended()

    async def say(self, kind: str, name: str | None = None, text: str | None = None) -> Reply:
        return await self.client.call("POST", "/run/input", {"kind": kind, "id": name, "text": text})

    async def stop(self, grace_ms: int = 5000) -> Event | None:
        reply = await self.client.call("POST", "/run/stop", {"grace_ms": grace_ms})
        assert reply.status == 200, reply
        outcome: Event | None = reply.json["outcome"]
        return outcome

    def told(self, kind: str, /, **fields: Any) -> list[Event]:
        return [
            event
            for event in self.seen
            if event["event"] == kind and all(event.get(name) == value for name, value in fields.items())
        ]

    def tools(self) -> list[tuple[str, bool]]:
        """The tools that ended: their names, and whether they failed."""
        return [(event["tool"], event["is_error"]) for event in self.told("agent.tool", phase="end")]
