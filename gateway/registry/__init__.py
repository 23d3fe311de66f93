"""The registry: records of hosts and keys (`gateway/registry/records.py`), as plain JSON in a folder or in S3.

It is read once a second, in the background. A request waits for it only if it is about a key's record itself.
"""

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Protocol

from contract.keys import Key
from gateway.config import S3Place
from gateway.registry.folder import FolderRegistry
from gateway.registry.records import Records

__all__ = ["Records", "Registry", "open_registry"]


class Registry(Protocol):
    """Its calls raise `RegistryUnreachable`: of a write that ends so nobody knows whether it was done."""

    async def read(self) -> Records:
        """Everything as it is now."""
        ...

    async def key(self, key_id: str) -> Key:
        """The record as it is now. Raises `NotFound`."""
        ...

    async def add_key(self, key: Key) -> None:
        """There is such a key from now on. Gateways know within a second or two."""
        ...

    async def change_key(self, key_id: str, how: Callable[[Key], Key]) -> Key:
        """Let the record be `how` of what it is now. Nobody changes it in between, pooldctl neither.

        `how` may be called again, with what somebody else has made of it: done twice it must be what it is done once.
        """
        ...


@contextlib.asynccontextmanager
async def open_registry(place: Path | S3Place) -> AsyncIterator[Registry]:
    """Raises `ConfigError` if there is none in S3, or it cannot be read."""
    if isinstance(place, Path):
        yield FolderRegistry(place)
    else:
        from gateway.registry.s3 import open_s3_registry

        async with open_s3_registry(place) as registry:
            yield registry
