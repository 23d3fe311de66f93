"""What takes long is told to people, and to nobody else."""

import json
import re
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.sdk.conftest import Cli
from tests.sdk.sdk_replies import ID, KEY, ROW
from tests.sdk.sdk_stage import LIMIT_S, Asked, open_stage, reply
from tests.terminal import open_screen
from warren.cli.progress import bar_line, busy_line
from warren_console.text import width


def test_a_bar_tells_how_much_how_fast_and_how_long() -> None:
    whole = f"f  {'━' * 12}{'─' * 12}   50%  50 MB  10 MB/s  5s left"
    assert bar_line("f", 50_000_000, 100_000_000, 5.0, 100) == whole
    assert bar_line("f", 2_000, None, 1.0, 100) == "f  2.0 kB  2.0 kB/s"
    assert bar_line("\x1b[31mevil", 0, 0, 0.0, 100).startswith("[31mevil  ")


def test_where_there_is_little_room_the_bar_goes_first_and_then_the_name() -> None:
    figures = " 50%  50 MB  10 MB/s  5s left"
    assert bar_line("name", 50_000_000, 100_000_000, 5.0, 39) == f"name  {figures}"
    assert bar_line("a-long-name", 50_000_000, 100_000_000, 5.0, 39) == f"a-long-…  {figures}"


@given(some.text(max_size=60), some.integers(0, 10**12), some.integers(0, 10**12), some.integers(1, 200))
def test_no_line_wraps(what: str, done: int, total: int, columns: int) -> None:
    assert width(bar_line(what, done, total, 3.0, columns)) <= columns
    assert width(busy_line("⠋", what, 3.0, columns)) <= columns


@pytest.mark.parametrize(
    ("columns", "told"),
    [(100, rb"creating a sandbox \xe2\x80\xa6 [1-9]"), (16, rb"creati\xe2\x80\xa6 \xe2\x80\xa6 [1-9] s")],
)
def test_what_takes_over_a_second_is_told_on_a_terminal(environment: dict[str, str], columns: int, told: bytes) -> None:
    is_told = threading.Event()

    def late(_: Asked) -> bytes:
        is_told.wait(LIMIT_S)
        return reply(201, ROW)

    with open_stage() as stage:
        stage.play(late)
        person = {**environment, "WARREN_URL": stage.url, "WARREN_API_KEY": KEY}
        with open_screen("warren.cli", "create", environment=person, columns=columns) as screen:
            screen.sees(told)
            is_told.set()
            assert screen.ends() == 0
    assert re.search(rb"\r\x1b\[K" + ID.encode() + rb"\r\n$", screen.shown)


def test_nothing_is_told_to_a_program(cli: Cli, tmp_path: Path) -> None:
    with open_stage() as stage:
        stage.play(b"", b"", b"", reply(201, ROW))
        made = cli("create", "--json", WARREN_URL=stage.url, WARREN_API_KEY=KEY)
    assert (made.code, made.err) == (0, "")
    assert json.loads(made.out)["id"] == ID
