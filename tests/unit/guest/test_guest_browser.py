"""The browser: a real Chromium, opened on pages of loopback, those of no good will among them."""

import base64
import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from warren_guest.browser import launch

from tests.unit.guest import client
from tests.unit.guest.browser_site import Site, open_site
from tests.unit.guest.client import GUEST, Client, Reply, end

pytestmark = pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no Chromium on this machine")

_PEM = "-----BEGIN CERTIFICATE-----\nAAEC\nAwQF\n-----END CERTIFICATE-----\n"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with open_site() as site:
        yield site


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A browser starts slowly on a machine that is busy with other tests."""
    monkeypatch.setattr(client, "LIMIT_S", 240.0)


async def ask(guest: Client, what: str, **fields: Any) -> Reply:
    return await guest.call("POST", f"/browser/{what}", fields)


async def shown(guest: Client, what: str, **fields: Any) -> dict[str, Any]:
    """What the page shows afterwards."""
    reply = await ask(guest, what, **fields)
    assert reply.status == 200, reply.body[:500]
    told: dict[str, Any] = reply.json
    return told


def size_of(picture: str) -> tuple[int, int]:
    """Width and height of a PNG in base64."""
    data = base64.b64decode(picture, validate=True)
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert data.endswith(b"IEND\xaeB`\x82")
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def processes_of(guest: Client, kind: str) -> list[int]:
    """The processes of the guest's browser: `browser` itself, or those of a `--type`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            is_wanted = f"--type={kind}" in words if kind != "browser" else "--type=" not in words
            if (
                "/warren-browser-" in words
                and "crashpad_handler " not in words
                and is_wanted
                and guest.pid in _ancestors(int(folder.name))
            ):
                found.append(int(folder.name))
    return found


def _ancestors(pid: int) -> list[int]:
    found = []
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(pid)
    return found


async def test_a_page_is_told_with_its_title_text_status_and_picture(guest: Client, site: Site) -> None:
    told = await shown(
        guest, "open", url=site.page("one", "<title>One</title><h1>Größe</h1><p>text"), width=640, height=480
    )
    assert told["title"] == "One"
    assert told["url"] == f"{site.url}/one"
    assert told["text"].split() == ["Größe", "text"]
    assert (told["status"], told["console"], told["loaded"]) == (200, [], True)
    assert size_of(told["screenshot"]) == (640, 480)


async def test_a_picture_shows_what_is_there(guest: Client, site: Site) -> None:
    pictures = [
        (await shown(guest, "open", url=site.page(color, f"<body style='background:{color}'>")))["screenshot"]
        for color in ("red", "blue", "red")
    ]
    assert pictures[0] == pictures[2] != pictures[1]


async def test_a_picture_of_the_full_page_is_as_tall_as_it_and_no_taller_than_can_be_looked_at(
    guest: Client, site: Site
) -> None:
    tall = site.page("tall", "<body style='margin:0'><div style='height:3000px'>")
    assert size_of((await shown(guest, "open", url=tall, full_page=True))["screenshot"]) == (1280, 3000)
    assert size_of((await shown(guest, "open", url=tall))["screenshot"]) == (1280, 800)
    endless = site.page("endless", "<body style='margin:0'><div style='height:9000000px'>")
    assert size_of((await shown(guest, "open", url=endless, full_page=True))["screenshot"]) == (1280, 8192)


async def test_errors_of_a_page_are_told_and_not_with_the_next_page(guest: Client, site: Site) -> None:
    script = (
        "console.log('fine'); console.error('bad', 7); fetch('/missing'); setTimeout(() => { throw new Error('oops') })"
    )
    told = await shown(guest, "open", url=site.page("errors", f"<script>{script}</script>"))
    assert "bad 7" in told["console"]
    assert any(line.startswith("Error: oops") for line in told["console"])
    assert any("404" in line and "/missing" in line for line in told["console"])
    assert not any("fine" in line for line in told["console"])
    assert (await shown(guest, "open", url=site.page("calm", "calm")))["console"] == []


async def test_a_page_that_never_stops_complaining_is_cut(guest: Client, site: Site) -> None:
    script = "for (let i = 0; i < 5000; i++) console.error('x'.repeat(5000) + i)"
    told = await shown(guest, "open", url=site.page("loud", f"<script>{script}</script>"))
    assert len(told["console"]) == 100
    assert max(map(len, told["console"])) <= 1000


async def test_a_click_is_one_of_a_mouse_and_what_it_sets_off_is_waited_for(guest: Client, site: Site) -> None:
    button = (
        "<p style='height:3000px'></p><button onclick='document.title = event.isTrusted && event.detail'>b</button>"
    )
    await shown(guest, "open", url=site.page("button", button))
    assert (await shown(guest, "click", selector="button"))["title"] == "1"
    site.page("next", "<title>Next</title>there")
    await shown(guest, "open", url=site.page("link", "<a href='/next'>go</a>"))
    told = await shown(guest, "click", selector="a")
    assert (told["title"], told["url"], told["status"], told["loaded"]) == ("Next", f"{site.url}/next", 200, True)


async def test_an_element_that_appears_late_is_waited_for(guest: Client, site: Site) -> None:
    script = "setTimeout(() => { document.body.innerHTML = '<b onclick=\"document.title=1\">late</b>' }, 1500)"
    await shown(guest, "open", url=site.page("late", f"<body><script>{script}</script>"))
    assert (await shown(guest, "click", selector="b"))["title"] == "1"


async def test_what_is_typed_replaces_what_was_there_and_can_be_submitted(guest: Client, site: Site) -> None:
    form = (
        "<form action='/found'><input name='q' value='old'><textarea></textarea></form><div contenteditable>old</div>"
    )
    site.page("found", "<title>Found</title>")
    await shown(guest, "open", url=site.page("form", form))
    await shown(guest, "type", selector="textarea", text="two\nlines")
    await shown(guest, "type", selector="[contenteditable]", text="new")
    told = await shown(
        guest, "evaluate", script="[document.querySelector('textarea').value, document.querySelector('div').innerText]"
    )
    assert told["value"] == ["two\nlines", "new"]
    told = await shown(guest, "type", selector="input", text="ä & b", submit=True)
    assert (told["title"], told["url"]) == ("Found", f"{site.url}/found?q=%C3%A4+%26+b")


@pytest.mark.parametrize(
    ("script", "value"),
    [
        ("1 + 1", 2),
        ("document.title", "Values"),
        ("new Promise(done => setTimeout(done, 50, {a: [1, null]}))", {"a": [1, None]}),
        ("undefined", None),
        ("NaN", "NaN"),
        ("'\\ud800'.length", 1),
    ],
)
async def test_a_script_has_a_value(guest: Client, site: Site, script: str, value: object) -> None:
    await shown(guest, "open", url=site.page("values", "<title>Values</title>"))
    assert (await shown(guest, "evaluate", script=script))["value"] == value


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("throw new TypeError('no such thing')", "the script failed: TypeError: no such thing"),
        ("Promise.reject(new Error('later'))", "the script failed: Error: later"),
        ("1 +", "the script failed: SyntaxError"),
        ("'x'.repeat(2e6)", "the script's value is larger than"),
        ("'x'.repeat(5e7)", "larger than"),
    ],
)
async def test_a_script_that_fails_is_told_with_what_it_threw(
    guest: Client, site: Site, script: str, message: str
) -> None:
    await shown(guest, "open", url=site.page("throws", ""))
    reply = await ask(guest, "evaluate", script=script)
    assert (reply.status, reply.code) == (502, "page_failed")
    assert message in reply.json["error"]["message"]


@pytest.mark.parametrize("script", ["while (true);", "new Promise(() => {})"])
async def test_a_script_without_an_end_is_given_up_and_its_page_goes_on(guest: Client, site: Site, script: str) -> None:
    await shown(guest, "open", url=site.page("busy", "<title>Busy</title>"))
    reply = await ask(guest, "evaluate", script=script, limit_ms=500)
    assert (reply.status, reply.code) == (504, "browser_timeout")
    assert (await shown(guest, "evaluate", script="1"))["title"] == "Busy"


async def test_a_server_that_never_answers_is_given_up(guest: Client, site: Site) -> None:
    reply = await ask(guest, "open", url=f"{site.url}/never", limit_ms=1000)
    assert (reply.status, reply.code) == (504, "browser_timeout")
    assert "did not answer within 1 s" in reply.json["error"]["message"]
    assert (await shown(guest, "open", url=site.page("after", "<title>After</title>")))["title"] == "After"


async def test_a_page_with_something_that_never_comes_is_shown_as_it_is(guest: Client, site: Site) -> None:
    told = await shown(guest, "open", url=site.page("half", "<title>Half</title>here<img src='/never'>"), limit_ms=3000)
    assert (told["title"], told["text"].strip(), told["loaded"]) == ("Half", "here", False)


async def test_a_huge_page_is_cut(guest: Client, site: Site) -> None:
    told = await shown(
        guest, "open", url=site.page("huge", lambda: "<title>" + "t" * 10**6 + "</title>" + "äb " * 10**6)
    )
    assert len(told["title"]) == 1000
    assert 60_000 < len(told["text"].encode()) <= 65_536


async def test_a_page_cannot_make_our_words_mean_something_else(guest: Client, site: Site) -> None:
    script = """String.prototype.slice = () => 'x'.repeat(3e7); document.querySelector = () => null;
        Object.defineProperty(document, 'title', {get: () => 'lie'}); Element.prototype.scrollIntoView = null"""
    page = f"<title>Truth</title><button onclick='this.innerText=\"clicked\"'>b</button><script>{script}</script>"
    assert (await shown(guest, "open", url=site.page("liar", page)))["title"] == "Truth"
    assert (await shown(guest, "click", selector="button"))["text"].strip() == "clicked"


async def test_a_dialog_is_dismissed_and_a_window_is_closed(guest: Client, site: Site) -> None:
    dialogs = "<script>document.title = [alert('a'), confirm('b'), prompt('c')].join()</script>"
    assert (await shown(guest, "open", url=site.page("dialogs", dialogs)))["title"] == ",false,"
    opener = "<button onclick='window.w = window.open(\"/one\")'>b</button>"
    await shown(guest, "open", url=site.page("opener", opener))
    await shown(guest, "click", selector="button")

    async def closed() -> Any:
        return (await shown(guest, "evaluate", script="!window.w || window.w.closed"))["value"]

    await guest.until(closed)


async def test_a_page_cannot_keep_us_from_leaving(guest: Client, site: Site) -> None:
    script = "addEventListener('beforeunload', event => { event.preventDefault(); event.returnValue = 'stay' })"
    await shown(guest, "open", url=site.page("stay", f"<button>b</button><script>{script}</script>"))
    await shown(guest, "click", selector="button")  # a page that nobody touched may not ask
    assert (await shown(guest, "open", url=site.page("away", "<title>Away</title>")))["title"] == "Away"


async def test_what_cannot_be_reached_says_why_and_a_servers_error_is_a_page(guest: Client, site: Site) -> None:
    reply = await ask(guest, "open", url=f"http://127.0.0.1:{closed_port()}/")
    assert (reply.status, reply.code) == (502, "page_failed")
    assert "net::ERR_CONNECTION_REFUSED" in reply.json["error"]["message"]
    told = await shown(guest, "open", url=site.page("broken", "<title>Sorry</title>"))
    assert (told["title"], told["status"]) == ("Sorry", 500)


def closed_port() -> int:
    """A port where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "chrome://crash",
        "chrome://version",
        "about:blank",
        "javascript:alert(1)",
        "data:text/html,x",
        "view-source:http://127.0.0.1/",
        "http://",
        "http://[",
        "//127.0.0.1/",
        "http://127.0.0.1/ x",
        "http://127.0.0.1/\n",
        "http://127.0.0.1/" + "x" * 8192,
        "",
    ],
)
async def test_only_addresses_of_the_web_are_opened(guest: Client, url: str) -> None:
    reply = await ask(guest, "open", url=url)
    assert (reply.status, reply.code, reply.json["error"]["field"]) == (400, "bad_field", "url")


@pytest.mark.parametrize(
    ("what", "fields", "field"),
    [
        ("open", {"url": "http://x/", "width": 10}, "width"),
        ("open", {"url": "http://x/", "height": 10**6}, "height"),
        ("open", {"url": "http://x/", "full_page": 1}, "full_page"),
        ("open", {"url": "http://x/", "limit_ms": 0}, "limit_ms"),
        ("click", {}, "selector"),
        ("click", {"selector": "x" * 5000}, "selector"),
        ("type", {"selector": "a"}, "text"),
        ("type", {"selector": "a", "text": "b", "submit": "yes"}, "submit"),
        ("evaluate", {"script": ""}, "script"),
    ],
)
async def test_a_bad_field_is_named(guest: Client, what: str, fields: dict[str, Any], field: str) -> None:
    reply = await ask(guest, what, **fields)
    assert (reply.status, reply.code, reply.json["error"]["field"]) == (400, "bad_field", field)


async def test_what_is_not_on_the_page_is_refused(guest: Client, site: Site) -> None:
    await shown(guest, "open", url=site.page("few", "<p style='display:none'>hidden</p><i>plain</i><input readonly>"))
    for what, fields in (
        ("click", {"selector": "#nowhere"}),
        ("click", {"selector": "p"}),
        ("type", {"selector": "i", "text": "x"}),
        ("type", {"selector": "input", "text": "x"}),
    ):
        reply = await ask(guest, what, **fields)
        assert (reply.status, reply.code) == (404, "no_element"), (what, fields)
    reply = await ask(guest, "click", selector="[[")
    assert (reply.status, reply.code, reply.json["error"]["field"]) == (400, "bad_field", "selector")


async def test_a_page_that_crashed_is_told_and_the_next_one_opens(guest: Client, site: Site) -> None:
    url = site.page("crash", "<title>Crash</title>")
    await shown(guest, "open", url=url)
    renderers = processes_of(guest, "renderer")
    assert renderers
    for pid in renderers:
        os.kill(pid, signal.SIGKILL)
    reply = await ask(guest, "evaluate", script="1")
    assert reply.code in ("page_failed", "no_page")
    assert (await shown(guest, "open", url=url))["title"] == "Crash"


async def test_a_browser_that_died_is_started_again(guest: Client, site: Site) -> None:
    url = site.page("dead", "<title>Dead</title>")
    await shown(guest, "open", url=url)
    (browser,) = processes_of(guest, "browser")
    os.kill(browser, signal.SIGKILL)
    reply = await ask(guest, "evaluate", script="1")
    assert reply.code in ("page_failed", "no_page")
    assert (await shown(guest, "open", url=url))["title"] == "Dead"
    assert processes_of(guest, "browser") not in ([], [browser])


async def test_a_caller_that_leaves_is_in_nobodys_way(guest: Client, site: Site) -> None:
    conversation = await guest.connect()
    body = b'{"url": "%b/never"}' % site.url.encode()
    await conversation.send("POST", "/browser/open", body)
    await conversation.close()
    told = await shown(guest, "open", url=site.page("mine", "<title>Mine</title>"))
    assert told["title"] == "Mine"


async def test_a_caller_that_leaves_while_the_browser_starts_leaves_it_to_the_next(
    fresh_guest: Client, site: Site
) -> None:
    conversation = await fresh_guest.connect()
    await conversation.send("POST", "/browser/open", b'{"url": "%b/one"}' % site.url.encode())

    async def begun() -> bool:
        return bool(processes_of(fresh_guest, "browser"))

    await fresh_guest.until(begun)
    await conversation.close()
    assert (await shown(fresh_guest, "open", url=site.page("next", "<title>Next</title>")))["title"] == "Next"
    (browser,) = processes_of(fresh_guest, "browser")
    await ask(fresh_guest, "close")
    await shown(fresh_guest, "open", url=f"{site.url}/next")
    assert processes_of(fresh_guest, "browser") not in ([], [browser])


async def test_it_gains_no_privileges_and_nothing_of_it_stays(guest: Client, site: Site) -> None:
    await shown(guest, "open", url=site.page("rights", ""))
    (browser,) = processes_of(guest, "browser")
    assert "NoNewPrivs:\t1" in Path(f"/proc/{browser}/status").read_text()
    words = Path(f"/proc/{browser}/cmdline").read_bytes().decode().split("\0")
    (profile,) = [word.partition("=")[2] for word in words if word.startswith("--user-data-dir=")]
    assert Path(profile).stat().st_mode & 0o777 == 0o700
    assert (await ask(guest, "close")).status == 200
    assert not Path(f"/proc/{browser}").exists()
    assert not Path(profile).exists()
    await guest.until(lambda: _is_unnamed(profile))
    assert (await ask(guest, "close")).status == 200
    for what, fields in (("click", {"selector": "a"}), ("evaluate", {"script": "1"})):
        reply = await ask(guest, what, **fields)
        assert (reply.status, reply.code) == (409, "no_page")


async def _is_unnamed(profile: str) -> bool:
    """Whether no process has it among its words: what reports crashes is in no session of the browser's."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if profile.encode() in path.read_bytes():
                return False
    return True


@contextlib.asynccontextmanager
async def _altered(folder: Path, change: str) -> AsyncIterator[Client]:
    """A guest in which one thing is not as it is."""
    (folder / "workspace").mkdir()
    path = str(folder / "guest.sock")
    program = (
        f"import warren_guest.browser.launch as launch; import warren_guest.browser.browser as browser; {change}; "
        f"from warren_guest.__main__ import main; main(['--socket', {path!r}, '--workspace', {str(folder)!r}])"
    )
    process = subprocess.Popen([sys.executable, "-c", program], cwd=GUEST, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert b"ready" in process.stdout.readline()
    guest = Client(path, process.pid, folder / "workspace")
    yield guest
    await guest.close()
    end(process)


async def test_a_browser_that_nobody_uses_ends(tmp_path: Path, site: Site) -> None:
    async with _altered(tmp_path, "browser.Browser.__init__.__kwdefaults__['quiet_s'] = 1.0") as guest:
        await shown(guest, "open", url=site.page("quiet", ""))

        async def gone() -> bool:
            return processes_of(guest, "browser") == []

        await guest.until(gone)
        assert (await ask(guest, "evaluate", script="1")).code == "no_page"


async def test_a_guest_that_ends_takes_its_browser_along(tmp_path: Path, site: Site) -> None:
    async with _altered(tmp_path, "None") as guest:
        await shown(guest, "open", url=site.page("last", ""))
        (browser,) = processes_of(guest, "browser")
    assert not Path(f"/proc/{browser}").exists()


async def test_a_machine_without_a_browser_says_so(tmp_path: Path, site: Site) -> None:
    async with _altered(tmp_path, "launch._PROGRAMS = ()") as guest:
        reply = await ask(guest, "open", url=site.url)
        assert (reply.status, reply.code) == (400, "browser_missing")


def test_the_browser_trusts_whom_the_machine_trusts_and_no_longer_than_it_does(tmp_path: Path) -> None:
    trust = launch.Trust(str(tmp_path / "ca.crt"), str(tmp_path / "policies"))
    (tmp_path / "ca.crt").write_text(_PEM)
    launch.write_policy(trust)
    policy = tmp_path / "policies/warren.json"
    assert policy.read_text() == '{"CACertificates": ["AAECAwQF"]}'
    assert policy.stat().st_mode & 0o777 == 0o644
    (tmp_path / "ca.crt").unlink()
    launch.write_policy(trust)
    assert policy.read_text() == '{"CACertificates": []}'
