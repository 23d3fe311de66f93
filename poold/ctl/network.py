"""The policy that `--network` and `--allow` say, for keys and sandboxes."""

import argparse
from typing import Any

from poold.ctl.errors import UsageError
from warren_console import network


def network_asked(asked: argparse.Namespace) -> dict[str, Any] | None:
    """None if they say nothing."""
    try:
        return network.asked(asked.policy, asked.allow)
    except ValueError as error:
        raise UsageError(str(error)) from None
