"""The addresses inside a slot. They are the same in every slot, which is what clones of one snapshot want."""

TAP = "tap0"

HOST_ADDRESS = "172.16.0.1"
GUEST_ADDRESS = "172.16.0.2"
PREFIX_LENGTH = 30

# Locally administered; the middle bytes spell "WAR".
HOST_MAC = "02:57:41:52:00:01"
GUEST_MAC = "02:57:41:52:00:02"
