"""How soon a machine that was killed is known to be dead: by its sandbox, and by a command that was under way in it.

python -m tests.bench.bench_deaths [rounds]        Needs root; prints `name=value` lines.

Promised is a second. Both are timed from the kill: until the sandbox is in `error`, and until the command has its own.
"""

import contextlib
import http.client
import json
import os
import signal
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from tests.bench.host import Host, open_host
from tests.vm import traces

ROUNDS = 20
IMAGE = "minimal"
LIMIT_S = 30.0
LOOK_S = 0.005


def followed_s(host: Host, path: str) -> tuple[float, dict[str, str]]:
    """When a command that runs until its machine dies was told so, and what it was told."""
    connection = http.client.HTTPConnection("127.0.0.1", host.port, timeout=LIMIT_S)
    ticket = host.gateway.headers("POST", f"{path}/exec")
    with contextlib.closing(connection):
        connection.request("POST", f"{path}/exec", json.dumps({"cmd": ["sleep", "1000"]}), ticket)
        reply = json.loads(connection.getresponse().read())
    return time.perf_counter(), reply["error"]


def failed_s(host: Host, path: str) -> float:
    """When the sandbox is in `error`."""
    give_up = time.perf_counter() + LIMIT_S
    while host.call("GET", path)[1]["state"] != "error":
        assert time.perf_counter() < give_up, f"{path} is not in error after {LIMIT_S} s"
        time.sleep(LOOK_S)
    return time.perf_counter()


def died_ms(host: Host, threads: ThreadPoolExecutor) -> tuple[float, float]:
    """The milliseconds from a kill to the sandbox's error and to the command's."""
    status, sandbox = host.call("POST", "/v1/sandboxes", {"image": IMAGE})
    assert status == 201, sandbox
    path = f"/v1/sandboxes/{sandbox['id']}"
    try:
        command = threads.submit(followed_s, host, path)
        while "sleep" not in host.call("POST", f"{path}/exec", {"cmd": ["ps", "-e"]})[1]["stdout"]:
            assert not command.done(), command.result()
        pid = traces.machines(host.state)[traces.ledger_machine(host.state, sandbox["id"])]
        began = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        failed = failed_s(host, path)
        told, error = command.result(LIMIT_S)
        assert error["code"] == "machine_died", error
    finally:
        host.call("DELETE", path)
    return (failed - began) * 1000, (told - began) * 1000


def main(rounds: int) -> None:
    with open_host(pool="", POOLD_DEFAULT_IMAGE=IMAGE, POOLD_SLOTS="2") as host, ThreadPoolExecutor(1) as threads:
        host.wait_until_serving()
        times = [died_ms(host, threads) for _ in range(rounds)]
    for name, each in zip(("death_noticed", "death_told"), zip(*times, strict=True), strict=True):
        print(f"{name}_ms_p50={statistics.median(each):.1f}")
        print(f"{name}_ms_max={max(each):.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
