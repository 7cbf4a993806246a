"""Summaries of training: scalars of each worker as JSON lines, and event files of TensorBoard."""
