"""Membership and fencing: who is a host of this cluster, and when it no longer is.

Each host has a lease, an object in the store, and renews it. A host that cannot takes no more work and kills its
machines before anybody may take its lease: nothing runs twice. Decision 21 has the argument.

What is decided stands in `written` (the lease as data) and `terms` (when who may do what), without I/O. `keeper` holds
this host's lease, `members` watches all, and the `warden` is a process of its own that kills when poold cannot.
"""
