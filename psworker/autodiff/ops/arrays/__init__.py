"""Creation, shapes and joining of arrays."""
