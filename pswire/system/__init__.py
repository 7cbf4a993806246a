"""The process and its host: resources, the C allocator, and signals. Standard library only."""
