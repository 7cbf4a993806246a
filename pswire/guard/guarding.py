"""The convergence guard of a job in the process that watches it: a launcher, a monitor or a server."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

from pswire.guard.actions import GuardActions, log_finding, log_note
from pswire.guard.finding import Finding
from pswire.security.credentials import Credentials
from pswire.status.interventions import Interventions
from pswire.terminal.guard_option import ACTING


@contextmanager
def guarding(
    mode: str,
    addresses: Sequence[str],
    credentials: Credentials,
    *,
    report: Callable[[Finding], object] = log_finding,
    note: Callable[[str], object] = log_note,
    stopped: Callable[[str], object] = bool,
) -> Iterator[GuardActions | None]:
    """The guard of the job whose servers are at these addresses, in a block; None if its mode is "off".

    To act it needs credentials of an admin. The functions are those of `GuardActions`.
    """
    if mode == "off":
        yield None
        return
    acting = Interventions(addresses, "guard", credentials) if mode in ACTING else nullcontext()
    with acting as interventions:
        yield GuardActions(mode, interventions, report=report, note=note, stopped=stopped)
