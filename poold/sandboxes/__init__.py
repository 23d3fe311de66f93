"""What the host does with sandboxes: create, find, use, pause, resume, remove. The ledger is told."""

from poold.sandboxes.host import Sandboxes
from poold.sandboxes.means import Defaults, Live, Means, Sources

__all__ = ["Defaults", "Live", "Means", "Sandboxes", "Sources"]
