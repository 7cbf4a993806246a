"""Sessions: the program's variables, kept on servers while it runs."""
