"""A slot: a numbered place on the host for one machine, with its network and its own user id."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Slot:
    number: int
    netns: Path  # the file that pins the network namespace
    tap: str
    uid: int  # the user that this slot's machine runs as; no other slot has it
