"""When a host is short of something, and that it does not change its mind at every breath."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poold.errors import HostFault, HostPressure
from poold.pressure import CEILINGS, FLOORS, Pressure, Readings, Threshold, Thresholds, judge, read

EVERYTHING = Thresholds(cpu_stalled=Threshold(90, 70), io_stalled=Threshold(80, 60))
KINDS = {name: what for name, (what, _) in (FLOORS | CEILINGS).items()}
WELL = Readings(
    memory_available_mb=8000,
    memory_total_mb=16000,
    memory_stalled=0.0,
    cpu_stalled=0.0,
    io_stalled=0.0,
    disk_free_mb=50_000,
    disk_free_inodes=1_000_000,
)

stalled = st.none() | st.floats(0, 100)
readings = st.builds(
    Readings,
    memory_available_mb=st.integers(0, 2000),
    memory_total_mb=st.integers(2000, 4000),
    memory_stalled=stalled,
    cpu_stalled=stalled,
    io_stalled=stalled,
    disk_free_mb=st.integers(0, 8000),
    disk_free_inodes=st.none() | st.integers(0, 40_000),
)
thresholds = st.sampled_from([Thresholds(), EVERYTHING])
verdicts = st.none() | st.frozensets(st.sampled_from(sorted(KINDS.values())), min_size=1).map(
    lambda kinds: Pressure(min(kinds), "", kinds)
)


def kinds(pressure: Pressure | None) -> frozenset[str]:
    return frozenset() if pressure is None else pressure.kinds


def worse(before: Readings, name: str, by: float) -> Readings:
    value = getattr(before, name)
    if value is None:
        return before
    return dataclasses.replace(before, **{name: value - by if name in FLOORS else value + by})


@given(readings, thresholds, verdicts, st.sampled_from(sorted(KINDS)), st.floats(0, 1000))
def test_a_worse_reading_never_ends_pressure(
    now: Readings, limits: Thresholds, was: Pressure | None, name: str, by: float
) -> None:
    assert kinds(judge(now, limits, was=was)) <= kinds(judge(worse(now, name, by), limits, was=was))


@given(readings, thresholds, verdicts)
def test_what_would_begin_pressure_keeps_it(now: Readings, limits: Thresholds, was: Pressure | None) -> None:
    assert kinds(judge(now, limits)) <= kinds(judge(now, limits, was=was))


@given(readings, thresholds, verdicts)
def test_the_same_readings_again_change_nothing(now: Readings, limits: Thresholds, was: Pressure | None) -> None:
    first = judge(now, limits, was=was)
    assert kinds(judge(now, limits, was=first)) == kinds(first)


@given(st.sampled_from(sorted(KINDS)), st.lists(st.floats(0, 1), min_size=2, max_size=30), st.booleans())
def test_between_the_two_limits_nothing_changes_however_it_moves(name: str, moves: list[float], begun: bool) -> None:
    threshold = getattr(EVERYTHING, name)
    before = judge(dataclasses.replace(WELL, **{name: _beyond(name, threshold)}), EVERYTHING) if begun else None
    was = before
    for share in moves:
        # Strictly inside: the limits themselves belong to the better side.
        value = threshold.begins + (threshold.ends - threshold.begins) * (0.01 + 0.98 * share)
        was = judge(dataclasses.replace(WELL, **{name: value}), EVERYTHING, was=was)
        assert kinds(was) == kinds(before)


def _beyond(name: str, threshold: Threshold) -> float:
    return threshold.begins - 1 if name in FLOORS else threshold.begins + 1


@given(readings, thresholds, verdicts)
def test_a_verdict_says_what_and_why(now: Readings, limits: Thresholds, was: Pressure | None) -> None:
    pressure = judge(now, limits, was=was)
    if pressure is not None:
        assert pressure.what in pressure.kinds
        assert pressure.message.startswith(f"this host is short of {pressure.what}: ")


@pytest.mark.parametrize("name", sorted(KINDS))
def test_each_reading_can_be_the_reason_and_ends_at_its_end(name: str) -> None:
    threshold = getattr(EVERYTHING, name)
    pressed = judge(dataclasses.replace(WELL, **{name: _beyond(name, threshold)}), EVERYTHING)
    assert pressed is not None
    assert (pressed.what, pressed.kinds) == (KINDS[name], {KINDS[name]})
    assert judge(dataclasses.replace(WELL, **{name: threshold.ends}), EVERYTHING, was=pressed) is None


@pytest.mark.parametrize("name", sorted(KINDS))
def test_what_has_no_threshold_or_no_reading_is_not_judged(name: str) -> None:
    threshold = getattr(EVERYTHING, name)
    pressed = dataclasses.replace(WELL, **{name: _beyond(name, threshold)})
    assert judge(pressed, dataclasses.replace(EVERYTHING, **{name: None})) is None
    assert judge(dataclasses.replace(WELL, **{name: None}), EVERYTHING) is None


def test_a_busy_host_is_not_a_short_one() -> None:
    assert judge(dataclasses.replace(WELL, cpu_stalled=100.0, io_stalled=100.0), Thresholds()) is None


def test_what_was_hidden_by_something_worse_is_still_there_when_that_ends() -> None:
    both = judge(dataclasses.replace(WELL, memory_available_mb=0, disk_free_mb=0), Thresholds())
    assert both is not None
    assert (both.what, both.kinds) == ("memory", {"memory", "disk"})
    still = judge(dataclasses.replace(WELL, disk_free_mb=2500), Thresholds(), was=both)
    assert still is not None
    assert still.kinds == {"disk"}


@pytest.mark.parametrize(
    "wrong",
    [{"memory_available_mb": Threshold(2, 1)}, {"memory_stalled": Threshold(1, 2)}, {"disk_free_mb": Threshold(2, 2)}],
)
def test_a_threshold_that_ends_on_the_worse_side_is_refused(wrong: dict[str, Threshold]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Thresholds(**wrong)


def test_this_host_can_be_read(tmp_path: Path) -> None:
    now = read(tmp_path)
    assert 0 < now.memory_available_mb <= now.memory_total_mb
    assert now.disk_free_mb > 0
    if Path("/proc/pressure/memory").exists():
        assert now.memory_stalled is not None
        assert 0 <= now.memory_stalled <= 100


MEMINFO = (
    "MemTotal:       16384000 kB\nMemFree:          100 kB\nMemAvailable:    2048000 kB\nHugePages_Total:       0\n"
)


def test_a_host_that_counts_no_stalls_has_none(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    now = read(tmp_path, proc=tmp_path)
    assert (now.memory_total_mb, now.memory_available_mb) == (16000, 2000)
    assert (now.memory_stalled, now.cpu_stalled, now.io_stalled) == (None, None, None)


def test_stalls_are_those_of_the_last_ten_seconds(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    (tmp_path / "pressure").mkdir()
    for number, name in enumerate(("memory", "cpu", "io")):
        lines = (
            f"some avg10={number}.25 avg60=9.00 avg300=9.00 total=99\nfull avg10=9.00 avg60=9.00 avg300=9.00 total=9\n"
        )
        (tmp_path / "pressure" / name).write_text(lines)
    now = read(tmp_path, proc=tmp_path)
    assert (now.memory_stalled, now.cpu_stalled, now.io_stalled) == (0.25, 1.25, 2.25)


@pytest.mark.parametrize("text", ["", "MemTotal: many kB\n", "MemTotal: kB\n"])
def test_a_host_that_makes_no_sense_is_a_fault_that_says_so(tmp_path: Path, text: str) -> None:
    (tmp_path / "meminfo").write_text(text)
    with pytest.raises(HostFault, match="reading the state of this host"):
        read(tmp_path, proc=tmp_path)
    with pytest.raises(HostFault):
        read(tmp_path / "no-such-folder")


def test_a_refusal_for_pressure_says_when_to_come_back() -> None:
    refusal = HostPressure("this host is short of memory: …", what="memory")
    assert (refusal.status, refusal.code, refusal.details["what"]) == (503, "host_pressure", "memory")
    assert refusal.retry_after_s > 0
