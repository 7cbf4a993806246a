"""The tape: order, accumulation, ownership of arrays, depth, threads."""
