"""Parts of the answer to `Status`: the row of a worker, and the detail for displays. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from psserver.core.members.member import Member
from psserver.core.members.push_counts import MAX_VARIABLES
from pswire import messages as ms

#: Entries of a matrix of staleness, one for each worker and variable.
MAX_CELLS = 20_000

#: Stalenesses up to this one are counted one by one, above it in ranges of which each is twice as long as the last one.
EXACT_TO = 32


def worker_status(
    one: Member,
    now: float,
    *,
    epoch: int,
    between_blocks: bool,
    waiting_for: str,
    chief: bool,
    held_since: float | None,
) -> ms.WorkerStatus:
    """The row of a worker; `held_since` is when its push that is held now has come."""
    counts, held = one.counts, 0.0 if held_since is None else max(0.0, now - held_since)
    return ms.WorkerStatus(
        name=one.name,
        incarnation=one.incarnation,
        number=one.number,
        state=one.state,
        steps=one.steps,
        staleness=one.staleness,
        staleness_sum=one.staleness_sum,
        loss=one.loss,
        epoch=epoch,
        lease_left=max(0.0, one.expires - now) if one.state == "live" else 0.0,
        dropped=one.dropped,
        clipped=one.clipped,
        waiting_for=waiting_for,
        tensor_transport=one.tensor_transport,
        chief=chief,
        cost=counts.cost,
        waited=counts.waited + held,
        held=held,
        encoding=counts.encoding,
        gradient=counts.gradient,
        gradient_mean=counts.gradient_mean,
        drop_reason=counts.drop_reason,
        training=one.training,
        empty=counts.empty,
        first_loss=counts.first_loss,
        peak_cost=counts.peak_cost,
        jumps=counts.jumps,
        jump=counts.jump,
        jumped_at=counts.jumped_at,
        between_blocks=between_blocks,
        quarantined=bool(one.quarantined),
    )


def detail(members: Sequence[Member], variables: Sequence[str], stalenesses: Mapping[int, int]) -> ms.StatusDetail:
    """The detail of these workers and of the first of these variables; its events are the server's to add."""
    names = tuple(variables[:MAX_VARIABLES])
    most = MAX_CELLS // max(1, len(names))
    rows = tuple([one.counts.row(one.name, one.incarnation, names) for one in members[-most:]])
    return ms.StatusDetail(stalenesses=ranges(stalenesses.items()), matrix=ms.StalenessMatrix(names, rows))


def ranges(counts: Iterable[tuple[int, int]]) -> tuple[ms.StalenessCount, ...]:
    """Pushes by staleness, added up in ranges, each with its upper bound; those without pushes are left out."""
    added: dict[int, int] = {}
    for staleness, pushes in counts:
        bound = upper_bound(staleness)
        added[bound] = added.get(bound, 0) + pushes
    return tuple([ms.StalenessCount(bound, added[bound]) for bound in sorted(added)])


def upper_bound(staleness: int) -> int:
    """The upper bound of its range: itself up to `EXACT_TO`, then that times a power of two."""
    return staleness if staleness <= EXACT_TO else 1 << (staleness - 1).bit_length()
