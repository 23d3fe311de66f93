"""The routes of git: each parses its request and asks `Git`."""

from collections.abc import Awaitable, Callable

from warren_guest.fields import bad_field, query_number
from warren_guest.git import asked as ask
from warren_guest.git.clone import Clone
from warren_guest.git.commits import Commit
from warren_guest.git.looks import Look
from warren_guest.git.operations import Result
from warren_guest.git.push import Push
from warren_guest.git.rails import Policy
from warren_guest.guest import Guest
from warren_guest.paths import resolve
from warren_guest.requests import read_object
from warren_guest.server import Answer, AnyAnswer, Request
from warren_guest.wire import to_json

_CLONE_S, _PUSH_S, _COMMIT_S, _LOOK_S = 1800.0, 600.0, 120.0, 60.0
_DEPTH_LIMIT = 1_000_000
PATCH_LIMIT = 64 << 20
_PATCH_BYTES = 16 << 20
_LOG_LIMIT, _LOG_COMMITS = 10_000, 100
_MESSAGE_LIMIT = 65_536
_DIFF_TYPE = "text/x-diff"


async def clone(guest: Guest, request: Request) -> Answer:
    fields = await read_object(request)
    name = ask.operation_of(fields)
    asked = Clone(
        url=ask.url_of(fields),
        ref=ask.ref_of(fields, "ref"),
        depth=fields.number("depth", 0, _DEPTH_LIMIT) or 0,
        path=_path(guest, fields.required_text("path")),
        branch=ask.branch_of(fields),
        author=ask.author_of(fields),
    )
    credentials, limit_s = ask.credentials_of(fields), ask.limit_s_of(fields, _CLONE_S)
    policy = Policy(asked.url, ask.protected_of(fields), asked.author) if fields.has("protected") else None

    async def work() -> Result:
        if policy is not None:
            await guest.git.enforce(policy)
        return await guest.git.clone(asked, credentials, limit_s)

    return _told(await guest.git.operations.do(name, ("clone", asked), work))


async def commit(guest: Guest, request: Request) -> Answer:
    fields = await read_object(request)
    name = ask.operation_of(fields)
    message = fields.text("message", limit=_MESSAGE_LIMIT)
    if not message or not message.strip():
        raise bad_field("message", "is required and must not be empty")
    asked = Commit(
        path=_path(guest, fields.required_text("path")),
        message=message,
        author=ask.author_of(fields),
        all=fields.flag("all") is not False,
    )
    limit_s = ask.limit_s_of(fields, _COMMIT_S)
    return _told(await guest.git.operations.do(name, ("commit", asked), lambda: guest.git.commit(asked, limit_s)))


async def push(guest: Guest, request: Request) -> Answer:
    fields = await read_object(request)
    name = ask.operation_of(fields)
    url, branch = ask.url_of(fields), ask.branch_of(fields)
    if branch is None:
        raise bad_field("branch", "is required and must not be empty")
    asked = Push(
        path=_path(guest, fields.required_text("path")),
        url=url,
        branch=branch,
        commit=ask.hash_of(fields, "commit"),
        policy=Policy(url, ask.protected_of(fields), ask.author_of(fields)),
    )
    credentials, limit_s = ask.credentials_of(fields), ask.limit_s_of(fields, _PUSH_S)
    work = lambda: guest.git.push(asked, credentials, limit_s)  # noqa: E731
    return _told(await guest.git.operations.do(name, ("push", asked), work))


async def cancel(guest: Guest, request: Request) -> Answer:
    """End an operation that is under way; the answer comes when nothing of it is left."""
    was = await guest.git.operations.cancel(ask.operation_of(await read_object(request)))
    return _told({"cancelled": was})


async def policy(guest: Guest, request: Request) -> Answer:
    """Rails for whoever works in the machine, without a clone."""
    fields = await read_object(request)
    url = ask.url_of(fields) if fields.has("url") else None
    await guest.git.enforce(Policy(url, ask.protected_of(fields), ask.author_of(fields)))
    return Answer()


async def diff(guest: Guest, request: Request) -> Answer:
    query = request.head.query
    limit = query_number(query, "limit", 1, PATCH_LIMIT) or _PATCH_BYTES
    asked = Look(_path(guest, query.get("path", "")), _base(request), limit)
    match query.get("format", "patch"):
        case "patch":
            done = await guest.git.patch(asked, _LOOK_S)
            headers = {"Warren-Truncated": "true"} if done.is_cut else {}
            return Answer(done.output, content_type=_DIFF_TYPE, headers=headers)
        case "stat":
            return _told(await guest.git.stat(asked, _LOOK_S))
        case other:
            raise bad_field("format", f"{other[:60]!a} is not patch or stat")


async def log(guest: Guest, request: Request) -> Answer:
    query = request.head.query
    limit = query_number(query, "limit", 1, _LOG_LIMIT) or _LOG_COMMITS
    return _told(await guest.git.log(Look(_path(guest, query.get("path", "")), _base(request), limit), _LOOK_S))


def _path(guest: Guest, text: str) -> str:
    return resolve(text, guest.accounts.find(None), guest.accounts)


def _base(request: Request) -> str | None:
    base = request.head.query.get("base") or None
    if base is not None and not ask.is_ref_name(base):
        raise bad_field("base", f"{base[:60]!a} is not the name of a commit")
    return base


def _told(result: Result) -> Answer:
    return Answer(to_json(result))


ROUTES: dict[str, dict[str, Callable[[Guest, Request], Awaitable[AnyAnswer]]]] = {
    "/git/clone": {"POST": clone},
    "/git/commit": {"POST": commit},
    "/git/push": {"POST": push},
    "/git/cancel": {"POST": cancel},
    "/git/policy": {"POST": policy},
    "/git/diff": {"GET": diff},
    "/git/log": {"GET": log},
}
