"""Clients that create, use, pause, resume and destroy sandboxes, all at once, and remember what they were told."""

import http.client
import random
import threading
import time
from collections.abc import Callable
from itertools import count

from contract.states import FINAL, State
from tests.faults import checks
from tests.faults.model import Change, Known
from tests.vm.client import Api, Reply

MAX_SANDBOXES = 5
SHAPE = {"image": "minimal", "memory_mb": 128, "disk_mb": 128}
# Only what the shell does itself: to start a program costs an emulated machine a tenth of a second.
MARK = "echo {0} >> marks && echo {0} >> /dev/shm/marks &&"
SHOW = """
    show() { while read -r line; do echo $line; done < $1; }
    show /proc/sys/kernel/random/boot_id; echo drive; show marks; echo memory; show /dev/shm/marks
"""
CUT_OFF = (OSError, http.client.HTTPException)
LEADS_TO = {Change.PAUSE: State.PAUSED, Change.RESUME: State.RUNNING, Change.DESTROY: State.STOPPED}
# What a client may be told that is nobody's fault: the state was not right, or there is no room.
REFUSALS = {409, 503}


class Crowd:
    """Everything that clients of one poold know together."""

    def __init__(self) -> None:
        self.known: dict[str, Known] = {}
        self.nonces: set[str] = set()
        self.faults: list[str] = []  # answers that are wrong
        self.answered = 0  # requests
        self.cut_off = 0
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._creating = 0
        self._began = time.monotonic()

    def living(self) -> list[Known]:
        return [one for one in list(self.known.values()) if not one.states <= FINAL]

    def client(self, api: Api, dice: random.Random, stop: threading.Event) -> None:
        """One client: does this and that until `stop`, or until it is cut off."""
        try:
            while not stop.is_set():
                self._do_something(api, dice)
        except CUT_OFF:
            self.cut_off += 1
            if not stop.wait(10):
                self.faults.append("a client was cut off, and poold was not killed")
                raise

    def _do_something(self, api: Api, dice: random.Random) -> None:
        living = self.living()
        if not living or (dice.random() < 0.25 and len(living) + self._creating < MAX_SANDBOXES):
            self.create(api)
            return
        one = dice.choice(living)
        # Mostly what makes sense, and now and then what does not.
        weights = [8, 4, 1, 1] if one.states == {State.RUNNING} else [2, 1, 8, 1]
        match dice.choices(["mark", *Change], weights)[0]:
            case Change() as change:
                self.change(api, one, change)
            case _:
                self.mark(api, one)

    def create(self, api: Api) -> None:
        with self._lock:
            nonce = f"n{next(self._numbers)}"
            self.nonces.add(nonce)
            self._creating += 1
        try:
            reply = api.post("/v1/sandboxes", **SHAPE, metadata={"nonce": nonce})
        finally:
            self._creating -= 1
        self.answered += 1
        if reply.status == 201:
            self.meet(reply.json["id"], nonce)
        elif reply.status not in REFUSALS:
            self.faults.append(f"create {nonce}: {reply}")

    def meet(self, sandbox_id: str, nonce: str) -> Known:
        """Get to know a sandbox that runs."""
        with self._lock:
            one = self.known[sandbox_id] = Known(sandbox_id)
            self._note(one, f"created for {nonce}")
            return one

    def change(self, api: Api, one: Known, change: Change) -> None:
        with self._lock:
            one.begin(change)
            self._note(one, f"{change} …")
        try:
            reply = self._send(api, one, change)
        except CUT_OFF:
            with self._lock:
                one.cut_off(change)
                self._note(one, f"{change}: cut off")
            raise
        self.answered += 1
        with self._lock:
            told = State(reply.json["state"]) if reply.status == 200 else None
            one.answered(change, told)
            self._note(one, f"{change}: {reply.status} {told or reply.body[:200]!r}")
            if told not in (None, LEADS_TO[change]) or (told is None and reply.status not in REFUSALS):
                self.faults.append(f"{change} of {one.id}: {reply}")

    def mark(self, api: Api, one: Known) -> None:
        """Have the sandbox write a mark, and see that it has all those that were written before."""
        with self._lock:
            mark = f"m{next(self._numbers)}"
            one.marks_sent.add(mark)
            written, begun, certain = set(one.marks), one.begun, one.is_certain and one.states == {State.RUNNING}
        reply = api.post(f"/v1/sandboxes/{one.id}/exec", cmd=["sh", "-c", MARK.format(mark) + SHOW])
        self.answered += 1
        with self._lock:
            self._note(one, f"{mark}: {reply.status} {reply.body[:120]!r}")
            if reply.status == 200 and reply.json["exit_code"] == 0:
                self._shown(one, {*written, mark}, reply)
                one.marks.add(mark)
            elif reply.status not in REFUSALS or (certain and begun == one.begun):
                self.faults.append(f"mark {mark} in {one.id}, which ran: {reply}")

    def look_in(self, api: Api, one: Known) -> None:
        """See that a sandbox that runs has its marks. Nobody else may be at work."""
        reply = api.post(f"/v1/sandboxes/{one.id}/exec", cmd=["sh", "-c", ">> marks; >> /dev/shm/marks;" + SHOW])
        with self._lock:
            self._note(one, f"looked in: {reply.status}")
            if reply.status == 200:
                self._shown(one, set(one.marks), reply)
            else:
                self.faults.append(f"{one.id} runs and does not answer: {reply}")

    def _shown(self, one: Known, acknowledged: set[str], reply: Reply) -> None:
        boot, _, rest = reply.json["stdout"].partition("drive\n")
        on_drive, _, in_memory = rest.partition("memory\n")
        shown = {"boot": boot.strip(), "drive": on_drive, "memory": in_memory}
        self.faults.extend(checks.marks(one, acknowledged, shown))
        one.boot = shown["boot"]

    def _send(self, api: Api, one: Known, change: Change) -> Reply:
        path = f"/v1/sandboxes/{one.id}"
        return api.call("DELETE", path) if change is Change.DESTROY else api.call("POST", f"{path}/{change}")

    def _note(self, one: Known, what: str) -> None:
        one.history.append(f"{time.monotonic() - self._began:8.3f} {what}")


def at_once(tasks: list[Callable[[], None]]) -> None:
    """Call all `tasks` at the same time, each in a thread, and wait for them."""
    threads = [threading.Thread(target=task) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def shown_history(crowd: Crowd, words: str) -> str:
    """The history of every sandbox that `words` name."""
    named = [one for one in crowd.known.values() if one.id in words]
    return "\n".join(f"{one.id}:\n  " + "\n  ".join(one.history[-60:]) for one in named)
