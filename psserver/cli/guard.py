"""The convergence guard in the process of a monitor or a server."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pswire.guard.actions import GuardActions
from pswire.security.credentials import Credentials
from pswire.status.interventions import Interventions


@contextmanager
def guarding(mode: str, addresses: Sequence[str], credentials: Credentials) -> Iterator[GuardActions | None]:
    """The guard of the job whose servers are at these addresses, in a block; None if it is off.

    Its findings go to the log. To act it needs credentials of an admin.
    """
    if mode == "off":
        yield None
    elif mode == "warn":
        yield GuardActions(mode)
    else:
        with Interventions(addresses, "guard", credentials) as interventions:
            yield GuardActions(mode, interventions)
