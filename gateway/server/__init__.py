"""The gateway's own HTTP/1.1 server: plain ASGI, in the loop that asks the hosts. See decision 13."""

from gateway.server.server import Server

__all__ = ["Server"]
