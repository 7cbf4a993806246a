"""The rules of the guard, by the cause that they find."""
