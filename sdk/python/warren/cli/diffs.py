"""A unified diff on a terminal. Its lines are a guest's."""

from warren_console.output import Output
from warren_console.text import clean

STYLES = (("+++", "bold"), ("---", "bold"), ("+", "green"), ("-", "red"), ("@@", "cyan"), ("diff ", "bold"))


def show_diff(out: Output, diff: str) -> None:
    for line in diff.removesuffix("\n").split("\n"):
        style = next((style for begin, style in STYLES if line.startswith(begin)), "")
        out.raw(out.painted(clean(line.expandtabs(4)), style) + "\n")
