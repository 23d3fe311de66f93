"""The table of routes. Handlers are thin: they parse, call a plain function, and stream what comes back."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import unquote

from warren_guest import (
    CONTRACT,
    VERSION,
    archive_routes,
    browser_routes,
    checkpoint_routes,
    file_routes,
    frames,
    layer_routes,
    port_routes,
    run_routes,
)
from warren_guest.errors import RefusedError
from warren_guest.events import CONTENT_TYPE as EVENT_STREAM
from warren_guest.events import Events
from warren_guest.fields import bad_field, query_flag, query_number
from warren_guest.git import routes as git_routes
from warren_guest.guest import Guest
from warren_guest.identity import Identity, NewIdentity, parse_identity
from warren_guest.logs import KEPT
from warren_guest.output import Reader
from warren_guest.processes import Process, Start, tell
from warren_guest.requests import parse_signal, parse_start, parse_terminal, parse_window, read_object
from warren_guest.server import Answer, AnyAnswer, Request, Stream
from warren_guest.wire import to_json

Handler = Callable[[Guest, Request], Awaitable[AnyAnswer]]
ProcessHandler = Callable[[Guest, Request, Process], Awaitable[AnyAnswer]]
H = TypeVar("H")
# What this guest can do that older ones of the same contract cannot.
FEATURES = ["run", "git", "archive", "browser", "checkpoint", "layer"]
# Numbers of events and bytes in requests.
_LARGE = 10**18 - 1


async def health(guest: Guest, _request: Request) -> Answer:
    identity = guest.identity
    facts = {"contract": CONTRACT, "version": VERSION, "generation": identity.generation, "id": identity.id}
    strain = {"processes": guest.processes.live, "quiet_ms": guest.processes.quiet_ms, "workspace": guest.workspace}
    frozen = {} if guest.frozen is None else {"frozen": True}
    return Answer(to_json({**facts, **strain, "features": FEATURES, **frozen}))


async def identify(guest: Guest, request: Request) -> Answer:
    answer = _become(guest.identity, guest.events, parse_identity(await read_object(request)))
    if guest.identity.generation > 1:
        # After the answer: a host waits for that, and those others for nothing.
        asyncio.get_running_loop().call_soon(guest.hang_up_but, request.connection)
    return answer


async def rehearse(guest: Guest, request: Request) -> Answer:
    """Go through a whole claim with an identity and events that nobody will ever see."""
    if guest.identity.generation:
        raise RefusedError("already_identified", f"this machine has generation {guest.identity.generation}")
    _become(Identity(guest.identity.machine), Events(), parse_identity(await read_object(request)))
    await guest.rehearse()
    return Answer()


def _become(identity: Identity, events: Events, new: NewIdentity) -> Answer:
    before_ns = _wall_clock_lead_ns()
    identity.adopt(new)
    events.emit("identity", {"generation": new.generation, "id": identity.id})
    if new.generation > 1:  # with its first identity nothing has run yet that the step could have confused
        events.emit("clock", {"step_ms": round((_wall_clock_lead_ns() - before_ns) / 1_000_000)})
    return Answer(b'{"generation":%d}' % new.generation)


def _wall_clock_lead_ns() -> int:
    """How far the wall clock is ahead of the one that nobody sets: it changes by the step of the wall clock."""
    return time.time_ns() - time.monotonic_ns()


async def logs(guest: Guest, request: Request) -> Answer:
    lines = query_number(request.head.query, "lines", 1, _LARGE) or KEPT
    return Answer(guest.log.last(lines).encode("utf-8", "replace"), content_type="text/plain; charset=utf-8")


async def tell_events(guest: Guest, request: Request) -> Stream:
    asked = dict(request.head.query)
    if "last-event-id" in request.head.headers:
        asked["after"] = request.head.headers["last-event-id"]
    return Stream(guest.events.tell(query_number(asked, "after", 0, _LARGE)), EVENT_STREAM)


async def start_process(guest: Guest, request: Request) -> AnyAnswer:
    detach = query_flag(request.head.query, "detach")
    start = parse_start(await read_object(request), guest, request.arrived)
    return await _start(guest, start, detach=detach)


async def start_terminal(guest: Guest, request: Request) -> AnyAnswer:
    return await _start(guest, parse_terminal(await read_object(request), guest, request.arrived), detach=False)


async def _start(guest: Guest, start: Start, *, detach: bool) -> AnyAnswer:
    process, reader = await guest.processes.start(start)
    if detach:
        reader.detach()
        return Answer(to_json(process.facts()), 201)
    return _frames(process, reader)


def _frames(process: Process, reader: Reader) -> Stream:
    return Stream(tell(process, reader), frames.CONTENT_TYPE, close=reader.detach)


async def list_processes(guest: Guest, _request: Request) -> Answer:
    return Answer(to_json({"processes": [process.facts() for process in guest.processes.all()]}))


async def show_process(_guest: Guest, _request: Request, process: Process) -> Answer:
    return Answer(to_json(process.facts()))


async def attach(_guest: Guest, request: Request, process: Process) -> Stream:
    after = query_number(request.head.query, "after", 0, _LARGE)
    return _frames(process, process.output.attach(after))


async def write_stdin(_guest: Guest, request: Request, process: Process) -> Answer:
    eof = query_flag(request.head.query, "eof")
    inlet = process.input(eof=eof)
    written = 0
    while pieces := await request.body.take():
        await process.write(pieces)
        written += sum(map(len, pieces))
    if eof:
        await inlet.end()
    return Answer(b'{"bytes":%d}' % written)


async def send_signal(_guest: Guest, request: Request, process: Process) -> Answer:
    fields = await read_object(request)
    number, group = parse_signal(fields), fields.flag("group")
    process.signal(number, group=group is not False)
    return Answer()


async def resize(_guest: Guest, request: Request, process: Process) -> Answer:
    window = parse_window(await read_object(request))
    process.resize(window.cols, window.rows)
    return Answer()


ROUTES: dict[str, dict[str, Handler]] = {
    "/health": {"GET": health},
    "/identity": {"POST": identify},
    "/rehearse": {"POST": rehearse},
    "/logs": {"GET": logs},
    "/events": {"GET": tell_events},
    "/run": {"GET": run_routes.show, "POST": run_routes.start},
    "/run/events": {"GET": run_routes.tell_events},
    "/run/input": {"POST": run_routes.take_input},
    "/run/stop": {"POST": run_routes.stop},
    "/processes": {"GET": list_processes, "POST": start_process},
    "/terminal": {"POST": start_terminal},
    "/files/content": {"GET": file_routes.read, "PUT": file_routes.put},
    "/files/stat": {"GET": file_routes.show},
    "/files/list": {"GET": file_routes.list_below},
    "/files/make": {"POST": file_routes.make},
    "/files/move": {"POST": file_routes.move},
    "/files/remove": {"POST": file_routes.remove},
    "/files/watch": {"GET": file_routes.watch},
    "/files/write": {"POST": file_routes.write},
    **git_routes.ROUTES,
    **archive_routes.ROUTES,
    **checkpoint_routes.ROUTES,
    **layer_routes.ROUTES,
    "/browser/open": {"POST": browser_routes.open_page},
    "/browser/click": {"POST": browser_routes.click},
    "/browser/type": {"POST": browser_routes.type_text},
    "/browser/evaluate": {"POST": browser_routes.evaluate},
    "/browser/close": {"POST": browser_routes.close},
}

# Below /processes/{pid}; the first one is the process itself.
PROCESS_ROUTES: dict[str, dict[str, ProcessHandler]] = {
    "": {"GET": show_process},
    "attach": {"GET": attach},
    "stdin": {"POST": write_stdin},
    "signal": {"POST": send_signal},
    "resize": {"POST": resize},
}


async def respond(guest: Guest, request: Request) -> AnyAnswer:
    """Answer any request. Raises `RefusedError` for what the contract refuses."""
    head = request.head
    if guest.frozen is not None and head.path not in layer_routes.OPEN:
        raise RefusedError("not_possible", "the machine is about to end: its files are being kept")
    methods = ROUTES.get(head.path)
    if methods is not None:
        return await _allowed(methods, head.method, head.path)(guest, request)
    parts = head.path.split("/")
    if parts[1] == "processes" and len(parts) in (3, 4):
        process_methods = PROCESS_ROUTES.get(parts[3] if len(parts) == 4 else "")
        if process_methods is not None:
            handler = _allowed(process_methods, head.method, head.path)
            return await handler(guest, request, guest.processes.find(_decoded(parts[2])))
    if parts[1] == "ports" and parts[3:] == ["connect"]:
        return await _allowed({"GET": port_routes.connect}, head.method, head.path)(guest, request, parts[2])
    raise RefusedError("not_found", f"there is no route {head.path[:200]}")


def _allowed(methods: dict[str, H], method: str, path: str) -> H:
    handler = methods.get(method)
    if handler is None:
        raise RefusedError("method_not_allowed", f"{path[:200]} takes {' and '.join(methods)}, not {method}")
    return handler


def _decoded(part: str) -> str:
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError as exc:
        raise bad_field("pid", f"{part[:80]} is not UTF-8") from exc
