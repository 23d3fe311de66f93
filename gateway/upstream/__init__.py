"""The way to hosts: HTTP/1.1 over kept connections, bodies streamed both ways. Nothing else in the gateway dials."""

from gateway.upstream.client import MAX_JSON_BYTES, Answer, Begun, Body, Exchange, Upstream
from gateway.upstream.connection import Connection
from gateway.upstream.parts import Headers

__all__ = ["MAX_JSON_BYTES", "Answer", "Begun", "Body", "Connection", "Exchange", "Headers", "Upstream"]
