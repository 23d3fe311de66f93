"""The document for users says of every refusal why there is one."""

import re
from pathlib import Path

from contract.egress import ENDED
from poold.egress.proxy.refusals import _HELPS
from poold.net.rules import RULES

DOCUMENT = (Path(__file__).parents[3] / "docs" / "NETWORK.md").read_text()


def test_every_reason_is_in_the_document() -> None:
    table = DOCUMENT[DOCUMENT.index("| why |") :]
    told = {code for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for code in re.findall(r"`(.+?)`", row)}
    dropped = set(re.findall(r'log prefix "(.+?)"', RULES))
    assert dropped
    assert {*_HELPS, ENDED, *dropped, "idle", "cut", "no_destination"} <= told
