"""A host that writes to its ledger until it is killed: each acknowledged number goes to standard output, at once.

python -m tests.doomed_host replicated|local|alone FOLDER STORE FIRST

`replicated` acknowledges when the store has it; `local` has no replica; `alone` acknowledges at the commit and leaves
the replica to Litestream. The store is a folder or s3://BUCKET/PREFIX, with AWS's settings in the environment.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from functools import partial
from itertools import count
from pathlib import Path

import uvloop

from poold.ledger import Ledger
from poold.replica.target import S3, target_at
from tests.replicas import Place, put

WRITERS = 8
BETWEEN_S = 0.01  # of one writer, so that the disk is not all that is measured


def place_of(folder: Path, store: str, epoch: int = 1) -> Place:
    target = target_at(store)
    where = target.config.__class__(target.config.bucket, target.path) if isinstance(target, S3) else target.path
    return Place(folder, where, dict(os.environ), epoch)


@contextlib.asynccontextmanager
async def ledger_of(mode: str, place: Place) -> AsyncIterator[Ledger]:
    if mode == "local":
        place.folder.mkdir(exist_ok=True)
        async with Ledger.open(place.ledger) as ledger:
            yield ledger
    else:
        async with place.opened(holds=mode == "replicated") as (ledger, _):
            yield ledger


async def _write(ledger: Ledger, first: int) -> None:
    for number in count(first, WRITERS):
        await ledger.write(partial(put, number=number))
        os.write(1, b"%d\n" % number)  # one write of a few bytes: whole or not at all
        await asyncio.sleep(BETWEEN_S)


async def main() -> None:
    mode, folder, store, first = sys.argv[1:]
    async with ledger_of(mode, place_of(Path(folder), store)) as ledger:
        await asyncio.gather(*(_write(ledger, int(first) + n) for n in range(WRITERS)))


if __name__ == "__main__":
    uvloop.run(main())
