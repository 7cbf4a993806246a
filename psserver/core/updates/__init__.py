"""Updates of the variables by pushes: when they are made, in which order, and what they change."""
