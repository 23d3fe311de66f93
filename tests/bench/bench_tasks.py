"""How soon a task begins, how soon its events arrive, how many can be done in a minute: through a gateway, in microVMs.

python -m tests.bench.bench_tasks        Needs root; prints `name=value` lines.

Each figure stands beside what it is made of, measured in the same run: a task's beginning beside a sandbox with a
command in it, an event beside a line of a command that is followed through the same gateway in the same machine, tasks
beside sandboxes with a command. An event is stamped by the guest that tells it; how far the guest's clock is from the
host's is found out by asking it many times, of which the quickest answer counts.
"""

import contextlib
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from websockets.sync.client import connect

from tests.bench.host import open_host
from tests.gateway.cluster import write_pki
from tests.ports import free_port
from tests.tasks.client import Caller, Event
from tests.tasks.stage import OWNER, is_answering, open_gateway, write_key
from tests.vm.client import Sandbox, Terminal, until

IMAGE = "minimal"
BEGINNINGS = 5
EVENTS = 60
EVERY_S = 0.2
TASKS = 8
AT_ONCE = 4
ASKED = 200
BASE_UID = 340_000
CLOCK = 'import sys, time; print("be" + "gun", flush=True); [print(time.time_ns(), flush=True) for _ in sys.stdin]'
STAMPS = f"""import time
for _ in range({EVENTS}):
    time.sleep({EVERY_S})
    print(time.time_ns() // 1_000_000, flush=True)
"""


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)]


def say(name: str, value: float, digits: int = 2) -> None:
    print(f"{name}={value:.{digits}f}", flush=True)


@contextlib.contextmanager
def open_place() -> Iterator[Caller]:
    """A host with machines and a gateway before it, on loopback."""
    with tempfile.TemporaryDirectory(prefix="warren-bench-") as name, contextlib.ExitStack() as stack:
        folder, port = Path(name), free_port()
        write_pki(folder / "pki")
        (folder / "registry/keys").mkdir(parents=True)
        key = write_key(folder / "registry", OWNER)
        told: dict[str, Any] = {"POOLD_PKI": str(folder / "pki"), "POOLD_REGISTRY": str(folder / "registry")}
        host = stack.enter_context(
            open_host(pool=f"{IMAGE}=4-6", POOLD_DEFAULT_IMAGE=IMAGE, POOLD_BASE_UID=str(BASE_UID), **told)
        )
        stack.enter_context(open_gateway(folder, port=port))
        caller = Caller(host, port, key)
        until(lambda: is_answering(caller), limit_s=120)
        yield caller


def until_first_event(caller: Caller) -> float:
    began = time.perf_counter()
    task = caller.task("say hello")
    with task.follow() as events:
        next(event for event in events if event["kind"].startswith("agent."))
        took = time.perf_counter() - began
    task.ended()
    return took * 1000


def until_command(caller: Caller) -> float:
    began = time.perf_counter()
    with caller.sandbox() as sandbox:
        sandbox.sh("true")
        took = time.perf_counter() - began
    return took * 1000


def beginnings(caller: Caller) -> None:
    first, bare = [], []
    for _ in range(BEGINNINGS):
        caller.host.wait_until_warm()
        first.append(until_first_event(caller))
        caller.host.wait_until_warm()
        bare.append(until_command(caller))
    say("task_first_event_ms_p50", statistics.median(first))
    say("sandbox_and_exec_ms_p50", statistics.median(bare))
    say("task_first_event_vs_sandbox_and_exec", statistics.median(first) / statistics.median(bare))


def events(caller: Caller) -> None:
    """One machine: its clock, the events of the agent in it, and a command beside it."""
    program = STAMPS.strip().replace("\n", "\\n")
    # Without a repository nothing is looked at between two events.
    prompt = [f"edit stamps.py {program}", "run rm -rf .git", "ask Ready?", *[f"say x\nsleep {EVERY_S}"] * EVENTS]
    task = caller.task("\n".join([*prompt, "ask Done?"]), caps={"steps": 10 * EVENTS})
    asked = task.question("question")["id"]
    ahead_ms = clock(caller, task.view["sandbox"])
    with task.follow() as told:
        assert task.say("answer", asked, "yes").status == 200
        seen = [delay_ms(at_ms, ahead_ms) for at_ms in stamps(told)]
    asked = task.question("question")["id"]
    beside = lines(caller, task.view["sandbox"], ahead_ms)
    assert task.say("answer", asked, "yes").status == 200
    task.ended()
    for share in (50, 99):
        here, there = percentile(seen, share / 100), percentile(beside, share / 100)
        say(f"event_ms_p{share}", here)
        say(f"exec_line_ms_p{share}", there)
        say(f"event_vs_exec_line_p{share}", here / there)


def clock(caller: Caller, sandbox: str) -> float:
    """How many milliseconds the guest's clock is ahead of ours, as its quickest answer of many has it."""
    url = f"ws://127.0.0.1:{caller.port}/v1/sandboxes/{sandbox}/terminal"
    headers = {"Authorization": f"Bearer {caller.key}"}
    answers = []
    with connect(url, proxy=None, additional_headers=headers) as socket:
        terminal = Terminal(socket)
        terminal.told()
        terminal.types(f"stty -echo; exec python3 -c '{CLOCK}'\n".encode())
        terminal.sees(rb"begun")
        for _ in range(ASKED):
            before = time.time_ns()
            terminal.types(b"\n")
            seen = int(terminal.sees(rb"(\d{19})")[1])
            after = time.time_ns()
            answers.append((after - before, seen - (before + after) // 2))
        terminal.types(b"\x04")
    took, ahead = min(answers)
    say("clock_round_trip_ms", took / 1e6)
    return ahead / 1e6


def stamps(events: Iterable[Event]) -> Iterator[int]:
    """When each of them was told in the guest, as soon as it came."""
    return itertools.islice((event["data"]["at_ms"] for event in events if event["kind"] == "agent.message"), EVENTS)


def delay_ms(at_ms: int, ahead_ms: float) -> float:
    """How long ago it was, to a millisecond."""
    return time.time_ns() / 1e6 - at_ms + ahead_ms


def lines(caller: Caller, sandbox: str, ahead_ms: float) -> list[float]:
    """As many lines of a command whose output is followed."""
    with Sandbox(caller, sandbox, {}).follow("python3 /workspace/stamps.py") as told:
        return [delay_ms(int(data["data"]), ahead_ms) for kind, data in told if kind == "stdout"]


def a_minute(caller: Caller, one: Callable[[], object]) -> float:
    """How many of them are done in a minute, so many at once."""
    caller.host.wait_until_warm()
    began = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for done in [threads.submit(one) for _ in range(TASKS)]:
            done.result()
    return TASKS * 60 / (time.perf_counter() - began)


def throughput(caller: Caller) -> None:
    tasks = a_minute(caller, lambda: caller.task("say hello").ended())
    bare = a_minute(caller, lambda: until_command(caller))
    say("tasks_per_minute", tasks, 1)
    say("sandboxes_and_execs_per_minute", bare, 1)
    say("tasks_vs_sandboxes_and_execs", tasks / bare)


def main() -> None:
    with open_place() as caller:
        caller.host.wait_until_warm()
        events(caller)
        beginnings(caller)
        throughput(caller)


if __name__ == "__main__":
    main()
