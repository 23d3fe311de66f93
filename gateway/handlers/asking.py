"""Asking hosts for clients: the one that has an id, or all of them for a list."""

import asyncio
from typing import Any
from urllib.parse import urlencode

from contract.tickets import Access
from gateway.errors import HostUnreachable, not_found
from gateway.handlers.queries import whose
from gateway.hosts import Answer
from gateway.services import Call
from gateway.upstream import MAX_JSON_BYTES

LIST_S = 5.0
LIST_BYTES = 32 << 20  # a page of what each owner may write much into


async def on_its_host(
    call: Call,
    method: str,
    either: str,
    target: str,
    access: Access,
    *,
    value: Any = None,
    limit_s: float = 30.0,
    max_bytes: int = MAX_JSON_BYTES,
) -> Answer:
    """Ask the host that has the sandbox or task, wherever that is now."""
    hosts = call.services.hosts
    headers = [(b"x-request-id", call.request_id.encode())]
    for _ in range(2):
        host = await hosts.find(either)
        answer = await hosts.ask(
            host,
            method,
            target,
            access,
            call.who.owner,
            either,
            value=value,
            headers=headers,
            limit_s=limit_s,
            max_bytes=max_bytes,
        )
        if not is_not_mine(answer):
            return answer
        hosts.forget(either)
    raise not_found(either)


def is_not_mine(answer: Answer) -> bool:
    return answer.status == 404 and any(name == b"warren-not-mine" for name, _ in answer.headers)


async def listed(call: Call, path: str, query: str, owner: str | None) -> tuple[list[Any], list[str]]:
    """The page of each host, and the names of those that did not answer."""
    access, of = whose(call, owner)
    target = f"{path}?{query}" + (f"&{urlencode({'owner': of})}" if of else "")
    hosts = call.services.hosts

    async def ask(name: str) -> Any:
        try:
            answer = await hosts.ask(name, "GET", target, access, call.who.owner, limit_s=LIST_S, max_bytes=LIST_BYTES)
        except HostUnreachable:
            return None
        return {} if answer.status == 404 else answer.or_raise()  # a former version has none of these

    names = sorted(hosts.names())
    said = await asyncio.gather(*(ask(name) for name in names))
    silent = [name for name, page in zip(names, said, strict=True) if page is None]
    return [page for page in said if page is not None], silent


def merged(pages: list[Any], limit: int, name: str = "sandboxes") -> tuple[list[Any], str | None]:
    """The newest `limit` rows of all pages, and the cursor behind them if there are more."""
    rows = [row for page in pages for row in page.get(name, ())]
    rows.sort(key=lambda row: (row["created_ms"], row["id"]), reverse=True)
    is_more = len(rows) > limit or any(page.get("next") for page in pages)
    rows = rows[:limit]
    return rows, f"{rows[-1]['created_ms']}.{rows[-1]['id']}" if is_more and rows else None
