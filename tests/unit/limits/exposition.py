"""A strict reader of Prometheus's text format, written from its description and not from what poold writes."""

import math
import re
from dataclasses import dataclass, field

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
HELP = re.compile(rf"# HELP (?P<name>{NAME}) (?P<text>(?:[^\\\n]|\\\\|\\n)*)")
TYPE = re.compile(rf"# TYPE (?P<name>{NAME}) (?P<kind>counter|gauge|histogram)")
SAMPLE = re.compile(rf"(?P<name>{NAME})(?:\{{(?P<labels>.*)\}})? (?P<value>[^ ]+)")
LABEL = re.compile(r'(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)="(?P<value>(?:[^"\\\n]|\\\\|\\"|\\n)*)"(?:,(?=.)|$)')
VALUE = re.compile(r"[+-]?Inf|NaN|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")

Labels = tuple[tuple[str, str], ...]


@dataclass
class Family:
    name: str
    help: str
    kind: str = ""
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)


def parse(text: bytes) -> dict[str, Family]:
    """All families. Whatever is not as the format wants it is an `AssertionError`."""
    lines = text.decode("utf-8").split("\n")
    assert lines.pop() == "", "the last line has no end"
    families: dict[str, Family] = {}
    now: Family | None = None
    for line in lines:
        if found := HELP.fullmatch(line):
            assert found["name"] not in families, f"told twice of {found['name']}"
            assert now is None or now.kind, f"{line!r} comes before the TYPE of the one before"
            now = families[found["name"]] = Family(found["name"], found["text"])
        elif found := TYPE.fullmatch(line):
            assert now is not None
            assert (found["name"], now.kind, now.samples) == (now.name, "", {}), line
            now.kind = found["kind"]
        else:
            assert now is not None, line
            _sample(line, now)
    for family in families.values():
        if family.kind == "histogram":
            _check_histogram(family)
    return families


def _sample(line: str, family: Family) -> None:
    found = SAMPLE.fullmatch(line)
    assert found is not None, line
    suffixes = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
    assert found["name"] in [family.name + suffix for suffix in suffixes], line
    assert VALUE.fullmatch(found["value"]), line
    key = (found["name"], _labels(found["labels"] or ""))
    assert key not in family.samples, f"told twice: {line}"
    value = float(found["value"])
    assert family.kind != "counter" or value >= 0
    family.samples[key] = value


def _labels(text: str) -> Labels:
    labels, at = [], 0
    while at < len(text):
        found = LABEL.match(text, at)
        assert found is not None, text
        labels.append((found["name"], re.sub(r"\\(.)", lambda pair: {"n": "\n"}.get(pair[1], pair[1]), found["value"])))
        at = found.end()
    names = [name for name, _ in labels]
    assert len(names) == len(set(names)), text
    return tuple(labels)


def _check_histogram(family: Family) -> None:
    series: dict[Labels, list[tuple[float, float]]] = {}
    for (name, labels), value in family.samples.items():
        if name.endswith("_bucket"):
            bound = dict(labels)["le"]
            series.setdefault(tuple(pair for pair in labels if pair[0] != "le"), []).append((float(bound), value))
    for labels, buckets in series.items():
        assert buckets == sorted(buckets), f"{family.name}: bounds or counts fall"
        assert buckets[-1][0] == math.inf, f"{family.name} has no +Inf"
        assert buckets[-1][1] == family.samples[f"{family.name}_count", labels]
        assert (f"{family.name}_sum", labels) in family.samples
    counted = [labels for name, labels in family.samples if name.endswith("_count")]
    assert sorted(counted) == sorted(series)
