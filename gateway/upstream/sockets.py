"""WebSockets to whomever a dialler reaches."""

from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from gateway.upstream.dial import Dialler


async def open_socket(dialler: Dialler, target: str, **options: Any) -> ClientConnection:
    """A WebSocket; `options` are those of the `websockets` package. If this raises, no connection is left.

    Raises `HostUnreachable` where nobody can be dialled, and else what the package raises: `InvalidStatus` for a
    refusal, `InvalidHandshake`, `InvalidURI`, `OSError`, `EOFError`. A `TimeoutError` comes only from whoever took the
    connection, and spoke TLS where that is asked for, and then did not answer.
    """
    reached = await dialler.options()
    uri = f"ws{dialler.address.removeprefix('http')}{target}"
    try:
        return await _Connect(dialler, uri, user_agent_header=None, compression=None, proxy=None, **options, **reached)
    except BaseException:
        reached["sock"].close()
        raise


class _Connect(connect):
    """Goes where it is told to, and nowhere else: an answer that redirects is a refusal."""

    def __init__(self, dialler: Dialler, uri: str, **options: Any) -> None:
        super().__init__(uri, **options)
        self._dialler = dialler

    async def open_tcp_connection(self) -> ClientConnection:
        """Here TLS has been spoken, and nothing else."""
        connection = await super().open_tcp_connection()
        self._dialler.check(connection.transport)
        return connection

    def process_redirect(self, exc: Exception) -> Exception:
        return exc
