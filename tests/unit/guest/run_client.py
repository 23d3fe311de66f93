"""For tests of runs: starts them in a guest and reads their events as a host does."""

from typing import Any

from tests.unit.guest.client import Client, Reply

Event = dict[str, Any]


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

    async def until(self, kind: str, **fields: Any) -> Event:
        """Read on to the next event of this kind with these fields."""
        while True:
            after = self.seen[-1]["number"] if self.seen else 0
            stream = await self.client.stream("GET", f"/run/events?after={after}")
            async for event in stream.events():
                assert event["number"] == after + 1, event
                after += 1
                self.seen.append(event)
                if event["event"] == kind and all(event.get(name) == value for name, value in fields.items()):
                    await stream.close()
                    return event
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

    def told(self, kind: str, **fields: Any) -> list[Event]:
        return [
            event
            for event in self.seen
            if event["event"] == kind and all(event.get(name) == value for name, value in fields.items())
        ]

    def tools(self) -> list[tuple[str, bool]]:
        """The tools that ended: their names, and whether they failed."""
        return [(event["tool"], event["is_error"]) for event in self.told("agent.tool", phase="end")]
