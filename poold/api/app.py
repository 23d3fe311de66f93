"""The routes of poold."""

import secrets
from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Route, WebSocketRoute

from poold.api import admin, commands, files, observe, ports, sandboxes, streams, terminal
from poold.api.middleware import Requests
from poold.api.replies import EXCEPTION_HANDLERS
from poold.api.services import Services

ONE = "/v1/sandboxes/{sandbox_id}"

ROUTES: Sequence[BaseRoute] = (
    Route("/healthz", observe.healthz),
    Route("/readyz", observe.readyz),
    Route("/metrics", observe.metrics),
    Route("/v1/sandboxes", sandboxes.create, methods=["POST"]),
    Route("/v1/sandboxes", sandboxes.listed, methods=["GET"]),
    Route(ONE, sandboxes.get, methods=["GET"]),
    Route(ONE, sandboxes.destroy, methods=["DELETE"]),
    Route(f"{ONE}/pause", sandboxes.pause, methods=["POST"]),
    Route(f"{ONE}/resume", sandboxes.resume, methods=["POST"]),
    Route(f"{ONE}/timeout", sandboxes.timeout, methods=["POST"]),
    Route(f"{ONE}/health", sandboxes.health, methods=["GET"]),
    Route(f"{ONE}/logs", sandboxes.logs, methods=["GET"]),
    Route(f"{ONE}/events", streams.of_sandbox, methods=["GET"]),
    Route(f"{ONE}/exec", commands.execute, methods=["POST"]),
    Route(f"{ONE}/files", files.download, methods=["GET"]),
    Route(f"{ONE}/files", files.upload, methods=["PUT"]),
    WebSocketRoute(f"{ONE}/terminal", terminal.attach),
    WebSocketRoute(f"{ONE}/ports/{{port}}", ports.connect),
)

OPERATORS_ROUTES: Sequence[BaseRoute] = (
    Route("/admin/status", admin.status, methods=["GET"]),
    Route("/admin/top", admin.top, methods=["GET"]),
    Route("/admin/pool", admin.set_pool, methods=["PUT"]),
    Route("/admin/pool/refill", admin.refill, methods=["POST"]),
    Route("/admin/images", admin.images, methods=["GET"]),
    Route("/admin/images/{name}", admin.remove_image, methods=["DELETE"]),
    Route("/admin/events", streams.of_host, methods=["GET"]),
    Route("/admin/usage", admin.used, methods=["GET"]),
    Route("/admin/audit", admin.audit_rows, methods=["GET"]),
    Route("/admin/audit/verify", admin.audit_verify, methods=["GET"]),
    Route("/admin/ledger/backup", admin.backup, methods=["POST"]),
    Route("/admin/ledger/check", admin.check, methods=["GET"]),
    Route("/admin/drain", admin.drain, methods=["POST"]),
    Route("/admin/undrain", admin.undrain, methods=["POST"]),
    Route("/admin/owners/{owner}/rules", admin.rules, methods=["GET"]),
    Route("/admin/owners/{owner}/rules", admin.set_rules, methods=["PUT"]),
)


def make_app(found: Services, *, for_operator: bool = False) -> Starlette:
    """What clients may ask; and what the operator may, who comes through the unix socket."""
    app = Starlette(
        routes=[*ROUTES, *(OPERATORS_ROUTES if for_operator else ())],
        middleware=[Middleware(Requests, metrics=found.metrics, new_id=lambda: f"rq-{secrets.token_hex(8)}")],
        exception_handlers=EXCEPTION_HANDLERS,
    )
    app.state.services = found
    return app
