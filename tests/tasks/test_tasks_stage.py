"""The stage itself: what the other tests of this folder stand on."""

from http.server import BaseHTTPRequestHandler

from tests.tasks.client import Caller
from tests.tasks.stage import Stage


class _Hello(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: object) -> None:
        pass


def test_a_machine_reaches_the_servers_of_a_test_by_name_and_by_nothing_but_its_policy(
    stage: Stage, alice: Caller
) -> None:
    with (
        stage.places.web("hello.example.com", _Hello),
        alice.sandbox(image="minimal", network={"allow": [{"host": "hello.example.com"}]}) as sandbox,
    ):
        assert sandbox.sh("curl -sS -m 30 https://hello.example.com/") == "hello"
        assert sandbox.run("curl -sS -m 30 https://web.example.com/")["exit_code"] != 0
