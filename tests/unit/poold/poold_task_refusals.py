"""Requests about tasks that are refused, at least one for each route: method, path, body, status, code, field."""

A_TASK = "/v1/tasks/tk-aaaaaaaaaaaaaaaa"
ASKED = {"prompt": "Do it.", "agent": "mock"}

TASKS: list[tuple[str, str, object, int, str, str | None]] = [
    ("POST", "/v1/tasks", {}, 400, "bad_field", "prompt"),
    ("POST", "/v1/tasks", {"prompt": "x"}, 400, "bad_field", "agent"),
    ("POST", "/v1/tasks", {**ASKED, "prompt": " \n"}, 400, "bad_field", "prompt"),
    ("POST", "/v1/tasks", {**ASKED, "prompt": "x" * ((1 << 20) + 1)}, 400, "bad_field", "prompt"),
    ("POST", "/v1/tasks", {**ASKED, "agent": "hal"}, 400, "bad_field", "agent"),
    ("POST", "/v1/tasks", {**ASKED, "image": "windows"}, 400, "bad_field", "image"),
    ("POST", "/v1/tasks", {**ASKED, "agent": "claude"}, 400, "bad_field", "image"),  # this host has none for it
    ("POST", "/v1/tasks", {**ASKED, "repo": "https://10.0.0.5/a.git"}, 400, "bad_field", "repo"),
    ("POST", "/v1/tasks", {**ASKED, "repo": "git@example.com:a"}, 400, "bad_field", "repo"),
    ("POST", "/v1/tasks", {**ASKED, "push": True}, 400, "bad_field", "push"),
    ("POST", "/v1/tasks", {**ASKED, "caps": {"usd": 0}}, 400, "bad_field", "caps.usd"),
    ("POST", "/v1/tasks", {**ASKED, "caps": {"stps": 1}}, 400, "bad_field", "caps.stps"),
    ("POST", "/v1/tasks", {**ASKED, "secrets": ["NONE_SUCH"]}, 400, "bad_field", "secrets[0]"),
    ("POST", "/v1/tasks", {**ASKED, "webhook": {"url": "http://127.0.0.1/"}}, 400, "bad_field", "webhook.url"),
    ("POST", "/v1/tasks", {**ASKED, "retry_of": "sb-aaaaaaaaaaaaaaaa"}, 400, "bad_field", "retry_of"),
    ("POST", "/v1/tasks", b" " * ((8 << 20) + 1), 413, "body_too_large", None),
    ("POST", "/v1/tasks", b"{", 400, "bad_request", None),
    ("GET", "/v1/tasks?state=asleep", None, 400, "bad_field", "state[0]"),
    ("GET", "/v1/tasks?agent=hal", None, 400, "bad_field", "agent"),
    ("GET", "/v1/tasks?before=1.sb-aaaaaaaaaaaaaaaa", None, 400, "bad_field", "before"),
    ("GET", "/v1/tasks?limit=0", None, 400, "bad_field", "limit"),
    ("GET", A_TASK, None, 404, "not_mine", None),
    ("GET", "/v1/tasks/nonsense", None, 404, "not_found", None),
    ("GET", "/v1/tasks/sb-aaaaaaaaaaaaaaaa", None, 404, "not_found", None),
    ("DELETE", A_TASK, None, 405, "method_not_allowed", None),
    *((method, f"{A_TASK}/{what}", None, 404, "not_mine", None) for method, what in [
        ("GET", "events"), ("GET", "steps"), ("GET", "diff"), ("GET", "artifacts"), ("GET", "artifacts/a"),
        ("GET", "archive"), ("GET", "request"), ("POST", "stop"), ("POST", "pause"), ("POST", "resume"),
        ("POST", "input"),
    ]),
    ("POST", "/v1/sandboxes/sb-aaaaaaaaaaaaaaaa/browser/open", {"url": "x"}, 404, "not_mine", None),
]  # fmt: skip

# Over the unix socket.
OPERATORS_TASKS: list[tuple[str, str, object, int, str, str | None]] = [
    ("POST", f"{A_TASK}/retry", {}, 404, "not_found", None),
    ("POST", f"{A_TASK}/retry", [], 400, "bad_request", None),
    ("POST", f"{A_TASK}/retry", b"{", 400, "bad_request", None),
]
