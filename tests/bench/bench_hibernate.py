"""Hibernation of a machine with 1 GiB of memory, 200 MB of them touched, beside the plain way: all of it, zstd -1.

python -m tests.bench.bench_hibernate [rounds]        Needs root; prints `name=value` lines.

`hibernate_s` is from the request of a running sandbox to the answer: paused, in the store, read back, freed.
`resume_s` is on another host, which has neither the machine nor its golden memory, from the request to the guest's
answer. `files_s`, `files_bytes` and `files_resume_s` are of the files alone of another sandbox like it, whose programs
hold as much; the host that it is resumed on has made a machine of that shape before, as hosts have.
The plain way has the same memory and the same disk in the same run: the files that a machine would have
as a whole (memory with the changed pages in it, devices, disk) through `zstd -1` on all processors into a folder,
synced, and out again; nothing is read back, sent or started there.
"""

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from poold.engines import sparse
from poold.engines.qemu import pages
from tests.bench import bench_pause
from tests.bench.host import Host, UnixConnection, open_host

ROUNDS = 3
IMAGE = "minimal"
MEMORY_MB = 1024
TOUCHED_MB = 200
# Half of it random, half of it as memory of programs is: it can be compressed.
HOLD = (
    f"import os, time; held = [os.urandom({TOUCHED_MB // 2} << 20),"
    f" bytearray((b'%032d' * 32768 % tuple(range(32768))) * {TOUCHED_MB // 2})];"
    " print('held', flush=True); time.sleep(100000)"
)


@contextlib.contextmanager
def host(number: int, store: Path) -> Iterator[Host]:
    variables = {"POOLD_DEFAULT_IMAGE": IMAGE, "POOLD_SLOTS": "4", "POOLD_BASE_UID": str(300_000 + 10 * number)}
    with open_host(pool="", POOLD_STORE=str(store), **variables) as found:
        found.wait_until_serving()
        yield found


def take_over(second: Host, key: str) -> None:
    connection = UnixConnection(second.socket, 120)
    with contextlib.closing(connection):
        connection.request("POST", "/admin/hibernated", f'{{"manifest": "{key}"}}'.encode())
        reply = connection.getresponse()
        assert reply.status == 200, reply.read()


def files_alone(first: Host) -> tuple[str, dict[str, float]]:
    """Another sandbox into the store, its files alone: its path, and what it took."""
    path = made(first)
    began = time.perf_counter()
    status, view = first.call("POST", f"{path}/hibernate", {"kind": "files"})
    assert (status, view["state"]) == (200, "hibernated"), view
    return path, {"files_s": time.perf_counter() - began, "files_bytes": view["hibernated"]["bytes"]}


def made(found: Host) -> str:
    status, sandbox = found.call("POST", "/v1/sandboxes", {"memory_mb": MEMORY_MB})
    assert status == 201, sandbox
    path = f"/v1/sandboxes/{sandbox['id']}"
    bench_pause.hold(found, path, HOLD)
    return path


def asked_s(found: Host, *calls: tuple[str, str]) -> float:
    return bench_pause.asked_ms(found, *calls) / 1000


def whole_files(folder: Path, target: Path) -> None:
    """A paused machine's memory as a whole, its devices and its disk, as copies."""
    fd = os.open(target / "memory", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        sparse.copy(folder / "memory", fd)
        with pages.open_pages(folder / "saved" / "pages", MEMORY_MB << 20) as content:
            content.put(content.batches(), lambda pieces, data: _put(fd, pieces, data), lambda _done, _of: None)
    finally:
        os.close(fd)
    sparse.clone(folder / "drive", target / "drive", mode=0o600, uid=0)
    (target / "devices").write_bytes((folder / "saved" / "devices").read_bytes())


def _put(fd: int, pieces: object, data: memoryview) -> None:
    at = 0
    for offset, count in pieces:  # type: ignore[attr-defined]
        os.pwrite(fd, data[at : at + count], offset)
        at += count


def plain(folder: Path) -> dict[str, float]:
    """The plain way with a paused machine's folder: seconds there and back, and bytes."""
    with tempfile.TemporaryDirectory(prefix="warren-plain-") as name:
        place = Path(name)
        whole_files(folder, place)
        files = [str(place / each) for each in ("memory", "drive", "devices")]
        began = time.perf_counter()
        subprocess.run(["zstd", "-q", "-1", "-T0", *files], check=True)
        for each in files:
            sparse.sync(Path(f"{each}.zst"))
        packed = time.perf_counter()
        size = sum(Path(f"{each}.zst").stat().st_size for each in files)
        for each in files:
            Path(each).unlink()
        again = time.perf_counter()
        subprocess.run(["zstd", "-q", "-d", *(f"{each}.zst" for each in files)], check=True)
        return {"plain_s": packed - began, "plain_back_s": time.perf_counter() - again, "plain_bytes": float(size)}


def one_round(number: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="warren-store-") as name:
        store = Path(name)
        with host(2 * number, store) as first:
            path = made(first)
            asked_s(first, ("POST", f"{path}/pause"))
            (folder,) = (each for each in (first.state / "qemu" / "machines").iterdir() if (each / "saved").is_dir())
            found = plain(folder)
            asked_s(first, ("POST", f"{path}/resume"), ("GET", f"{path}/health"))
            found["hibernate_s"] = asked_s(first, ("POST", f"{path}/hibernate"))
            found["hibernate_bytes"] = first.call("GET", path)[1]["hibernated"]["bytes"]
            files_path, told = files_alone(first)
            found |= told
        found["golden_bytes"] = sum(each.stat().st_size for each in store.glob("goldens/*/*/*"))
        keys = {each.parts[-3]: str(each.relative_to(store)) for each in store.glob("hibernated/*/*/manifest")}
        with host(2 * number + 1, store) as second:
            take_over(second, keys[path.rpartition("/")[2]])
            found["resume_s"] = asked_s(second, ("POST", f"{path}/resume"), ("GET", f"{path}/health"))
            second.call("DELETE", path)
            second.call("DELETE", made(second))
            take_over(second, keys[files_path.rpartition("/")[2]])
            calls = ("POST", f"{files_path}/resume"), ("GET", f"{files_path}/health")
            found["files_resume_s"] = asked_s(second, *calls)
            second.call("DELETE", files_path)
    return found


def main(rounds: int) -> None:
    figures: defaultdict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        for name, value in one_round(number).items():
            figures[name].append(value)
    medians = {name: statistics.median(each) for name, each in figures.items()}
    for name, median in medians.items():
        print(f"{name}={median:.0f}" if name.endswith("_bytes") else f"{name}={median:.2f}")
    print(f"hibernate_bytes_vs_plain={medians['hibernate_bytes'] / medians['plain_bytes']:.2f}")
    print(f"hibernate_s_vs_plain={medians['hibernate_s'] / medians['plain_s']:.2f}")
    print(f"files_bytes_vs_plain={medians['files_bytes'] / medians['plain_bytes']:.5f}")
    print(f"files_s_vs_plain={medians['files_s'] / medians['plain_s']:.2f}")
    print(f"files_resume_s_vs_plain={medians['files_resume_s'] / medians['plain_back_s']:.2f}")
    print(f"resume_s_vs_plain={medians['resume_s'] / medians['plain_back_s']:.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
