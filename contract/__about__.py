"""The version of gateway, poold and pooldctl: here, and nowhere else. The SDK and the guest have their own, alike."""

__version__ = "0.1.0"
