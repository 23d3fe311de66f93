"""Which port of which sandbox a request is for, by its host name or by its path. No I/O."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contract.errors import BadField, CallerError, NotFound, shown
from contract.ids import SANDBOX
from gateway.errors import BadFraming
from gateway.passes import FIELD, preview_label

LABEL = re.compile(rf"([0-9]{{1,9}})-({SANDBOX.pattern})")
PATH = re.compile(rf"/p/({SANDBOX.pattern})/([0-9]{{1,9}})(/.*)?", re.DOTALL)
PATH_FORM = "/p/"
AT_PORT = re.compile(r":[0-9]*$")
MAX_HOST_CHARS = 260


class Misdirected(CallerError):
    """The host name is that of a preview somewhere else."""

    status = 421
    code = "misdirected"


@dataclass(frozen=True, slots=True)
class Where:
    """A port of a sandbox, and what is asked of the service there."""

    sandbox: str
    port: int
    target: str  # path and query for the service
    prefix: str  # of every path of this preview: empty where it has a host name of its own
    origin: str  # of this preview, as browsers see it
    given: str | None = None  # the pass in the query, which no service sees

    @property
    def label(self) -> str:
        return preview_label(self.sandbox, self.port)

    @property
    def own_origin(self) -> str:
        """Where the service believes to be."""
        return f"http://localhost:{self.port}"


def where(scope: Mapping[str, Any], domain: str | None) -> Where | None:
    """What the request is a preview of; None if it is none. Raises what is wrong with one that only looks like it."""
    host = _host(scope)
    if not (scope["raw_path"].startswith(b"/p/") or LABEL.match(host) or (domain is not None and domain in host)):
        return None  # almost all requests: they are not to be slower for this
    origin = f"{'https' if scope['scheme'] in ('https', 'wss') else 'http'}://{host}"
    name = host.rsplit(":", 1)[0] if AT_PORT.search(host) else host
    target, given = _target(scope)
    if domain is not None and name.endswith(f".{domain}"):
        found = LABEL.fullmatch(name.removesuffix(f".{domain}"))
        if found is None:
            raise NotFound(f"{shown(name)} is no preview: their names are PORT-ID.{domain}")
        return Where(found[2], _port(found[1]), target, "", origin, given)
    if LABEL.match(name):
        raise Misdirected(f"previews of this gateway are not under {shown(name.partition('.')[2])}")
    if not target.startswith(PATH_FORM):
        return None
    return _by_path(target, origin, given)


def _by_path(target: str, origin: str, given: str | None) -> Where:
    path, question, query = target.partition("?")
    found = PATH.fullmatch(path)
    if found is None:
        raise NotFound(f"{shown(path)} is no preview: their paths are /p/ID/PORT/")
    prefix = f"/p/{found[1]}/{found[2]}"
    return Where(found[1], _port(found[2]), (found[3] or "") + question + query, prefix, origin, given)


def _host(scope: Mapping[str, Any]) -> str:
    found = [value for name, value in scope["headers"] if name == b"host"]
    if len(found) > 1:
        raise BadFraming("the request has more than one Host header")
    return found[0][:MAX_HOST_CHARS].decode("latin-1").lower() if found else ""


def _target(scope: Mapping[str, Any]) -> tuple[str, str | None]:
    """Path and query as the client wrote them, without our pass; and the pass."""
    path = scope["raw_path"].decode("latin-1")
    given = None
    kept = []
    for field in scope["query_string"].decode("latin-1").split("&"):
        if field.startswith(f"{FIELD}="):
            given = field.removeprefix(f"{FIELD}=")
        else:
            kept.append(field)
    query = "&".join(kept)
    return f"{path}?{query}" if query else path, given


def _port(text: str) -> int:
    if not 1 <= int(text) <= 65_535 or text.startswith("0"):
        raise BadField("port", text, "must be a whole number from 1 to 65535")
    return int(text)
