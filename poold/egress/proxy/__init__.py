"""The proxy of one machine: a process without rights that decides about every connection of its guest."""
