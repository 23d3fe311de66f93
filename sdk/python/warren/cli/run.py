"""`warren run`: a task from what was typed, and then what happens in it."""

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from warren.cli import errors, network
from warren.cli.context import Context
from warren.cli.errors import Failure, UsageError
from warren.cli.follow import follow
from warren.cli.program import PROGRAM, say
from warren.cli.progress import busy
from warren.tasks import Task

STREAM = "-"
PLAIN = (
    "model",
    "repo",
    "ref",
    "depth",
    "branch",
    "image",
    "vcpus",
    "memory_mb",
    "disk_mb",
    "keep_minutes",
    "workspace",
)
MAX_PROMPT_BYTES = 8 << 20  # of a request as a whole; the gateway says what is too long
WEBHOOK_SECRET = "WARREN_WEBHOOK_SECRET"  # noqa: S105 — the name of a variable


def run(context: Context) -> int:
    asked, out = context.asked, context.out
    prompt, fields = _prompt(context), request(context)
    task = _created(context, prompt, fields)
    if not asked.detach:
        return follow(context, task)
    if out.as_json:
        out.json(asdict(task.info))
    else:
        out.line(task.id)
    return errors.DONE


def _created(context: Context, prompt: str, fields: dict[str, Any]) -> Task:
    try:
        with busy("making a task"):
            return context.warren.tasks.create(prompt, agent=context.asked.agent, **fields)
    except KeyboardInterrupt:
        say(f"it may have been made nevertheless: {PROGRAM} tasks ls")
        raise


def _prompt(context: Context) -> str:
    """What was typed, or what is in a file, or in standard input."""
    asked = context.asked
    if (asked.prompt is None) == (asked.prompt_file is None):
        raise UsageError("say what to do: a prompt, or --prompt-file FILE (- is standard input)")
    prompt: str = asked.prompt if asked.prompt is not None else _read(asked.prompt_file)
    if not prompt.strip():
        raise UsageError("the prompt is empty")
    return prompt


def _read(name: str) -> str:
    try:
        if name == STREAM:
            data = sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(MAX_PROMPT_BYTES + 1)
        text = data.decode()
    except OSError as error:
        raise Failure(f"{name}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{name} is not text in UTF-8") from None
    if len(data) > MAX_PROMPT_BYTES:
        raise UsageError(f"{name} is longer than {MAX_PROMPT_BYTES} bytes")
    return text


def request(context: Context) -> dict[str, Any]:
    """What the options say, as fields of a task; what they do not say is not in it."""
    asked = context.asked
    fields: dict[str, Any] = {name: getattr(asked, name) for name in PLAIN}
    fields |= {
        "push": asked.push or None,
        "env": dict(asked.env),
        "secrets": asked.secret,
        "caps": _given(steps=asked.cap_steps, tokens=asked.cap_tokens, usd=asked.cap_usd, wall_sec=asked.cap_wall),
        "approvals": _approvals(context),
        "network": network.asked(context),
        "webhook": _webhook(context),
        "metadata": dict(asked.metadata),
    }
    return {name: value for name, value in fields.items() if value not in (None, {}, [])}


def _approvals(context: Context) -> dict[str, Any]:
    asked = context.asked
    return _given(
        tools=asked.approve_tool or None,
        commands=asked.approve_command or None,
        push=asked.approve_push or None,
        hosts=asked.approve_hosts or None,
        spend_usd=asked.approve_spend,
    )


def _webhook(context: Context) -> dict[str, str] | None:
    """Its secret is in the environment: everybody on the machine sees the arguments of a command."""
    if context.asked.webhook is None:
        return None
    secret = os.environ.get(WEBHOOK_SECRET)
    return {"url": context.asked.webhook, **({"secret": secret} if secret else {})}


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
