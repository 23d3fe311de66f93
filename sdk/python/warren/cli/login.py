"""`warren login` and `warren logout`: the gateway's address and a key, kept for this person only."""

import getpass
import os
import sys

from warren import config
from warren.cli import errors
from warren.cli.context import Context
from warren.cli.errors import UsageError
from warren.cli.program import say
from warren.cli.progress import busy
from warren.client import Warren
from warren.config import Config
from warren.retries import Retries


def login(context: Context) -> int:
    """Ask for what is needed, try it, and only then keep it."""
    url = config.checked_url(context.asked.address or os.environ.get("WARREN_URL") or _ask("gateway: "))
    key = config.checked_key(_ask_key())
    ca = context.asked.ca
    # Once: who typed the wrong thing wants to know it now.
    with Warren(url, key, ca=ca, retries=Retries(attempts=1)) as warren, busy(f"asking {url}"):
        next(warren.sandboxes(), None)
    file = config.store(Config(url, key, ca), os.environ)
    say(f"the key is good, and kept in {file}")
    return errors.DONE


def logout(context: Context) -> int:
    file = config.config_file(os.environ)
    file.unlink(missing_ok=True)
    say(f"{file} is gone; the key itself is good until it is revoked")
    return errors.DONE


def _ask(question: str) -> str:
    if not sys.stdin.isatty():
        raise UsageError("say which gateway", hint="warren login https://warren.example.com")
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline()


def _ask_key() -> str:
    """Never as an argument: those can be seen by everybody on the machine."""
    return getpass.getpass("key: ") if sys.stdin.isatty() else sys.stdin.readline()
