"""The way to a machine's guest: HTTP/1.1 over whatever socket the engine dials.

Everything that comes from a guest is hostile input: heads, JSON and frames are bounded, nothing is buffered without
end, and every wait has a limit. What a guest does wrong becomes `GuestError` here, what ends it `MachineDied`,
and what it refuses `GuestRefused`; nothing else leaves this room.
"""

from poold.link.events import DOTTED_KIND, GuestEvent, read_events
from poold.link.guest import FAR_AWAY, Guest
from poold.link.http import Answer, Body
from poold.link.tunnel import Tunnel

__all__ = ["DOTTED_KIND", "FAR_AWAY", "Answer", "Body", "Guest", "GuestEvent", "Tunnel", "read_events"]
