"""The way out: names are resolved here, each address is looked at, and the one that was looked at is dialled."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address

from poold.egress.addresses import Address
from poold.egress.proxy.ends import End
from poold.egress.proxy.refusals import Refusal

RESOLVE_S = 10.0
CONNECT_S = 10.0  # for one address
DIAL_S = 30.0  # for all of them
MAX_ADDRESSES = 8
RESOLVERS = 4
MAX_LOOKUPS = 256  # a name server that never answers keeps them for long after nobody waits any more

Resolve = Callable[[str], Awaitable[Sequence[Address]]]
Connect = Callable[[Address, int], Awaitable[socket.socket]]


class Dialer:
    """Reaches targets. What it is given can be exchanged by those who have no internet."""

    def __init__(self, resolve: Resolve, connect: Connect, is_own: Callable[[Address], bool]) -> None:
        self._resolve = resolve
        self._connect = connect
        self._is_own = is_own
        self._lookups: dict[str, asyncio.Task[Sequence[Address]]] = {}

    async def dial(self, name: str | None, address: Address | None, port: int, check: Callable[[Address], None]) -> End:
        """Connect to `name`, or to `address`. `check` raises `Refusal` for where it must not go. Raises `Refusal`."""
        addresses = [address] if address is not None else await self._look_up(name or "")
        refusal: Refusal | None = None
        failure, tried = "no address", address
        try:
            async with asyncio.timeout(DIAL_S):
                for each in addresses[:MAX_ADDRESSES]:
                    try:
                        self._check(name, each, port, check)
                        return await self._reach(each, port)
                    except Refusal as error:
                        refusal = refusal or error
                    except OSError as error:
                        failure, tried = f"{each}: {error.strerror or error or 'no answer'}", each
        except TimeoutError:
            failure = "no answer"
        if refusal is not None and failure == "no address":
            raise refusal
        raise Refusal("connect_failed", f"{name or address}:{port} cannot be reached ({failure})", tried)

    def _check(self, name: str | None, address: Address, port: int, check: Callable[[Address], None]) -> None:
        check(address)
        if self._is_own(address):
            raise Refusal("own_address", f"{name or address}:{port} is this host itself", address)

    async def _reach(self, address: Address, port: int) -> End:
        async with asyncio.timeout(CONNECT_S):  # its error is an OSError
            sock = await self._connect(address, port)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _, end = await asyncio.get_running_loop().create_connection(End, sock=sock)
        except BaseException:
            sock.close()
            raise
        return end

    async def _look_up(self, name: str) -> Sequence[Address]:
        """Those who ask for the same name at the same time get the same answer; nobody gets an older one."""
        task = self._lookups.get(name)
        if task is None:
            if len(self._lookups) >= MAX_LOOKUPS:
                raise Refusal("resolve_failed", f"{name} cannot be resolved (too many names are being resolved)")
            task = self._lookups[name] = asyncio.ensure_future(self._resolve(name))
            task.add_done_callback(lambda done: self._looked_up(name, done))
        try:
            async with asyncio.timeout(RESOLVE_S):
                addresses = await asyncio.shield(task)
        except OSError as error:
            told = error.strerror or str(error) or "no answer in time"
            raise Refusal("resolve_failed", f"{name} cannot be resolved ({told})") from None
        if not addresses:
            raise Refusal("resolve_failed", f"{name} has no address")
        return [(address.version == 6 and address.ipv4_mapped) or address for address in addresses]

    def _looked_up(self, name: str, task: "asyncio.Task[Sequence[Address]]") -> None:
        self._lookups.pop(name, None)
        if not task.cancelled():
            task.exception()  # somebody may have heard of it; if not, nobody has to

    async def close(self) -> None:
        tasks = list(self._lookups.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class HostResolver:
    """Asks as the host asks: its own hosts file and its own servers. At most `RESOLVERS` names at a time."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(RESOLVERS, thread_name_prefix="resolve")

    async def resolve(self, name: str) -> Sequence[Address]:
        found = await asyncio.get_running_loop().run_in_executor(self._threads, _addresses, name)
        unique: dict[Address, None] = {}
        for text in found:
            with contextlib.suppress(ValueError):
                unique[ip_address(text)] = None
        return list(unique)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _addresses(name: str) -> list[str]:
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


async def connect(address: Address, port: int) -> socket.socket:
    """A socket that is connected to exactly this address. Raises `OSError`, and leaves nothing then."""
    sock = socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (str(address), port))
    except BaseException:
        sock.close()
        raise
    return sock


def is_own(address: Address) -> bool:
    """Whether this is an address of the host itself: only those can be bound to."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.bind((str(address), 0))
    except OSError:
        return False
    return True
