"""A sandbox's root may do to its guest what it likes: it costs that sandbox only."""

import http.client
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.bench.host import Host
from tests.vm import traces
from tests.vm.client import Api, Reply, Sandbox, until

ANSWER_LIMIT_S = 30  # poold's patience with a guest that was asked
SILENCE_LIMIT_S = 45  # and with one in the middle of an answer
GROWTH_MB = 20

# The network card goes to another namespace, where the guest's port is free.
TAKE_OVER = """
address=$(ip -o -4 addr show dev eth0 | awk '{print $4}')
ip netns add mine && ip link set eth0 netns mine
ip -n mine link set eth0 up && ip -n mine addr add "$address" dev eth0
exec ip netns exec mine python3 /root/impostor.py
"""


@pytest.fixture(scope="module")
def taken_over(api: Api) -> Iterator[Sandbox]:
    """A sandbox in which somebody else answers instead of the guest."""
    with api.sandbox() as sandbox:
        impostor = Path(__file__).with_name("impostor.py").read_bytes()
        assert sandbox.put("/root/impostor.py", impostor).status == 200
        assert sandbox.put("/root/take-over", TAKE_OVER.encode()).status == 200
        sandbox.sh("setsid bash /root/take-over > /dev/null 2>&1 < /dev/null &", user="root")
        until(lambda: sandbox.get("/ready").body == b"ready")
        yield sandbox


@pytest.mark.parametrize("way", ["garbage", "endless-head", "endless-line", "endless-refusal", "odd-status", "hang-up"])
def test_an_answer_that_makes_no_sense_is_the_guests_fault_and_costs_nobody_else_anything(
    host: Host, taken_over: Sandbox, shared: Sandbox, way: str
) -> None:
    traces.forget_peak(host.process.pid)
    before = host.rss_mb()
    assert taken_over.get(f"/{way}").refusal == (502, "guest_failed")
    assert traces.peak_mb(host.process.pid) - before < GROWTH_MB
    assert shared.run(["echo", "alive"])["stdout"] == "alive\n"
    assert taken_over.view["state"] == "running"


def test_a_file_that_the_guest_cuts_short_is_cut_short_for_the_caller_too(taken_over: Sandbox) -> None:
    with pytest.raises(http.client.IncompleteRead):
        taken_over.get("/cut")


def test_frames_that_make_no_sense_are_an_error_and_never_an_exit_code(taken_over: Sandbox) -> None:
    assert taken_over.execute(["true"]).refusal == (502, "guest_failed")


def test_a_guest_that_says_no_more_is_given_up_in_time_while_others_answer_at_once(
    api: Api, taken_over: Sandbox, shared: Sandbox
) -> None:
    def timed(ask: Callable[[], Reply]) -> tuple[tuple[int, str], float]:
        began = time.monotonic()
        return ask().refusal, time.monotonic() - began

    with api.sandbox() as cut_off, ThreadPoolExecutor(4) as threads:
        # This command runs on when its network has gone, and nobody will ever hear what became of it.
        running = threads.submit(timed, lambda: cut_off.execute("ip link set eth0 down; sleep 1000", user="root"))
        until(lambda: not _answers(cut_off))
        asked = [
            threads.submit(timed, lambda: taken_over.get("/never")),
            threads.submit(timed, lambda: cut_off.execute(["true"])),
            threads.submit(timed, lambda: cut_off.get("/etc/hostname")),
        ]
        slowest = 0.0
        while not all(future.done() for future in (running, *asked)):
            began = time.monotonic()
            assert shared.run(["echo", "alive"])["stdout"] == "alive\n"
            slowest = max(slowest, time.monotonic() - began)
        for future, limit_s in [(running, SILENCE_LIMIT_S), *((future, ANSWER_LIMIT_S) for future in asked)]:
            refusal, seconds = future.result()
            assert refusal == (502, "guest_failed")
            assert seconds < limit_s + 10
        assert slowest < 5
        assert cut_off.view["state"] == "running"


def _answers(sandbox: Sandbox) -> bool:
    """Whether the guest answers somebody who has little patience."""
    try:
        return Sandbox(Api(sandbox.api.host, limit_s=2), sandbox.id, {}).get("/etc/hostname").status == 200
    except TimeoutError:
        return False
