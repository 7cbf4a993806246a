"""What a model is made of: variables, tables, layers, initializers, optimizers, gradient transforms."""
