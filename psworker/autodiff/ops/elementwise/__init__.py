"""Ops on each element: arithmetic, elementary functions, activations, comparisons."""
