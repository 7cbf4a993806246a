"""Programs that get a signal before they have begun, or when they have ended."""

#: Sends SIGTERM to itself when Python has removed its handlers and clears its modules. The program's code follows.
SIGTERM_AT_THE_VERY_END = """
import os, signal, sys

class Kept:
    def __del__(self, write=os.write, kill=os.kill, process=os.getpid()):
        write(1, b"sigterm\\n")
        kill(process, 15)

sys.kept = Kept()
"""


def held_at_import(module):
    """The beginning of a program that prints a line and then blocks when it imports this module."""
    return f"""
import os, sys, threading

class Slow:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            print("importing", flush=True)
            threading.Event().wait(600)

sys.meta_path.insert(0, Slow())
"""
