"""How long a pause and a resume take, of a small machine and of a large one, with as much memory in use in both.

python -m tests.bench.bench_pause [rounds]        Needs root; prints `name=value` lines.

Through poold's HTTP interface, interleaved in one run. A pause ends when it is answered; a resume ends when the guest
has answered `/health` after it.
"""

import contextlib
import http.client
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator

from tests.bench.host import Host, open_host

ROUNDS = 15
IMAGE = "minimal"
SIZES_MB = (256, 1024)
TOUCHED_MB = 50
# Random, so that nothing can be gained by leaving pages of zeros out; it says when it has all of it, and holds it.
HOLD = f"import os, time; held = os.urandom({TOUCHED_MB} << 20); print('held', flush=True); time.sleep(100000)"


@contextlib.contextmanager
def holding(host: Host, memory_mb: int) -> Iterator[str]:
    """The path of a sandbox in which a process holds memory, during the block."""
    status, sandbox = host.call("POST", "/v1/sandboxes", {"image": IMAGE, "memory_mb": memory_mb})
    assert status == 201, sandbox
    path = f"/v1/sandboxes/{sandbox['id']}"
    try:
        hold(host, path)
        yield path
    finally:
        host.call("DELETE", path)


def hold(host: Host, path: str, program: str = HOLD) -> None:
    """Start the process that holds memory, and leave it when it does."""
    connection = http.client.HTTPConnection("127.0.0.1", host.port, timeout=120)
    body = json.dumps({"cmd": ["python3", "-c", program]}).encode()
    with contextlib.closing(connection):
        ticket = host.gateway.headers("POST", f"{path}/exec")
        connection.request("POST", f"{path}/exec", body, {"Accept": "text/event-stream", **ticket})
        with connection.getresponse() as answer:
            if not any(b"held" in line for line in answer):
                raise RuntimeError(f"the memory of {path} was not filled")


def asked_ms(host: Host, *calls: tuple[str, str]) -> float:
    """The milliseconds until the last of `calls` is answered."""
    began = time.perf_counter()
    for method, path in calls:
        status, reply = host.call(method, path)
        assert status == 200, reply
    return (time.perf_counter() - began) * 1000


def measure(host: Host, rounds: int) -> dict[str, float]:
    """The median of each figure."""
    times: defaultdict[str, list[float]] = defaultdict(list)
    with contextlib.ExitStack() as stack:
        paths = {size: stack.enter_context(holding(host, size)) for size in SIZES_MB}
        for _ in range(rounds):
            for size, path in paths.items():
                times[f"pause_{size}"].append(asked_ms(host, ("POST", f"{path}/pause")))
                resumed = asked_ms(host, ("POST", f"{path}/resume"), ("GET", f"{path}/health"))
                times[f"resume_{size}"].append(resumed)
    return {name: statistics.median(each) for name, each in times.items()}


def main(rounds: int) -> None:
    # No machine is made warm while we measure: no pool.
    with open_host(pool="", POOLD_DEFAULT_IMAGE=IMAGE, POOLD_SLOTS="4") as host:
        host.wait_until_serving()
        medians = measure(host, rounds)
    for name, median in medians.items():
        print(f"{name}_ms_p50={median:.1f}")
    small, large = SIZES_MB
    for what in ("pause", "resume"):
        print(f"{what}_{large}_vs_{small}={medians[f'{what}_{large}'] / medians[f'{what}_{small}']:.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
