"""The gateway: one address for many hosts. It knows who asks and which host owns an id, and passes the bytes."""
