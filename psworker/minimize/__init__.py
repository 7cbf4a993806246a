"""Batch optimization: methods that evaluate the loss of the whole data, or of a batch, at one point after another."""
