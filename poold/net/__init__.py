"""The network of each machine: a *slot*, which is a network namespace with loopback, one tap, and no way out.

There is no veth, no route and no forwarding, so there is no packet path from a guest to the host, to another guest or
to the world. poold reaches a guest by a socket that it opens inside the slot; a guest reaches nothing.

- All slots are alike, down to the addresses, and are made ahead of time: about 2.5 ms each, 200 in half a second.
- Namespaces are entered on one worker thread, never across an await, and never on the event loop's thread.
- A slot is used by one machine and then made anew: connections, counters and rules do not pass to the next.
- What is pinned is complete, and what is not pinned dies with the thread that made it.
"""

from poold.net.addresses import GUEST_ADDRESS, GUEST_MAC, HOST_ADDRESS
from poold.net.slots import Slots, open_slots

__all__ = ["GUEST_ADDRESS", "GUEST_MAC", "HOST_ADDRESS", "Slots", "open_slots"]
