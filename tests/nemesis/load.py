"""What goes on in the cluster all the time: tasks that are created and followed; `boxes` has the sandboxes.

Whoever gets no answer asks again, at any gateway, with the same Idempotency-Key; what was answered is acknowledged.
"""

import contextlib
import http.client
import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.cluster.cluster import GATEWAYS
from tests.nemesis.place import Place

TASKS = "/api/v1/tasks"
FINAL = ("task.completed", "task.failed", "task.stopped")
ANSWER_S = 20.0  # of patience with one request
SILENCE_S = 20.0  # a stream says something every 15 s
REST_S = 0.3
UNHEARD = (OSError, http.client.HTTPException, ValueError)
NOT_NOW = (404, 409, 429)  # besides 5xx: asked again. 404: of a host that is being taken over


@dataclass(frozen=True)
class Heard:
    at: float  # monotonic
    event: dict[str, Any]  # without `id`, which counts what happened on one host


@dataclass
class Followed:
    """A task that was acknowledged, and what a client has heard of it."""

    key: str
    id: str
    effects: Mapping[str, str]
    commits: tuple[str, ...]
    heard: list[Heard] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)  # what no client may be told
    connections: int = 0

    @property
    def last(self) -> int:
        return len(self.heard)

    @property
    def is_over(self) -> bool:
        return bool(self.heard) and self.heard[-1].event["kind"] in FINAL


@dataclass
class Load:
    place: Place
    seed: int
    at_once: int
    tasks: list[Followed] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    requests: int = 0
    unanswered: int = 0
    refused_tickets: int = 0
    stop: threading.Event = field(default_factory=threading.Event)  # nothing new from then on
    over: threading.Event = field(default_factory=threading.Event)  # nobody follows any more

    def call(
        self, chance: random.Random, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, Any] | None:
        """A request to a gateway; None if there was no whole answer."""
        self.requests += 1
        data = None if body is None else json.dumps(body).encode()
        told = {"Authorization": f"Bearer {self.place.key}", **{k.replace("_", "-"): v for k, v in headers.items()}}
        with contextlib.suppress(*UNHEARD), self.place.line(chance.choice(GATEWAYS), ANSWER_S) as line:
            line.request(method, path, data, told)
            answer = line.getresponse()
            content = answer.read()
            return answer.status, json.loads(content) if content else None
        self.unanswered += 1
        return None

    def create(self, chance: random.Random, path: str, body: Any, key: str) -> str | None:
        """Ask until it is acknowledged. None if it never was."""
        while not self.over.is_set():
            reply = self.call(chance, "POST", path, body, Idempotency_Key=key)
            if reply is not None and reply[0] in (201, 202):
                return str(reply[1]["id"])
            if reply is not None and not self.may_ask_again(*reply):
                self.wrong.append(f"a create of {key} got {reply}")
                return None
            self.over.wait(REST_S)
        return None

    def may_ask_again(self, status: int, told: Any) -> bool:
        """Whether an answer is about the moment, and not about what was asked."""
        if status == 401 and told["error"]["code"] == "bad_ticket":  # of a host whose clock is wrong
            self.refused_tickets += 1
            return True
        return status >= 500 or status in NOT_NOW

    # Tasks.

    def work(self, number: int) -> None:
        """One after the other, each followed to its end."""
        chance = random.Random(f"{self.seed}-work-{number}")
        turn = 0
        while not self.stop.is_set():
            turn += 1
            key = f"t{number}-{turn}"
            prompt, effects, commits = prompt_of(key, chance)
            body = {"agent": "mock", "prompt": prompt, "retries": 100, "metadata": {"key": key}}
            body["env"] = {"ONCE_URL": self.place.once_url}
            made = self.create(chance, TASKS, body, key)
            if made is not None:
                task = Followed(key, made, effects, commits)
                self.tasks.append(task)
                self.follow(task, chance)

    def follow(self, task: Followed, chance: random.Random) -> None:
        """With `Last-Event-ID`, again and again, until the last event."""
        while not task.is_over and not self.over.is_set():
            task.connections += 1
            with contextlib.suppress(*UNHEARD):
                self._listen(task, chance)
            self.over.wait(REST_S)

    def _listen(self, task: Followed, chance: random.Random) -> None:
        told = {"Authorization": f"Bearer {self.place.key}", "Accept": "text/event-stream"}
        if task.heard:
            told["Last-Event-ID"] = str(task.last)
        with self.place.line(chance.choice(GATEWAYS), SILENCE_S) as line:
            line.request("GET", f"{TASKS}/{task.id}/events", None, told)
            answer = line.getresponse()
            if answer.status != 200:
                said = json.loads(answer.read())
                if not self.may_ask_again(answer.status, said):
                    task.wrong.append(f"after {task.last}: {answer.status} {said}")
                return
            for event in events(answer):
                if event is not None:
                    self._hear(task, event)
                if task.is_over or self.over.is_set():
                    return

    def _hear(self, task: Followed, event: dict[str, Any]) -> None:
        event.pop("id", None)
        if event["seq"] != task.last + 1:
            task.wrong.append(f"event {event['seq']} ({event['kind']}) came after {task.last}")
            return
        task.heard.append(Heard(time.monotonic(), event))

    @contextlib.contextmanager
    def going(self, *others: Callable[[], None]) -> Iterator[None]:
        """All of it, and others, during the block. After it nobody asks anything any more."""
        threads = [threading.Thread(target=self.work, args=(number,)) for number in range(self.at_once)]
        threads += [threading.Thread(target=other) for other in others]
        for thread in threads:
            thread.start()
        self._threads = threads
        try:
            yield
        finally:
            self.stop.set()
            self.over.set()
            for thread in threads:
                thread.join()

    def is_done(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)


def events(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any] | None]:
    """Those of a stream that are whole, and None for a comment. What is cut in the middle was not told."""
    data = b""
    while line := answer.readline():
        if line.startswith(b"data: "):
            data = line[6:]
        elif line == b"\n" and data:
            yield json.loads(data)
            data = b""
        elif line.startswith(b":"):
            yield None


def prompt_of(key: str, chance: random.Random) -> tuple[str, dict[str, str], tuple[str, ...]]:
    """Several steps, with effects and commits between them; those effects and commits."""
    lines, effects, commits = [f"Do {key}."], {}, []
    for part in range(chance.randrange(2, 5)):
        name, text, commit = f"{key}-{part}", f"by {key}", f"Part {part}"
        lines += [f"append log.txt {part}", f"once {name} {text}", f"run echo {part}", f"commit {commit}"]
        lines += [f"sleep {chance.choice((0.2, 1, 2, 4))}"]
        effects[name] = text
        commits.append(commit)
    return "\n".join(lines), effects, tuple(commits)
