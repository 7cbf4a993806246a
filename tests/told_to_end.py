"""Programs that are told to end before they have begun, and when they have ended."""

#: Told when Python has already taken its handlers away, and clears its modules. Put what the program does behind it.
TOLD_AT_THE_VERY_END = """
import functools, os, signal, sys

class Kept:
    def __init__(self):
        self.told = functools.partial(os.kill, os.getpid(), signal.SIGTERM)
        self.say = functools.partial(os.write, 1)
    def __del__(self):
        self.say(b"told\\n")
        self.told()

sys.kept = Kept()
"""


def held_at_import(module):
    """The beginning of a program that comes no further than to import this module; it says so first."""
    return f"""
import os, sys, threading

class Slow:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            print("importing", flush=True)
            threading.Event().wait(600)

sys.meta_path.insert(0, Slow())
"""
