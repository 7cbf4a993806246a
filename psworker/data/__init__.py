"""Datasets in memory, their files, and the order in which an epoch reads them."""
