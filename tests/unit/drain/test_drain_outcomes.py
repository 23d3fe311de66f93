"""What became of a drain's sandboxes, as it is told in the store: one by one, and anybody's word."""

from pathlib import Path

import pytest

from poold.drain.outcomes import PREFIX, BadOutcomes, Outcome, Outcomes
from poold.store.folder import open_folder

ONE, TWO, DRAIN = "sb-aaaaaaaaaaaaaaaa", "sb-bbbbbbbbbbbbbbbb", "dr-1"


async def test_each_is_added_to_what_is_known(tmp_path: Path) -> None:
    async with open_folder(tmp_path) as store:
        outcomes = Outcomes(store)
        assert await outcomes.get(DRAIN) == {}
        await outcomes.put(DRAIN, ONE, Outcome("b", "running"))
        await outcomes.put(DRAIN, TWO, Outcome("b", "hibernated", "there is no room"))
        known = {ONE: Outcome("b", "running"), TWO: Outcome("b", "hibernated", "there is no room")}
        assert await outcomes.get(DRAIN) == known
        await outcomes.remove(DRAIN)
        assert await outcomes.get(DRAIN) == {}


@pytest.mark.parametrize(
    "data",
    [
        b"no",
        b"[]",
        b"{}",
        b'{"version": 2, "sandboxes": {}}',
        b'{"version": 1, "sandboxes": []}',
        b'{"version": 1, "sandboxes": {"../x": {"host": "b", "state": "running"}}}',
        b'{"version": 1, "sandboxes": {"sb-aaaaaaaaaaaaaaaa": 7}}',
        b'{"version": 1, "sandboxes": {"sb-aaaaaaaaaaaaaaaa": {"host": "B B", "state": "running"}}}',
        b'{"version": 1, "sandboxes": {"sb-aaaaaaaaaaaaaaaa": {"host": "b", "state": "\\u001b[2J"}}}',
    ],
)
async def test_what_makes_no_sense_is_refused_and_written_over(tmp_path: Path, data: bytes) -> None:
    async with open_folder(tmp_path) as store:
        await store.put(f"{PREFIX}{DRAIN}", data)
        with pytest.raises(BadOutcomes, match="drains/dr-1 makes no sense"):
            await Outcomes(store).get(DRAIN)
        await Outcomes(store).put(DRAIN, ONE, Outcome("b", "running"))
        assert await Outcomes(store).get(DRAIN) == {ONE: Outcome("b", "running")}
