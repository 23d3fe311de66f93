"""What every command is given: what was asked, the gateway, and where to print."""

import argparse
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from warren_console.output import Output

if TYPE_CHECKING:
    from warren.client import Warren


@dataclass
class Context:
    asked: argparse.Namespace
    out: Output

    @cached_property
    def warren(self) -> "Warren":
        """Made when it is needed: a command that asks nobody needs no address, and starts sooner."""
        from warren.client import Warren

        return Warren(getattr(self.asked, "url", None), timeout_s=self.asked.patience)
