"""What the host does with sandboxes: create, find, use, pause, resume, remove. The ledger is told."""

from poold.sandboxes.connections import Connections
from poold.sandboxes.depots import notes_in, open_depot
from poold.sandboxes.host import Sandboxes
from poold.sandboxes.means import Defaults, Live, Means, Sources
from poold.sandboxes.network import HostNetwork

__all__ = ["Connections", "Defaults", "HostNetwork", "Live", "Means", "Sandboxes", "Sources", "notes_in", "open_depot"]
