"""The routes of poold."""

from starlette.applications import Starlette
from starlette.routing import Route, WebSocketRoute

from contract.models import ShapeLimits
from poold.api import commands, files, sandboxes, terminal
from poold.api.replies import EXCEPTION_HANDLERS
from poold.pool import Pool
from poold.sandboxes import Sandboxes

ONE = "/v1/sandboxes/{sandbox_id}"


def make_app(host: Sandboxes, pool: Pool, limits: ShapeLimits) -> Starlette:
    app = Starlette(
        routes=[
            Route("/healthz", sandboxes.healthz),
            Route("/v1/sandboxes", sandboxes.create, methods=["POST"]),
            Route("/v1/sandboxes", sandboxes.listed, methods=["GET"]),
            Route(ONE, sandboxes.get, methods=["GET"]),
            Route(ONE, sandboxes.destroy, methods=["DELETE"]),
            Route(f"{ONE}/health", sandboxes.health, methods=["GET"]),
            Route(f"{ONE}/exec", commands.execute, methods=["POST"]),
            Route(f"{ONE}/files", files.download, methods=["GET"]),
            Route(f"{ONE}/files", files.upload, methods=["PUT"]),
            WebSocketRoute(f"{ONE}/terminal", terminal.attach),
        ],
        exception_handlers=EXCEPTION_HANDLERS,
    )
    app.state.sandboxes = host
    app.state.pool = pool
    app.state.limits = limits
    return app
