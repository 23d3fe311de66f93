"""What gateway and poold agree on: ids, states, errors, request and reply models. No I/O."""
