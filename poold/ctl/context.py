"""What every command is given: what was asked, poold, and where to print."""

import argparse
from dataclasses import dataclass

from poold.ctl.client import Client
from warren_console.output import Output


@dataclass(frozen=True)
class Context:
    asked: argparse.Namespace
    poold: Client
    out: Output
