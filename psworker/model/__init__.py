"""The parts of a model: variables, tables, layers, initializers, optimizers, gradient transforms."""
