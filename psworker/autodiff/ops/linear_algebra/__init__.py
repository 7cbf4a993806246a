"""Products, matrices and systems of linear equations."""
