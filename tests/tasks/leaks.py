"""Where a secret could have got to: what poold keeps, what it logs, what it tells, and what any process was told."""

import base64
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from tests.tasks.client import Task
from tests.tasks.stage import Stage
from tests.vm.client import Api


def forms(secret: str, user: str = "") -> list[str]:
    """The secret as it may be written, and as a header has it."""
    return [secret, quote(secret, safe=""), base64.b64encode(f"{user}:{secret}".encode()).decode()]


def found(stage: Stage, task: Task, forms: list[str]) -> list[str]:
    """The places outside of its vault and its machine where any of the forms is."""
    places = list(_files(stage, forms)) + list(_processes(forms))
    texts = {"logs": stage.logs(), "view": task.get().body.decode(), "events": str(task.events())}
    request = Api(stage.host, as_operator=True).call("GET", f"/v1/tasks/{task.id}/request")
    assert request.status == 200, request
    texts |= {"steps": str(task.steps()), "request": request.body.decode()}
    return places + [name for name, text in texts.items() if any(form in text for form in forms)]


def _files(stage: Stage, forms: list[str]) -> Iterator[str]:
    patterns = [word for form in forms for word in ("-e", form)]
    hidden = ["--exclude-dir=machines", "--exclude=vault"]
    argv = ["grep", "-rlaF", *hidden, *patterns, str(stage.host.state), str(stage.folder / "gateway.log")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    yield from done.stdout.splitlines()


def _processes(forms: list[str]) -> Iterator[str]:
    for process in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                said = (process / name).read_bytes()
            except OSError:
                continue
            if any(form.encode() in said for form in forms):
                yield str(process / name)
