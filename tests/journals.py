"""Helpers for tests of the journal."""


async def all_written(journal):
    """Returns when all that was appended counts as written, which may be now."""
    if (future := journal.written()) is not None:
        await future
