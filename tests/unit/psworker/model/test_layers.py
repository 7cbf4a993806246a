"""Layers: composition, pooling, dropout, recurrence and attention."""

from psworker import nn


def test_dir_of_nn_shows_the_public_names_alone():
    assert dir(nn) == sorted(nn.__all__)
    assert all(isinstance(getattr(nn, name), type) for name in dir(nn))
