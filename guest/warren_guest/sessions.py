"""Who belongs to whom among the machine's processes, as /proc tells it; and killing all of them."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator

# A process may fork while the list is read. Each pass kills all that it finds, so a few are enough.
_PASSES = 8
_LOOK_S = 0.01
_KILL_S = 10.0


def _relations() -> Iterator[tuple[int, int, int]]:
    """`(pid, parent, session)` of every process that is not a zombie."""
    for name in os.listdir("/proc"):  # noqa: PTH208
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                text = file.read()
        except OSError:
            continue  # it is gone
        # The name in the second field may hold anything, but not a later ")" than its own.
        state, parent, _group, session = text[text.rindex(b")") + 2 :].split(maxsplit=4)[:4]
        if state not in (b"Z", b"X"):
            yield int(name), int(parent), int(session)


def _kill_all(find: Callable[[], list[int]]) -> None:
    for _ in range(_PASSES):
        found = find()
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def kill_session(session: int) -> None:
    """Kill every process of `session`: job control puts them in process groups of their own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(session, signal.SIGKILL)
    _kill_all(lambda: [pid for pid, _, sid in _relations() if sid == session])


class Marked:
    """All processes that were started with the variable `marker`, in whatever session they are now."""

    def __init__(self, marker: bytes) -> None:
        self._marker = marker
        self._stopped: list[int] = []

    def kill(self) -> None:
        _kill_all(lambda: [pid for pid, _, _ in _relations() if _has_marker(pid, self._marker)])

    def freeze(self) -> None:
        """One of them may start another while they are looked for; when a look finds no more, all stand still."""
        for _ in range(_PASSES):
            found = [pid for pid in _running() if pid not in self._stopped and _has_marker(pid, self._marker)]
            if not found:
                break
            for pid in found:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGSTOP)
                    self._stopped.append(pid)

    def thaw(self) -> None:
        """Those who were started last go on first: nobody then sees a child of its own standing still."""
        stopped, self._stopped = self._stopped, []
        for pid in sorted(stopped, reverse=True):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGCONT)


def _has_marker(pid: int, marker: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            return marker in file.read().split(b"\0")
    except OSError:
        return False  # it is gone, or another's


def _running() -> Iterator[int]:
    """Processes that nobody has stopped."""
    for pid, _, _ in _relations():
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            text = file.read()
            if text[text.rindex(b")") + 2 :][:1] not in (b"T", b"t"):
                yield pid


def kill_descendants() -> None:
    """Kill everything that this process started, and what that started."""
    _kill_all(_descendants)


def end_descendants(grace_s: float) -> tuple[int, int]:
    """Ask everything that this process started to end, and after `grace_s` kill the rest: how many of each there were.

    Raises `TimeoutError` if some cannot be killed: the kernel waits for something with them.
    """
    asked = _descendants()
    for number in (signal.SIGTERM, signal.SIGCONT):  # who stands still hears nothing
        for pid in asked:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
    give_up = time.monotonic() + grace_s
    while (left := _descendants()) and time.monotonic() < give_up:
        time.sleep(_LOOK_S)
    give_up = time.monotonic() + _KILL_S
    while _descendants():
        if time.monotonic() > give_up:
            raise TimeoutError(f"{len(_descendants())} processes cannot be killed")
        kill_descendants()
        time.sleep(_LOOK_S)
    return len(asked), len(left)


def _descendants() -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, parent, _ in _relations():
        children.setdefault(parent, []).append(pid)
    found = list(children.get(os.getpid(), ()))
    for pid in found:  # grows while it is walked
        found += children.get(pid, ())
    return found
