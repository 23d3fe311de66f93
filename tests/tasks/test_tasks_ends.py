"""What follows a task's end: webhooks, a sandbox that is kept. And what it was given for its life: secrets by name."""

import hashlib
import hmac
import json
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.tasks import leaks
from tests.tasks.client import Caller
from tests.tasks.stage import OTHER, OWNER, Stage
from tests.vm.client import until

SECRET = "a secret that signs"


class _Hook(BaseHTTPRequestHandler):
    """Fails once before it takes anything."""

    heard: list[tuple[dict[str, str], bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.heard.append(({name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(500 if len(self.heard) < 2 else 204)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def listening(name: str) -> Any:
    return type(name, (_Hook,), {"heard": []})


def test_a_webhook_is_signed_and_said_again_until_it_is_heard(stage: Stage, alice: Caller) -> None:
    hook = listening("Hook")
    with stage.places.web("hook.example.com", hook):
        webhook = {"url": "https://hook.example.com/warren?for=me", "secret": SECRET}
        task = alice.task("edit a.txt a", webhook=webhook)
        view = task.ended()
        until(lambda: len(hook.heard) >= 2, limit_s=120)
    assert view["webhook"] == webhook["url"]
    for headers, body in hook.heard:
        told = json.loads(body)
        assert (told["task"]["id"], told["task"]["state"]) == (task.id, "completed")
        at, _, signature = headers["warren-signature"].removeprefix("t=").partition(",v1=")
        assert signature == hmac.new(SECRET.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    assert len({(headers["warren-delivery"], body) for headers, body in hook.heard}) == 1
    assert leaks.found(stage, task, leaks.forms(SECRET)) == []


def test_a_webhook_to_a_private_place_is_refused(alice: Caller) -> None:
    reply = alice.ask_task(prompt="say never", webhook={"url": "http://10.0.0.5/"})
    assert reply.status == 400
    assert "webhook" in reply.json["error"]["message"]


def test_a_sandbox_that_is_kept_has_what_the_agent_left_and_others_are_gone(alice: Caller) -> None:
    kept, gone = alice.task("edit a.txt kept", keep_minutes=5), alice.task("edit a.txt gone")
    sandbox = kept.ended()["sandbox"]
    path = f"/v1/sandboxes/{sandbox}"
    reply = alice.post(f"{path}/exec", cmd="find /workspace -name a.txt | xargs cat")
    assert reply.json["stdout"] == "kept\n"
    assert alice.call("DELETE", path).status == 200
    other = gone.ended()["sandbox"]
    assert alice.call("GET", f"/v1/sandboxes/{other}").json["state"] == "stopped"


def test_secrets_are_given_by_name_to_the_agent_and_to_nobody_else(stage: Stage, alice: Caller) -> None:
    value = "hunter2-hunter3-hunter4"
    stage.secret("DEPLOY_TOKEN", value)
    stage.secret("OWN_TOKEN", "mine-and-mine-alone", OWNER)
    task = alice.task(
        "run printf %s $DEPLOY_TOKEN$OWN_TOKEN | sha256sum\nask Seen?", secrets=["DEPLOY_TOKEN", "OWN_TOKEN"]
    )
    asked = task.question("question")
    assert leaks.found(stage, task, [value, "mine-and-mine-alone"]) == []
    assert task.say("answer", asked["id"], "yes").status == 200
    task.ended()
    (step,) = (step for step in task.steps() if step["tool"] == "Bash")
    assert step["output"].split()[0] == hashlib.sha256(f"{value}mine-and-mine-alone".encode()).hexdigest()
    assert leaks.found(stage, task, [value, "mine-and-mine-alone"]) == []


def test_a_secret_of_somebody_else_is_none(stage: Stage, alice: Caller, mallory: Caller) -> None:
    stage.secret("HIS_TOKEN", "his", OTHER)
    reply = alice.ask_task(prompt="say never", secrets=["HIS_TOKEN"])
    assert reply.status == 400
    assert "HIS_TOKEN" in reply.json["error"]["message"]
