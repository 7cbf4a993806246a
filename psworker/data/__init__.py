"""Examples: datasets in memory and memory maps, functions, iterables; and the order in which an epoch reads them."""
