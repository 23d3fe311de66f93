"""Parts of the argparse tree that many commands share: groups and leaves of it, and the types of what is typed."""

import argparse
import re
from typing import Any

Group = Any  # argparse's type for the subcommands of a parser has no public name


def common(parser: argparse.ArgumentParser) -> None:
    """Options that may stand before and after the command: without defaults, or the latter would undo the former."""
    group = parser.add_argument_group("for every command")
    absent = argparse.SUPPRESS
    group.add_argument("--json", action="store_true", default=absent, help="for programs")
    group.add_argument("--url", metavar="URL", default=absent, help="the gateway")
    group.add_argument("--patience", type=positive, metavar="SECONDS", default=absent, help="with an answer (120)")


def group(parent: Group, name: str, help: str) -> Group:
    parser = parent.add_parser(name, help=help, description=help, allow_abbrev=False)
    common(parser)
    return parser.add_subparsers(metavar="COMMAND", required=True)


def leaf(parent: Group, name: str, run: str, help: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = parent.add_parser(name, help=help, description=help, allow_abbrev=False)
    parser.set_defaults(run=run)
    common(parser)
    return parser


def pairs(parser: argparse.ArgumentParser, name: str, help: str) -> None:
    parser.add_argument(name, action="append", default=[], type=pair, metavar="K=V", help=help)


def number(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,15}", text):
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}")
    return int(text)


def count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,12}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, got {text!r}")
    return int(text)


def port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"must be a port from 1 to 65535, got {text!r}")
    return int(text)


def seconds(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,8})([smhd]?)", text)
    if match is None or int(match[1]) < 1:
        raise argparse.ArgumentTypeError(f"must be a time like 90, 30m, 2h or 1d, got {text!r}")
    return int(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}[match[2]]


def seconds_or_0(text: str) -> int:
    return 0 if text == "0" else seconds(text)


def positive(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text) or float(text) <= 0:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, got {text!r}")
    return float(text)


def pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, got {text!r}")
    return name, value
