"""A collection of variables for each test."""

import pytest

import psworker as ps


@pytest.fixture(autouse=True)
def own_variables():
    with ps.collection():
        yield
