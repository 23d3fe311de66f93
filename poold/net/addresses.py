"""The addresses inside a slot. They are the same in every slot, which is what clones of one snapshot want."""

TAP = "tap0"

HOST_ADDRESS = "172.16.0.1"
GUEST_ADDRESS = "172.16.0.2"
PREFIX_LENGTH = 30
GUEST_PORT = 1024  # where a guest serves us

# Locally administered; the middle bytes spell "WAR".
HOST_MAC = "02:57:41:52:00:01"
GUEST_MAC = "02:57:41:52:00:02"

# Where a machine's proxy listens, on our side of the tap.
EXPLICIT = 3128  # for programs that know of a proxy
TRANSPARENT = 3129  # for all others
NAMES = 53

PACKETS = 1  # the group of the kernel's log in which a proxy reads what was dropped
