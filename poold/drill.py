"""A ledger made from a replica by hand, and whether it would do: `pooldctl ledger restore` starts this.

python -m poold.drill --from WHERE [--to FILE] [--ledger FILE]
python -m poold.drill --accept HOST --epoch NUMBER --state-dir FOLDER

It needs no poold: it reads the store with the credentials of whoever starts it. What it found is one line of JSON.
The second form writes down that an older epoch's ledger will do (`poold.replica.accepted`).
"""

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson

from contract.errors import WarrenError
from poold.ledger import care
from poold.ledger.connect import open_reader
from poold.replica.accepted import accept
from poold.replica.restoring import restore
from poold.replica.target import target_at


def main() -> None:
    parser = argparse.ArgumentParser(prog="poold.drill", allow_abbrev=False)
    parser.add_argument("--from", dest="where")
    parser.add_argument("--accept", metavar="HOST")
    parser.add_argument("--epoch", type=int)
    parser.add_argument("--state-dir", type=Path)
    parser.add_argument("--to", type=Path)
    parser.add_argument("--ledger", type=Path)
    asked = parser.parse_args()
    try:
        if asked.accept is not None:
            found = {"ok": True, "path": str(accept(asked.state_dir, asked.accept, asked.epoch))}
        else:
            found = asyncio.run(_drill(asked.where, asked.to, asked.ledger))
    except (OSError, ValueError) as error:
        found = {"ok": False, "code": "not_written", "why": str(error)}
    except WarrenError as error:
        found = {"ok": False, "code": error.code, "why": str(error)}
    sys.stdout.buffer.write(orjson.dumps(found) + b"\n")


async def _drill(where: str, to: Path | None, ledger: Path | None) -> dict[str, Any]:
    """Restore to `to`, or to a file that is removed again, and compare it with the `ledger` of before, if there is."""
    with contextlib.ExitStack() as stack:
        made = to or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="warren-drill-"))) / "ledger.db"
        live = None if ledger is None else await asyncio.to_thread(_extent, ledger)
        began = time.monotonic()
        restored = await restore(target_at(where), made, environ=os.environ, check=care.check_copy)
        has = await asyncio.to_thread(_extent, made)
        return {
            "ok": True,
            "from": where,
            "path": None if to is None else str(to),
            "bytes": restored.bytes,
            "txid": restored.txid,
            "took_s": round(time.monotonic() - began, 3),
            **has,
            "behind": None if live is None else {name: max(0, live[name] - has[name]) for name in live},
        }


def _extent(path: Path) -> dict[str, int]:
    with contextlib.closing(open_reader(path)) as db:
        return care.extent(db)


if __name__ == "__main__":
    main()
