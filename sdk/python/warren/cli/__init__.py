"""The command `warren`: sandboxes from a shell. It uses only what the package offers to everybody."""
