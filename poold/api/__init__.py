"""poold's HTTP and WebSocket face: parse, call one function, answer. Errors become replies in one place (`replies`)."""
