"""A task in a few lines: what is now, and what came of it in the end. No I/O."""

from collections.abc import Mapping
from typing import Any

from warren_console import text
from warren_console.rows import Row
from warren_console.timeline import HASH_CHARS, Timeline, diff_text, said, tokens

DOT = " · "
SHOWN_COMMITS = 20
ENDS = {"completed": ("✓", "green"), "failed": ("✗", "red"), "stopped": ("■", "yellow")}


def live_line(timeline: Timeline, wheel: str, now_ms: int, columns: int) -> str:
    """`⠋ running · 1m23s · 12 steps · 34.5k tokens · $0.42 · npm test`: in one line that fits."""
    state = "waits for you" if timeline.open else timeline.state
    began_ms = now_ms if timeline.began_ms is None else timeline.began_ms
    told = [f"{wheel} {state}", text.span(max(0, now_ms - began_ms) / 1000), text.plural(timeline.steps, "step")]
    told += [f"{text.many(timeline.tokens)} tokens"] if timeline.tokens else []
    told += [] if timeline.usd is None else [text.dollars(timeline.usd)]
    doing = timeline.doing
    told += [] if doing is None else [f"{doing.mark} {' '.join(doing.text.split())}"]
    return text.cut(text.clean(DOT.join(told)), columns)


def head(task: Mapping[str, Any]) -> Row:
    """`tk-… claude  example.com/repo → agent/x`"""
    repo, branch = said(task, "repo"), said(task, "branch")
    where = repo.partition("://")[2] + (f" @ {said(task, 'ref')}" if said(task, "ref") else "") if repo else ""
    where = where or (f"workspace {said(task, 'workspace')}" if said(task, "workspace") else "")
    model = said(task, "model")
    who = said(task, "agent") + (f" ({model})" if model else "")
    return Row(None, "▸", f"{said(task, 'id')}  {who}", "bold", "bold", where + (f" → {branch}" if branch else ""))


def usage_text(task: Mapping[str, Any]) -> str:
    """`1m23s · 12 steps · 34.5k tokens · $0.42`"""
    usage: Any = task.get("usage") or {}
    cached = usage.get("cache_read_tokens") or 0
    told = [text.span((usage.get("wall_ms") or 0) / 1000), text.plural(usage.get("steps") or 0, "step")]
    told += [f"{text.many(tokens(usage))} tokens" + (f" ({text.many(cached)} cached)" if cached else "")]
    if usage.get("usd") is not None:
        told.append(text.dollars(usage["usd"], is_estimate=bool(usage.get("usd_is_estimate"))))
    return DOT.join(told)


def ending(task: Mapping[str, Any], program: str) -> list[Row]:
    """What came of a task that is over: how, the changes, the commits, and where the rest is."""
    mark, style = ENDS.get(said(task, "state"), ("·", ""))
    reason, result = task.get("reason"), task.get("result")
    why = f": {said(reason, 'message')}" if isinstance(reason, Mapping) and said(reason, "message") else ""
    rows = [Row(None, mark, said(task, "state") + why, style, style, usage_text(task))]
    if isinstance(result, Mapping):
        rows += _result(result)
        rows.append(Row(None, " ", f"{program} tasks diff {said(task, 'id')}", "dim"))
        if isinstance(result.get("archive"), Mapping):
            size = text.size(result["archive"].get("bytes"))
            rows.append(Row(None, " ", f"{program} tasks archive {said(task, 'id')} --extract DIR", "dim", "", size))
    return rows


def _result(result: Mapping[str, Any]) -> list[Row]:
    diff, commits, pushed = result.get("diff"), result.get("commits"), result.get("pushed")
    rows = [Row(None, "±", diff_text(diff), "", "blue")] if isinstance(diff, Mapping) else []
    listed = [each for each in commits if isinstance(each, Mapping)] if isinstance(commits, list | tuple) else []
    for each in listed[:SHOWN_COMMITS]:
        rows.append(Row(None, "◆", f"{said(each, 'hash')[:HASH_CHARS]}  {said(each, 'subject')}", "", "magenta"))
    if len(listed) > SHOWN_COMMITS:
        rows.append(Row(None, " ", f"… {len(listed) - SHOWN_COMMITS} more", "dim"))
    rows += [_pushed(pushed)] if isinstance(pushed, Mapping) else []
    problems = result.get("problems")
    for name in problems if isinstance(problems, Mapping) else ():
        rows.append(Row(None, "!", f"{name} could not be kept: {said(problems, name)}", "", "red"))
    return rows


def _pushed(pushed: Mapping[str, Any]) -> Row:
    if said(pushed, "refused"):
        why = said(pushed, "message") or said(pushed, "refused")
        return Row(None, "✗", f"{said(pushed, 'branch')} was not pushed: {why}", "", "red")
    return Row(None, "⇡", f"pushed {said(pushed, 'branch') or said(pushed, 'to')[:HASH_CHARS]}", "", "magenta")
