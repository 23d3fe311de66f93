"""`pooldctl`, the operator's command: a client of poold's unix socket that knows nothing of the daemon's insides."""
