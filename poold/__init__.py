"""The daemon of one host: its ledger, its warm pool, its engines and the network slots of its machines."""
