"""A world of our own: a host in a namespace, and another namespace that is its internet. It is proven to be closed.

    host       up0 93.184.216.2, 2600:1f18:93::2      the only way out is the cable
      │ veth
    internet   down0 93.184.216.1, 2600:1f18:93::1    every other address is here

Addresses of the whole world are the internet's own: whatever leaves the host arrives there, is recorded and, if it is a
connection, answered. Nothing of this is connected to the machine that the tests run on.
"""

import contextlib
import json
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.egress.capture import Capture, Sentry, open_capture
from tests.egress.spaces import Space, open_space

HOST_4, INTERNET_4 = "93.184.216.2", "93.184.216.1"
HOST_6, INTERNET_6 = "2600:1f18:93::2", "2600:1f18:93::1"
HOST_PRIVATE = "10.9.0.2"  # of the host, on its loopback
RESOLVER = "93.184.215.53"  # the host asks it for names
# Nobody has these but the test's world, and machines in it: where else they are seen, something got out.
OURS = ("93.184.215.0/24", "93.184.216.0/24", "172.16.0.0/30", "198.18.0.0/15", "2600:1f18:93::/64")
OUTSIDE = ("1.1.1.1", "8.8.8.8", "2606:4700:4700::1111")
CATCH_PORT = 4444
SERVED_PORTS = (53, 80, 443)
KNOCK_S = 1.0

HOSTS = f"""127.0.0.1 localhost
::1 localhost ip6-localhost
{HOST_4} warren-host
"""
CATCH = f"""
table inet catch {{
    chain arriving {{
        type nat hook prerouting priority dstnat;
        iifname "down0" tcp dport != {{ {", ".join(map(str, SERVED_PORTS))} }} redirect to :{CATCH_PORT}
    }}
}}
"""


class NotClosed(Exception):
    """Something of the test's world is connected to the machine: nothing may be tried in it."""


@dataclass(frozen=True)
class World:
    host: Space
    internet: Space
    arrived: Capture  # everything that left the host
    sentry: Sentry


@contextlib.contextmanager
def open_world() -> Iterator[World]:
    """The world during the block. Raises `NotClosed` before anything was tried, and if it was not so at the end."""
    with contextlib.ExitStack() as stack:
        host = stack.enter_context(open_space("the host"))
        internet = stack.enter_context(open_space("the internet"))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="warren-world-")))
        sentry = stack.enter_context(contextlib.closing(Sentry(OURS)))
        _wire(host, internet)
        _furnish(host, folder)
        prove_closed(host, internet)
        _see_nothing(sentry)
        arrived = stack.enter_context(open_capture(internet.do, "down0"))
        yield World(host, internet, arrived, sentry)
        prove_shape(host, internet)
        _see_nothing(sentry)
        if arrived.lost:
            raise AssertionError(f"{arrived.lost} packets were not seen: the verdict is worth nothing")


def prove_closed(host: Space, internet: Space) -> None:
    """Nothing but the cable between them, and nobody outside hears them. No server may run in the internet yet."""
    prove_shape(host, internet)
    with _listener() as ear:
        port = ear.getsockname()[1]
        addresses = real_addresses()
        targets = [(address, port) for address in addresses]
        targets += [(address, one) for address in (*real_gateways(), *OUTSIDE) for one in (53, 80, 443)]
        for space in (host, internet):
            if reached := _that_answer(space, targets):
                raise NotClosed(f"{space.name} can connect to {reached}")
        with contextlib.suppress(BlockingIOError):
            raise NotClosed(f"a connection from {ear.accept()[1]} came to this machine")


def prove_shape(host: Space, internet: Space) -> None:
    """Each of the two has its loopback and its end of the cable, with routes over these only."""
    ends = {}
    for space, link in ((host, "up0"), (internet, "down0")):
        links = {each["ifname"]: each for each in space.asked("ip", "-j", "link")}
        if set(links) != {"lo", link}:
            raise NotClosed(f"{space.name} has the links {', '.join(sorted(links))}")
        for family in ("-4", "-6"):
            for route in space.asked("ip", "-j", family, "route", "show", "table", "all"):
                if route.get("dev", "lo") not in ("lo", link):
                    raise NotClosed(f"{space.name} has a route by {route['dev']}")
        ends[link] = links[link]
    if (ends["up0"]["link_index"], ends["down0"]["link_index"]) != (ends["down0"]["ifindex"], ends["up0"]["ifindex"]):
        raise NotClosed("the two ends are not of one cable")
    identities = {Path(f"/proc/{pid}/ns/net").readlink() for pid in ("self", host.pid, internet.pid)}
    if len(identities) != 3:
        raise NotClosed("the three network namespaces are not three")


def real_addresses() -> list[str]:
    """The addresses of the machine itself by which others could reach it."""
    said = subprocess.run(["ip", "-j", "address"], check=True, capture_output=True, text=True).stdout
    found = [info for link in json.loads(said) if link["ifname"] != "lo" for info in link["addr_info"]]
    return [info["local"] for info in found if info["scope"] == "global"]


def real_gateways() -> list[str]:
    routes = []
    for family in ("-4", "-6"):
        argv = ["ip", "-j", family, "route", "show", "default"]
        said = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
        routes += json.loads(said or "[]")
    return [route["gateway"] for route in routes if "gateway" in route and not route["gateway"].startswith("fe80")]


def _wire(host: Space, internet: Space) -> None:
    """The cable, and on its far side every address that there is."""
    peer = ["peer", "name", "down0", "netns", str(internet.pid)]
    host.run("ip", "link", "add", "up0", "type", "veth", *peer)
    for space, link, address_4, address_6 in (
        (internet, "down0", INTERNET_4, INTERNET_6),
        (host, "up0", HOST_4, HOST_6),
    ):
        space.run("ip", "address", "add", f"{address_4}/24", "dev", link)
        space.run("ip", "-6", "address", "add", f"{address_6}/64", "dev", link, "nodad")
        space.run("ip", "link", "set", link, "up")
    host.run("ip", "address", "add", f"{HOST_PRIVATE}/32", "dev", "lo")
    host.run("ip", "route", "add", "default", "via", INTERNET_4)
    host.run("ip", "-6", "route", "add", "default", "via", INTERNET_6)
    _own_everything(internet)
    internet.run("nft", CATCH)


def _own_everything(internet: Space) -> None:
    """Every address is the internet's own but the host's. IPv4 speaks only from addresses that the local table has."""
    internet.run("ip", "rule", "add", "pref", "10", "to", f"{HOST_4}/32", "table", "main")
    internet.run("ip", "rule", "add", "pref", "20", "table", "local")
    internet.run("ip", "rule", "delete", "pref", "0")
    internet.run("ip", "route", "add", "local", "0.0.0.0/0", "dev", "lo", "table", "local")
    internet.run("ip", "-6", "route", "add", "local", "::/0", "dev", "lo", "table", "100")
    internet.run("ip", "-6", "rule", "add", "pref", "40000", "table", "100")


def _furnish(host: Space, folder: Path) -> None:
    """The files by which the host finds names. They are the machine's own everywhere else."""
    for name, text in (("resolv.conf", f"nameserver {RESOLVER}\noptions timeout:2 attempts:2\n"), ("hosts", HOSTS)):
        (folder / name).write_text(text)
        host.run("mount", "--bind", str(folder / name), f"/etc/{name}")


def _that_answer(space: Space, targets: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    def knock(target: tuple[str, int]) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(target, KNOCK_S):
            return True
        return False

    def knock_at_all() -> list[bool]:
        with ThreadPoolExecutor(len(targets)) as threads:
            return list(threads.map(knock, targets))

    return [target for target, answers in zip(targets, space.do(knock_at_all), strict=True) if answers]


@contextlib.contextmanager
def _listener() -> Iterator[socket.socket]:
    """On every address of the machine itself: who reaches it was not closed in."""
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        server.setblocking(False)
        yield server


def _see_nothing(sentry: Sentry) -> None:
    seen: Sequence[str] = sentry.seen()
    if seen:
        raise NotClosed(f"packets of the test's world are on the machine's own links: {'; '.join(seen[:5])}")
