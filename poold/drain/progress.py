"""What a drain has told so far, for any number of listeners, who may come late and leave when they like."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

KEEPALIVE_S = 15.0
HEARD_S = 5.0  # for listeners to read the end of it, before this process is another one


class Progress:
    """Lives on the loop. Each listener hears all of it from the beginning, and ends with it."""

    def __init__(self) -> None:
        self._told: list[tuple[str, dict[str, Any]]] = []
        self._news = asyncio.Event()
        self._listeners = 0
        self._none = asyncio.Event()
        self.is_over = False

    def tell(self, step: str, sandbox: str | None = None, **more: Any) -> None:
        """One step, of a sandbox or of the whole."""
        self._add("progress", {"sandbox": sandbox, "step": step, **more})

    def end(self, **told: Any) -> None:
        """The last word."""
        self.is_over = True
        self._add("drained", told)

    async def listen(self) -> AsyncIterator[tuple[str, dict[str, Any]] | None]:
        """Everything that is told, to its end. None now and then when there is nothing to tell."""
        self._listeners += 1
        try:
            heard = 0
            while True:
                while heard < len(self._told):
                    heard += 1
                    yield self._told[heard - 1]
                if self.is_over:
                    return
                news = self._news
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(KEEPALIVE_S):
                        await news.wait()
                if not news.is_set():
                    yield None
        finally:
            self._listeners -= 1
            if not self._listeners:
                self._none.set()

    async def heard(self) -> None:
        """Return when nobody listens any more, or after a moment: whoever stalls is not waited for."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HEARD_S):
                while self._listeners:
                    self._none.clear()
                    await self._none.wait()

    def _add(self, kind: str, data: dict[str, Any]) -> None:
        self._told.append((kind, data))
        self._news.set()
        self._news = asyncio.Event()
