"""What proxies tell: taken as it is meant, whatever its length."""

from contract.egress import MAX_TEXT, Open, Row
from contract.network import MAX_PATHS, HostRule

PATHS = tuple(f"/{'x' * 100}/{number}/*" for number in range(MAX_PATHS))
RULE = str(HostRule("a.example", (80,), ("GET",), PATHS))
OPENED = {"id": 1, "sandbox": "sb-1", "at_ms": 1, "via": "http", "name": "a.example", "port": 80, "rule": RULE}


def test_a_rule_with_many_paths_is_clipped_and_no_reason_to_refuse_the_row() -> None:
    row = Row.read(OPENED | {"verdict": "allowed", "up": 0, "down": 0, "times": 1, "number": 1})
    for rule in (row.rule, Open.read(OPENED).rule):
        assert rule is not None
        assert len(rule) == MAX_TEXT
        assert rule[:-1] == RULE[: MAX_TEXT - 1]
    assert (row.name, row.port, row.id) == ("a.example", 80, 1)
