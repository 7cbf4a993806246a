"""Numbers of things, in texts of errors and events."""


def pluralize(count: int, thing: str) -> str:
    """A number of things: "1 step", "1,234 steps", "2 batches"."""
    plural = "es" if thing.endswith(("ch", "sh")) else "s"
    return f"{count:,} {thing}{'' if count == 1 else plural}"
