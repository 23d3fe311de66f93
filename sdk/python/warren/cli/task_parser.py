"""What can be asked for of tasks, as a part of the tree of `parser`."""

import argparse
import os
import re

from warren.cli.parts import Group, count, group, leaf, number, pair, pairs, seconds
from warren_console import network

AGENTS = ("mock", "claude", "codex", "cursor")
STATES = ("queued", "planning", "running", "paused", "completed", "failed", "stopped")
EPILOG = """\
exit codes: 0 it completed, 1 it failed, 5 it was stopped; 130 you left it, and it goes on.

At a terminal, what the task asks is asked there, and control-C asks whether to stop it or to leave it running; the
second one leaves. WARREN_WEBHOOK_SECRET signs what --webhook is sent.
"""
ACTS = {"stop": "end them; what they have done is kept", "pause": "put them to sleep on disk", "resume": "wake them"}


def add_run(top: Group) -> None:
    run = leaf(top, "run", "run.run", "have an agent do something, and watch it")
    run.epilog = EPILOG
    run.formatter_class = argparse.RawDescriptionHelpFormatter
    run.add_argument("prompt", metavar="PROMPT", nargs="?", help="what to do")
    run.add_argument("--prompt-file", metavar="FILE", help="what to do, from a file; - is standard input")
    run.add_argument("--agent", required=True, choices=AGENTS)
    _request(run)
    run.add_argument("-d", "--detach", action="store_true", help="print its id, and do not watch it")


def _request(run: argparse.ArgumentParser) -> None:
    run.add_argument("--model", metavar="NAME", help="the agent's model (its own default)")
    _repository(run)
    run.add_argument("--image", metavar="NAME", help="what its machine is made from")
    run.add_argument("--vcpus", type=count, metavar="N", help="processors")
    run.add_argument("--memory", dest="memory_mb", type=count, metavar="MB")
    run.add_argument("--disk", dest="disk_mb", type=count, metavar="MB")
    help = "for the agent; NAME alone is taken from your environment"
    run.add_argument("--env", action="append", default=[], type=_variable, metavar="K=V", help=help)
    run.add_argument("--secret", action="append", default=[], metavar="NAME", help="that your operator keeps")
    _limits(run)
    network.add_options(run, whose="what it may reach, besides the repository and the agent's provider")
    help = "in place of --repo: what was saved under this name, and is saved under it at the end"
    run.add_argument("--workspace", metavar="NAME", help=help)
    run.add_argument("--keep", dest="keep_minutes", type=number, metavar="MIN", help="keep its machine after the end")
    run.add_argument("--webhook", metavar="URL", help="is told of the end")
    pairs(run, "--metadata", "shown with the task")


def _repository(run: argparse.ArgumentParser) -> None:
    run.add_argument("--repo", metavar="URL", help="is cloned for it")
    run.add_argument("--ref", metavar="REF", help="a branch, a tag or a commit of it")
    run.add_argument("--depth", type=number, metavar="N", help="how much of its history (all)")
    run.add_argument("--branch", metavar="NAME", help="the work is committed on it (warren/ID)")
    run.add_argument("--push", action="store_true", help="push that branch at the end")


def _limits(run: argparse.ArgumentParser) -> None:
    run.add_argument("--cap-steps", type=count, metavar="N", help="it fails beyond (200)")
    run.add_argument("--cap-tokens", type=count, metavar="N")
    run.add_argument("--cap-usd", type=_usd, metavar="USD")
    run.add_argument("--cap-wall", type=seconds, metavar="TIME", help="90, 30m, 2h (1h)")
    run.add_argument("--approve-tool", action="append", default=[], metavar="NAME", help="ask before it is used")
    help = "ask before it is run: a pattern of whole command lines, such as 'rm -rf *'"
    run.add_argument("--approve-command", action="append", default=[], metavar="PATTERN", help=help)
    run.add_argument("--approve-push", action="store_true", help="ask before it pushes")
    run.add_argument("--approve-hosts", action="store_true", help="ask about hosts that it may not reach")
    run.add_argument("--approve-spend", type=_usd, metavar="USD", help="ask whenever it has spent so much more")


def add_tasks(top: Group) -> None:
    tasks = group(top, "tasks", "what agents do for you")
    _ls(leaf(tasks, "ls", "tasks.ls", "list your tasks, newest first"))
    _one(tasks, "show", "tasks.show", "all about one")
    follow = _one(tasks, "follow", "tasks.watch", "what happened, and what happens, until it has ended")
    follow.add_argument("--after", type=number, default=0, metavar="SEQ", help="only what is behind this number")
    for name, help in ACTS.items():
        leaf(tasks, name, f"tasks.{name}", help).add_argument("tasks", metavar="ID", nargs="+")
    _words(tasks)
    _one(tasks, "diff", "tasks.diff", "what it has changed; in a pipe byte for byte, for git apply")
    steps = _one(tasks, "steps", "tasks.steps", "what it did, step by step")
    steps.add_argument("--after", type=number, default=0, metavar="N", help="only what is behind this step")
    _files(tasks)
    retry = _one(tasks, "retry", "tasks.retry", "a new task that is asked for the same, and watch it")
    retry.add_argument("--prompt", metavar="PROMPT", help="what to do instead")
    retry.add_argument("--agent", choices=AGENTS, help="by whom instead")
    retry.add_argument("--model", metavar="NAME", help="with this model instead")
    retry.add_argument("--ref", metavar="REF", help="from here instead")
    retry.add_argument("-d", "--detach", action="store_true", help="print its id, and do not watch it")


def _ls(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state", dest="task_state", metavar="STATE[,STATE]", help="only in these states")
    parser.add_argument("--agent", choices=AGENTS, help="only of this agent")
    parser.add_argument("--owner", metavar="NAME", help="somebody else's, or * for everybody's (admin)")
    parser.add_argument("-n", "--limit", type=count, default=50, metavar="N", help="at most so many (%(default)s)")
    parser.add_argument("-q", "--quiet", action="store_true", help="only their ids")


def _words(tasks: Group) -> None:
    for name, help in (("approve", "say yes to what it asks"), ("reject", "say no to what it asks")):
        parser = _one(tasks, name, f"tasks.{name}", help)
        parser.add_argument("question", metavar="QUESTION", nargs="?", help="its id; else the only one that is open")
        parser.add_argument("-m", "--text", default="", help="and why, or what to do instead")
    answer = _one(tasks, "answer", "tasks.answer", "answer what it asks")
    answer.add_argument("question", metavar="QUESTION", nargs="?", help="its id; else the only one that is open")
    answer.add_argument("text", metavar="TEXT")
    _one(tasks, "instruct", "tasks.instruct", "tell its agent something").add_argument("text", metavar="TEXT")


def _files(tasks: Group) -> None:
    _one(tasks, "artifacts", "task_files.artifacts", "its files: whole outputs, screenshots")
    get = _one(tasks, "get", "task_files.get", "one of its files")
    get.add_argument("artifact", metavar="NAME")
    get.add_argument("-o", "--output", metavar="FILE", help="where to (NAME here); - is standard output")
    archive = _one(tasks, "archive", "task_files.archive", "the whole workspace at its end, a tar in zstd")
    where = archive.add_mutually_exclusive_group()
    where.add_argument("-o", "--output", metavar="FILE", help="where to (ID.tar.zst here); - is standard output")
    where.add_argument("--extract", metavar="DIR", help="unpack it into this folder")


def _one(parent: Group, name: str, run: str, help: str) -> argparse.ArgumentParser:
    parser = leaf(parent, name, run, help)
    parser.add_argument("task", metavar="ID", help="a task: its id, or the first characters of it")
    return parser


def add_browse(top: Group) -> None:
    browse = leaf(top, "browse", "browse.browse", "open a page in the browser of a sandbox, and tell what it shows")
    browse.add_argument("sandbox", metavar="ID", help="a sandbox")
    browse.add_argument("page", metavar="URL")
    browse.add_argument("--screenshot", metavar="FILE", help="keep what it looks like, a PNG")
    browse.add_argument("--full-page", action="store_true", help="all of it, and not only what fits a window")


def _usd(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,7}(\.[0-9]{1,6})?", text) or float(text) <= 0:
        raise argparse.ArgumentTypeError(f"must be a number of dollars such as 2.50, got {text!r}")
    return float(text)


def _variable(text: str) -> tuple[str, str]:
    """`NAME=VALUE`, or a variable of our own, whose value nobody sees among the arguments."""
    if "=" in text:
        return pair(text)
    if text not in os.environ:
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, or the name of a variable that you have, got {text!r}")
    return text, os.environ[text]
