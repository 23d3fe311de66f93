"""A caller of tasks, as anybody is one: through a gateway, with a key. Safe to use from many threads."""

import contextlib
import http.client
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from tests.bench.host import Host
from tests.egress.spaces import Space
from tests.vm.client import Api, Body, Reply, until

LIMIT_S = 300.0  # of patience with a task: its machine is emulated, on a host that does other things too
TASKS = "/api/v1/tasks"
FINAL = ("completed", "failed", "stopped")
ENDS = tuple(f"task.{state}" for state in FINAL)
Event = dict[str, Any]


class Line(http.client.HTTPConnection):
    """A connection to a port of loopback, of our own or of another network namespace."""

    def __init__(self, space: Space | None, port: int, limit_s: float) -> None:
        super().__init__("127.0.0.1", port, timeout=limit_s)
        self._space = space

    def connect(self) -> None:
        self.sock = self._dial() if self._space is None else self._space.do(self._dial)

    def _dial(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), self.timeout)


class Caller(Api):
    """One key at the gateway. What it knows of sandboxes is the same as at a host."""

    def __init__(self, host: Host, port: int, key: str, space: Space | None = None) -> None:
        super().__init__(host)
        self.port, self.key = port, key
        self._space = space

    def line(self, limit_s: float = LIMIT_S) -> Line:
        return Line(self._space, self.port, limit_s)

    @contextlib.contextmanager
    def open(
        self, method: str, path: str, body: Body | None = None, headers: Mapping[str, str] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        told = {"Authorization": f"Bearer {self.key}", **(headers or {})}
        with contextlib.closing(self.line()) as line:
            with contextlib.suppress(BrokenPipeError):  # the refusal of a long body is there all the same
                line.request(method, path, body, told)
            with line.getresponse() as answer:
                yield answer

    def ask_task(self, headers: Mapping[str, str] | None = None, **fields: Any) -> Reply:
        """A request for a task, whatever comes of it. Small, and nothing of it stays, unless it says otherwise."""
        return self.call("POST", TASKS, json.dumps({"agent": "mock", **fields}).encode(), headers)

    def task(self, prompt: str = "Do nothing.", **fields: Any) -> "Task":
        reply = self.ask_task(prompt=prompt, **fields)
        assert reply.status == 202, reply
        assert reply.headers["location"] == f"{TASKS}/{reply.json['id']}"
        return Task(self, reply.json["id"])

    def begin(self, asked: Mapping[str, Mapping[str, Any]]) -> dict[str, "Task"]:
        """Several tasks side by side, by the names that a test has for them: most of their time machines wait."""
        return {name: self.task(**fields) for name, fields in asked.items()}

    def tasks(self, **query: Any) -> list[dict[str, Any]]:
        reply = self.call("GET", f"{TASKS}?{urlencode(query)}")
        assert reply.status == 200, reply
        found: list[dict[str, Any]] = reply.json["tasks"]
        return found


@dataclass(frozen=True)
class Task:
    caller: Caller
    id: str

    @property
    def path(self) -> str:
        return f"{TASKS}/{self.id}"

    def get(self, what: str = "", **headers: str) -> Reply:
        reply = self.caller.call("GET", self.path + what, headers=headers)
        assert reply.status in (200, 206), (what, reply)
        return reply

    @property
    def view(self) -> dict[str, Any]:
        view: dict[str, Any] = self.get().json
        return view

    def do(self, what: str, **fields: Any) -> Reply:
        return self.caller.post(f"{self.path}/{what}", **fields)

    def done(self, what: str, **fields: Any) -> dict[str, Any]:
        """What the task is after something that was done to it."""
        reply = self.do(what, **fields)
        assert reply.status in (200, 202), (what, fields, reply)
        view: dict[str, Any] = reply.json
        return view

    def say(self, kind: str, question: str | None = None, text: str = "") -> Reply:
        fields = {"kind": kind} | ({"id": question} if question else {}) | ({"text": text} if text else {})
        return self.do("input", **fields)

    def until(self, is_so: Callable[[dict[str, Any]], Any], limit_s: float = LIMIT_S) -> dict[str, Any]:
        """The task as soon as it is as it should be. A task that has ended does not change any more."""

        def look() -> dict[str, Any] | None:
            view = self.view
            if is_so(view):
                return view
            assert view["phase"] != "done", self.story(view)
            return None

        found = until(look, limit_s=limit_s)
        assert found is not None
        return found

    def ended(self, state: str = "completed", limit_s: float = LIMIT_S) -> dict[str, Any]:
        """The task after its end, which is this one, when nothing is left to be done for it."""
        view = self.until(lambda view: view["state"] in FINAL, limit_s)
        assert view["state"] == state, self.story(view)
        return self.until(lambda view: view["phase"] == "done", limit_s)

    def question(self, kind: str, limit_s: float = LIMIT_S) -> dict[str, Any]:
        """The question of this kind that is open, as soon as it is."""
        view = self.until(lambda view: [each for each in view["waiting"] if each["kind"] == kind], limit_s)
        found: dict[str, Any] = next(each for each in view["waiting"] if each["kind"] == kind)
        return found

    def event(self, kind: str, **data: Any) -> Event:
        """The first event of this kind with this in its data, as soon as it was told."""

        def found() -> Event | None:
            for event in self.events():
                if event["kind"] == kind and data.items() <= event["data"].items():
                    return event
            return None

        event = until(found, limit_s=LIMIT_S)
        assert event is not None
        return event

    def events(self, after: int = 0) -> list[Event]:
        """All that was told up to now."""
        found: list[Event] = []
        while True:
            page = self.get(f"/events?after={found[-1]['seq'] if found else after}&limit=1000").json["events"]
            found += page
            if not page:
                return found

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.events()]

    def of(self, kind: str) -> list[Any]:
        """What the events of one kind say."""
        return [event["data"] for event in self.events() if event["kind"] == kind]

    def steps(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while True:
            page = self.get(f"/steps?after={found[-1]['number'] if found else 0}&limit=200").json["steps"]
            found += page
            if not page:
                return found

    def story(self, view: dict[str, Any]) -> str:
        """For whoever has to find out what went wrong."""
        told = [f"{event['seq']} {event['kind']} {str(event['data'])[:400]}" for event in self.events()[-40:]]
        return "\n".join([f"{self.id} is {view['state']}: {view['reason']}", *told])

    @contextlib.contextmanager
    def follow(self, after: int | None = None, resumed: int | None = None) -> Iterator[Iterator[Event]]:
        """Its events as they come. `resumed` is what a browser says that comes back."""
        headers = {"Accept": "text/event-stream"} | ({} if resumed is None else {"Last-Event-ID": str(resumed)})
        query = "" if after is None else f"?after={after}"
        with self.caller.open("GET", f"{self.path}/events{query}", headers=headers) as answer:
            assert answer.status == 200, answer.read()
            yield told(answer)


def told(lines: Iterator[bytes] | http.client.HTTPResponse) -> Iterator[Event]:
    """Server-sent events; each one's number and kind are those of its data."""
    seq, kind = "", ""
    for line in lines:
        name, _, value = line.rstrip(b"\n").partition(b": ")
        if name == b"id":
            seq = value.decode()
        elif name == b"event":
            kind = value.decode()
        elif name == b"data":
            event: Event = json.loads(value)
            assert (str(event["seq"]), event["kind"]) == (seq, kind)
            yield event
