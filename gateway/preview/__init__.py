"""Previews: what a service in a sandbox shows, under a host name or a path of the gateway. See decision 12."""

from gateway.preview.app import Previews
from gateway.preview.kept import Kept

__all__ = ["Kept", "Previews"]
