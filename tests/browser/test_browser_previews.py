"""Previews of real services in a real machine, as a browser sees them: by host name and by path."""

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import Page, open_browser, wait_for
from tests.gateway.cluster import ask, open_cluster

IMAGE = "python"
IMAGES = Path(os.environ.get("WARREN_IMAGES", Path(__file__).parents[2] / "build" / "images"))
SERVICE = Path(__file__).with_name("guest_service.py")
PLAIN, LIVE = 8000, 9000  # `python -m http.server`, and our own
BIG_BYTES = 50 << 20
MAKE_BIG = (
    "import random; data = random.Random(4).randbytes(1 << 20);"
    f" open('/workspace/big.bin', 'wb').write(data * {BIG_BYTES >> 20})"
)
BASE_UID = 345_000  # nobody else's: other tests may run on this host at the same time


@dataclass
class Place:
    """A gateway, a host with machines, and a sandbox with two services that listen on its loopback only."""

    port: int
    key: str
    sandbox: str

    def api(self, method: str, path: str, body: object = None) -> Any:
        reply = ask(self.port, method, f"/v1/sandboxes/{self.sandbox}{path}", body, self.key)
        assert reply.status < 300, reply
        return reply.json

    def run(self, cmd: str) -> str:
        done = self.api("POST", "/exec", {"cmd": cmd})
        assert done["exit_code"] == 0, done
        return str(done["stdout"]).strip()

    def link(self, port: int) -> str:
        url: str = self.api("POST", f"/ports/{port}/link", {})["url"]
        return url

    def by_path(self, port: int) -> str:
        return f"http://localhost:{self.port}/p/{self.sandbox}/{port}/"

    def link_by_path(self, port: int) -> str:
        return f"{self.by_path(port)}?{self.link(port).partition('?')[2]}"


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    if shutil.which("chromium") is None or shutil.which("qemu-system-x86_64") is None:
        pytest.skip("chromium or qemu-system-x86_64 is not installed")
    run_dir = Path(tempfile.mkdtemp(prefix="warren-browser-", dir="/run"))
    machines = {
        "POOLD_ENGINE": "qemu",
        "POOLD_IMAGES": str(IMAGES),
        "POOLD_DEFAULT_IMAGE": IMAGE,
        "POOLD_POOL": f"{IMAGE}=0-1",
        "POOLD_SLOTS": "2",
        "POOLD_BASE_UID": str(BASE_UID),
        "POOLD_RUN_DIR": str(run_dir),
    }
    try:
        with open_cluster(1, 0, **machines) as cluster:
            key = cluster.key("alice")
            gateway = cluster.add_gateway(GATEWAY_DOMAIN="localhost")
            cluster.wait_until_alive()
            made = ask(gateway.port, "POST", "/v1/sandboxes", {}, key)
            assert made.status == 201, (made, gateway.told())
            place = Place(gateway.port, key, made.json["id"])
            _start_services(place)
            yield place
    finally:
        shutil.rmtree(run_dir, ignore_errors=True)


def _start_services(place: Place) -> None:
    upload = f"/v1/sandboxes/{place.sandbox}/files?path=/workspace/service.py"
    assert ask(place.port, "PUT", upload, SERVICE.read_bytes(), place.key).status == 200
    place.run("echo '<!doctype html><title>plain</title><h1 id=it>served by http.server</h1>' > /workspace/index.html")
    place.run(f'python3 -c "{MAKE_BIG}"')
    place.run(
        f"nohup python3 -m http.server --bind 127.0.0.1 {PLAIN} >/dev/null 2>&1 &"
        f" nohup python3 service.py {LIVE} >/tmp/service.log 2>&1 &"
    )
    for port in (PLAIN, LIVE):
        wait_for(
            lambda port=port: ask(place.port, "GET", f"/p/{place.sandbox}/{port}/", key=place.key).status == 200,
            f"the service on port {port}",
        )


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with open_browser(tmp_path) as page:
        yield page


def downloaded(folder: Path) -> str:
    """The hash of what the browser has downloaded, once it has all of it."""
    target = folder / "downloads" / "big.bin"
    wait_for(lambda: target.exists() and target.stat().st_size == BIG_BYTES, "the download")
    return hashlib.sha256(target.read_bytes()).hexdigest()


def test_a_page_and_a_download_by_host_name(place: Place, page: Page, tmp_path: Path) -> None:
    page.open(place.link(PLAIN))
    assert page.until("document.getElementById('it')?.textContent") == "served by http.server"
    clean = page.value("location.href")
    assert re.fullmatch(rf"http://{PLAIN}-{place.sandbox}\.localhost:{place.port}/", clean)
    assert page.value("document.cookie") == "", "our cookie is not for pages"
    page.value("(() => { const a = document.createElement('a'); a.href = 'big.bin'; a.download = ''; a.click(); })()")
    assert downloaded(tmp_path) == place.run("sha256sum < /workspace/big.bin").split()[0]


def test_a_page_and_a_download_by_path(place: Place, page: Page, tmp_path: Path) -> None:
    page.open(place.link_by_path(PLAIN))
    assert page.until("document.getElementById('it')?.textContent") == "served by http.server"
    assert page.value("location.href") == place.by_path(PLAIN)
    page.value("(() => { const a = document.createElement('a'); a.href = 'big.bin'; a.download = ''; a.click(); })()")
    assert downloaded(tmp_path) == place.run("sha256sum < /workspace/big.bin").split()[0]


def test_a_socket_and_events_by_host_name(place: Place, page: Page) -> None:
    page.open(place.link(LIVE))
    page.until("window.seen?.echo && seen.events.length == 5")
    assert page.value("seen") == {
        "events": ["0", "1", "2", "3", "4"],
        "echo": "over the tunnel: ü",
        "errors": [],
    }


def test_a_socket_and_events_by_path(place: Place, page: Page) -> None:
    place.api("PUT", f"/ports/{LIVE}", {"public": True})
    page.open(place.by_path(LIVE))
    page.until("window.seen?.echo && seen.events.length == 5")
    assert page.value("seen.errors") == []
    place.api("PUT", f"/ports/{LIVE}", {"public": False})


def test_by_path_a_page_has_no_part_in_the_gateways_origin(place: Place, page: Page) -> None:
    page.open(place.link_by_path(PLAIN))
    page.until("document.getElementById('it')?.textContent")
    assert page.value("window.origin") == "null"
    assert page.value("fetch('/healthz').then(() => 'read', () => 'refused')") == "refused"
    assert page.value("(() => { try { return localStorage.length } catch (e) { return e.name } })()") == "SecurityError"


def test_a_private_preview_shows_a_page_that_says_so(place: Place, page: Page) -> None:
    page.open(f"http://{PLAIN}-{place.sandbox}.localhost:{place.port}/")
    assert page.until("document.querySelector('h1')?.textContent") == "This preview is private"
