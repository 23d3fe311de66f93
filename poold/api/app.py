"""The routes of poold, and who may go through each: by tickets on the port, and the operator everywhere."""

import secrets
from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Route

from poold.api import (
    admin,
    browser,
    commands,
    drains,
    files,
    network,
    observe,
    owners,
    ports,
    sandboxes,
    streams,
    task_events,
    tasks,
    terminal,
    workspaces,
)
from poold.api.doors import ADMIN, ANYONE, ATTACH, HOST, PORT, READ, TERMINAL, WRITE, Door, SocketDoor
from poold.api.middleware import Requests
from poold.api.replies import EXCEPTION_HANDLERS
from poold.api.services import Services
from poold.api.tickets import ByOperator, ByTicket

ONE = "/v1/sandboxes/{sandbox_id}"
TASK = "/v1/tasks/{task_id}"
OWNER = "/v1/owners/{owner}"
WORKSPACE = "/v1/workspaces/{workspace}"

HEALTH = Door("GET", "/healthz", observe.healthz, ANYONE)

ROUTES: Sequence[Door | SocketDoor] = (
    HEALTH,
    Door("GET", "/readyz", observe.readyz, ADMIN),
    Door("GET", "/metrics", observe.metrics, ADMIN),
    Door("GET", "/v1/host", observe.host, HOST),
    Door("POST", "/v1/sandboxes", sandboxes.create, WRITE, makes_one=True),
    Door("GET", "/v1/sandboxes", sandboxes.listed, READ),
    Door("GET", ONE, sandboxes.get, READ),
    Door("DELETE", ONE, sandboxes.destroy, WRITE),
    Door("POST", f"{ONE}/pause", sandboxes.pause, WRITE),
    Door("POST", f"{ONE}/resume", sandboxes.resume, WRITE),
    Door("POST", f"{ONE}/hibernate", sandboxes.hibernate, WRITE),
    Door("GET", f"{ONE}/drive", sandboxes.drive, READ),
    Door("POST", f"{ONE}/timeout", sandboxes.timeout, WRITE),
    Door("GET", f"{ONE}/health", sandboxes.health, READ),
    Door("GET", f"{ONE}/logs", sandboxes.logs, READ),
    Door("GET", f"{ONE}/events", streams.of_sandbox, READ),
    Door("POST", f"{ONE}/exec", commands.execute, WRITE),
    Door("GET", f"{ONE}/files", files.download, READ),
    Door("PUT", f"{ONE}/files", files.upload, WRITE),
    SocketDoor(f"{ONE}/terminal", terminal.attach, TERMINAL),
    SocketDoor(f"{ONE}/ports/{{port}}", ports.connect, PORT),
    Door("PUT", f"{ONE}/ports/{{port}}", sandboxes.set_port, WRITE),
    Door("GET", f"{ONE}/network", network.get, READ),
    Door("PUT", f"{ONE}/network", network.put, WRITE),
    Door("GET", f"{ONE}/egress", network.connections, READ),
    Door("POST", f"{ONE}/browser/{{action}}", browser.act, WRITE),
    Door("POST", f"{ONE}/workspace/save", workspaces.save, WRITE),
    Door("GET", "/v1/workspaces", workspaces.listed, READ),
    Door("GET", WORKSPACE, workspaces.get, READ),
    Door("DELETE", WORKSPACE, workspaces.delete, WRITE),
    Door("GET", f"{WORKSPACE}/versions", workspaces.versions, READ),
    Door("GET", f"{WORKSPACE}/versions/{{version}}/archive", workspaces.archive, READ),
    Door("GET", f"{WORKSPACE}/diff", workspaces.diff, READ),
    Door("POST", f"{WORKSPACE}/restore", workspaces.restore, WRITE),
    Door("GET", "/v1/templates", workspaces.list_templates, READ),
    Door("POST", "/v1/tasks", tasks.create, WRITE, makes_one=True),
    Door("GET", "/v1/tasks", tasks.listed, READ),
    Door("GET", TASK, tasks.get, READ),
    Door("GET", f"{TASK}/events", task_events.of_task, READ),
    Door("GET", f"{TASK}/steps", tasks.steps_of, READ),
    Door("GET", f"{TASK}/diff", tasks.diff, READ),
    Door("GET", f"{TASK}/artifacts", tasks.artifacts, READ),
    Door("GET", f"{TASK}/artifacts/{{name}}", tasks.artifact, READ),
    Door("GET", f"{TASK}/archive", tasks.archive, READ),
    Door("GET", f"{TASK}/request", tasks.asked, WRITE),
    Door("POST", f"{TASK}/stop", tasks.stop, WRITE),
    Door("POST", f"{TASK}/pause", tasks.pause, WRITE),
    Door("POST", f"{TASK}/resume", tasks.resume, WRITE),
    Door("POST", f"{TASK}/input", tasks.say, WRITE),
    Door("POST", "/v1/sandboxes/states", owners.states, HOST),
    Door("GET", f"{OWNER}/sandboxes", owners.living, HOST),
    Door("GET", f"{OWNER}/reservations", owners.reservations_of, HOST),
    Door("POST", f"{OWNER}/reservations", owners.reserve, HOST),
    Door("POST", f"{OWNER}/reservations/release", owners.release, HOST),
    Door("POST", f"{OWNER}/reservations/close", owners.close_book, HOST),
    Door("POST", f"{OWNER}/reservations/open", owners.open_book, HOST),
    Door("POST", "/v1/audit", owners.note, HOST),
    Door("GET", "/v1/usage", owners.used, READ),
)

# For whoever comes over TLS without a certificate: a person's own program, sent here by a gateway.
ATTACH_ROUTES: Sequence[Door | SocketDoor] = (HEALTH, SocketDoor(f"{ONE}/terminal", terminal.attach, ATTACH))

OPERATORS_ROUTES: Sequence[BaseRoute] = (
    Route(f"{TASK}/retry", tasks.retry, methods=["POST"]),
    Route("/admin/status", admin.status, methods=["GET"]),
    Route("/admin/lease", admin.lease, methods=["GET"]),
    Route("/admin/top", admin.top, methods=["GET"]),
    Route("/admin/pool", admin.set_pool, methods=["PUT"]),
    Route("/admin/pool/refill", admin.refill, methods=["POST"]),
    Route("/admin/images", admin.images, methods=["GET"]),
    Route("/admin/images/{name}", admin.remove_image, methods=["DELETE"]),
    Route("/admin/events", streams.of_host, methods=["GET"]),
    Route("/admin/usage", admin.used, methods=["GET"]),
    Route("/admin/audit", admin.audit_rows, methods=["GET"]),
    Route("/admin/audit/verify", admin.audit_verify, methods=["GET"]),
    Route("/admin/ledger", admin.ledger, methods=["GET"]),
    Route("/admin/ledger/backup", admin.backup, methods=["POST"]),
    Route("/admin/ledger/check", admin.check, methods=["GET"]),
    Route("/admin/store/sweep", admin.sweep_store, methods=["POST"]),
    Route("/admin/hibernated", admin.take_over, methods=["POST"]),
    Route("/admin/templates/{template}", workspaces.add_template, methods=["PUT"]),
    Route("/admin/templates/{template}", workspaces.remove_template, methods=["DELETE"]),
    Route("/admin/drain", drains.drain, methods=["POST"]),
    Route("/admin/undrain", drains.undrain, methods=["POST"]),
    Route("/admin/owners/{owner}/rules", admin.rules, methods=["GET"]),
    Route("/admin/owners/{owner}/rules", admin.set_rules, methods=["PUT"]),
)


def make_app(found: Services, doors: Sequence[Door | SocketDoor] = ROUTES) -> Starlette:
    """What the port answers: `doors`, to whoever has the right ticket."""
    open_paths = frozenset(door.path for door in doors if door.rule.access is ANYONE)
    by_ticket = Middleware(ByTicket, tickets=found.tickets, refusals=found.refusals, open_paths=open_paths)
    return _app(found, doors, by_ticket)


def make_operators_app(found: Services) -> Starlette:
    """What the unix socket answers: everything."""
    return _app(found, [*ROUTES, *OPERATORS_ROUTES], Middleware(ByOperator))


def _app(found: Services, routes: Sequence[BaseRoute], who: Middleware) -> Starlette:
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Requests, metrics=found.metrics, new_id=lambda: f"rq-{secrets.token_hex(8)}"), who],
        exception_handlers=EXCEPTION_HANDLERS,
    )
    app.state.services = found
    return app
