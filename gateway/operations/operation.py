"""One operation of the API: what it is called, who may ask for it, what it reads, and all that it may answer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from contract.keys import Scope
from contract.query import Query
from contract.schema import Schema
from gateway.operations.codes import ANY, KEYED, Codes, together

JSON = "application/json"
STREAM = "text/event-stream"
OCTETS = "application/octet-stream"
PLAIN = "text/plain"
HTML = "text/html"
DIFF = "text/x-diff"
ZSTD = "application/zstd"
PNG = "image/png"


@dataclass(frozen=True)
class Reply:
    """An answer that is not an error, in one or more media types."""

    what: str
    content: Mapping[str, Schema] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)  # their names, and what they say
    links: tuple[str, ...] = ()  # operations that go on with the reply's id
    linked: str = "sandbox_id"  # as what that id stands in their paths
    pointer: str = "/id"  # where that id is in the reply


@dataclass(frozen=True)
class Header:
    what: str
    pattern: str | None = None  # of the whole of it; None: what makes no sense is passed over


@dataclass(frozen=True)
class Operation:
    name: str
    method: str  # or WS
    path: str
    group: str
    what: str  # in one line
    replies: Mapping[int, Reply]
    scope: Scope | None = None  # that the key must have; None: no key is asked for
    about: str = ""
    body: Callable[..., object] | None = None  # reads the JSON body, from its `Fields`
    has_limits: bool = False  # `body` has to know the largest machine that there is, too
    upload: str = ""  # what the body is, if it is not JSON
    query: Callable[[Query], object] | None = None
    headers: Mapping[str, Header] = field(default_factory=dict)  # that a request may have
    means: Mapping[str, str] = field(default_factory=dict)  # what the fields and the parameters of the query are for
    errors: Codes = field(default_factory=dict)
    example: Any = None  # of the body, or after `?`, for the page

    @property
    def codes(self) -> Codes:
        """The codes of every status of an error that this may be answered with."""
        return dict(sorted(together(ANY, KEYED if self.scope else {}, self.errors).items()))


def json_reply(what: str, schema: Schema, **more: Any) -> Reply:
    return Reply(what, {JSON: schema}, **more)
