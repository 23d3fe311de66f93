"""kill -9 of a host with its Litestream: its successor has what was acknowledged. `make bench-durability` has more."""

import os
from pathlib import Path

import pytest

from poold.devstore import BUCKET, S3Server
from tests.kills import kills

KILLS = int(os.environ.get("WARREN_DURABILITY_KILLS", "5"))


@pytest.mark.parametrize("where", ["s3", "folder"])
def test_nothing_that_was_acknowledged_is_lost_with_a_host(tmp_path: Path, s3: S3Server, where: str) -> None:
    store = f"s3://{BUCKET}/kills" if where == "s3" else str(tmp_path / "store")
    environ = {**os.environ, **s3.client()}
    rounds = list(kills("replicated", KILLS, tmp_path, store, environ=environ, seed=7))
    assert [one.lost for one in rounds] == [0] * KILLS
    assert rounds[-1].acknowledged > KILLS


def test_nothing_that_was_acknowledged_on_a_disk_is_lost_with_a_daemon(tmp_path: Path) -> None:
    rounds = list(kills("local", KILLS, tmp_path, str(tmp_path / "none"), environ=os.environ, seed=7))
    assert [one.lost for one in rounds] == [0] * KILLS


def test_litestream_alone_would_lose_rows_so_these_tests_can_fail(tmp_path: Path) -> None:
    rounds = kills("alone", 40, tmp_path, str(tmp_path / "store"), environ=os.environ, seed=7)
    assert any(one.lost for one in rounds)  # the first that shows it ends this
