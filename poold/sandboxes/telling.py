"""How far something is with a sandbox, told in its timeline."""

import asyncio
from functools import partial

from poold.ledger import sandboxes
from poold.sandboxes.means import Means

TELL_EVERY_S = 0.25


class Progress:
    """Tells the sandbox's timeline how far it is, now and then. Called from the loop."""

    def __init__(self, means: Means, sandbox_id: str, kind: str) -> None:
        self._means = means
        self._sandbox_id = sandbox_id
        self._kind = kind
        self._told = 0.0

    def __call__(self, done: int, of: int) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._told >= TELL_EVERY_S:
            self._told = now
            data = {"bytes": done, "of": of}
            at_ms = self._means.sources.now_ms()
            tell = partial(sandboxes.tell, sandbox_id=self._sandbox_id, kind=self._kind, data=data, at_ms=at_ms)
            self._means.ledger.submit(tell, durable=False)
