"""PyTorch programs: models and losses of PyTorch, whose parameters are on paramserver's shards.

    import psworker.torch as pst

    with pst.session():
        optimizer = pst.distribute(torch.optim.Adam(model.parameters(), lr=1e-3), model)
        for x, y in pst.loader(dataset, batch_size=64, epochs=10):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

Needs the extra `torch`; nothing else of psworker imports PyTorch.
"""

from psworker.sessions.opening import session as session
from psworker.torch.distributed_optimizer import DistributedOptimizer as DistributedOptimizer
from psworker.torch.distributed_optimizer import distribute as distribute
from psworker.torch.embedding import Embedding as Embedding
from psworker.torch.layer_variables import layer_variables as layer_variables
from psworker.torch.loader import loader as loader
from psworker.torch.losses import note_loss as note_loss

__all__ = ["DistributedOptimizer", "Embedding", "distribute", "layer_variables", "loader", "note_loss", "session"]


def __dir__() -> list[str]:
    """Public names only."""
    return sorted(__all__)
