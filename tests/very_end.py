"""A program that is told to end when Python has already taken its handlers away, and clears its modules."""

#: Put what the program does behind it.
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
