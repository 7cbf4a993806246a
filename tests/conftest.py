"""Settings for all tests."""

import gc
import os
import sys

import pytest
from hypothesis import settings

import psworker as ps
from pswire.optimizers import UpdateSpec
from psworker.environment import blas_threads
from psworker.sessions import session_numbers
from tests.support.combinations import Collected
from tests.support.transports import use

# Before numpy is loaded. Its threads, in more processes than there are cores, wait for each other busily: with them a
# test of three seconds takes thirty. Processes that tests start have threads as those of users (support/commands.py).
os.environ.update(blas_threads(1))

# A machine that is busy takes longer than any deadline for an example.
settings.register_profile("without a deadline", deadline=None)
settings.load_profile("without a deadline")

gc.disable()  # until all tests are collected: a tenth of that time


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declares the switch of the transport."""
    text = "what carries tensors to servers: direct connections where they can be made (auto), or gRPC"
    parser.addoption("--transport", choices=("auto", "grpc"), default="auto", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Lets Python write compiled code: the tests start some two hundred processes, which would each compile anew."""
    Collected.only_fast = config.option.markexpr == "not slow"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    use(config.option.transport)


@pytest.fixture(scope="session", autouse=True)
def state_folder(tmp_path_factory):
    """A folder for what servers keep for their user, also those in processes."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks exhaustive tests as slow too, before tests are selected by their marks."""
    for item in items:
        if item.get_closest_marker("exhaustive"):
            item.add_marker("slow")


def pytest_collection_finish() -> None:
    """Excludes collected tests from garbage collection, which would take a fifth of the time of the small tests."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def own_variables():
    """A collection of variables for each test, whose sessions are counted from 1 as in a process of its own.

    Custom optimizers that a test defines are not those of the next one.
    """
    session_numbers.forget()
    with pytest.MonkeyPatch.context() as patch, ps.collection():
        patch.setattr(UpdateSpec, "kinds", dict(UpdateSpec.kinds))
        yield
