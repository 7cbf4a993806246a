"""A process of PyTorch's DistributedDataParallel or RPC: `frameworks_torch.py SYSTEM MODEL WORKER COUNTS ADDRESS`.

`ddp` averages gradients over gloo, as PyTorch's tutorials do. `rpc` is the parameter server of PyTorch's RPC: worker -1
holds the parameters and Adam's state behind a lock; a worker sends its gradients and receives all parameters.
"""

import os
import threading
from datetime import timedelta

import frameworks_models
import torch
import torch.distributed
from torch.distributed import rpc
from torch.nn.parallel import DistributedDataParallel

WORKERS = 2


class Server:
    """The parameters of the RPC's server."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    lock = threading.Lock()


def push_pull(gradients):
    """Applies gradients; the parameters. Runs in the server."""
    with Server.lock:
        for parameter, gradient in zip(Server.model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        Server.optimizer.step()
        return [parameter.detach().clone() for parameter in Server.model.parameters()]


class RemoteOptimizer:
    """Pushes gradients to the server, and takes its parameters."""

    def __init__(self, model):
        self._parameters = list(model.parameters())

    def step(self):
        """Pushes, and takes the parameters."""
        fresh = rpc.rpc_sync("server", push_pull, args=([one.grad for one in self._parameters],))
        with torch.no_grad():
            for parameter, value in zip(self._parameters, fresh, strict=True):
                parameter.copy_(value)

    def zero_grad(self):
        """Forgets the gradients."""
        for parameter in self._parameters:
            parameter.grad = None


class _Loss(torch.nn.Module):
    """The loss of a model as a module, which DistributedDataParallel wraps."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        """The mean loss."""
        return self.model.loss(x, y)


def distributed_data_parallel(model, worker, counts):
    torch.distributed.init_process_group("gloo", rank=worker, world_size=WORKERS, timeout=timedelta(seconds=60))
    parallel = DistributedDataParallel(_Loss(model))
    frameworks_models.forever(model, torch.optim.Adam(model.parameters(), 1e-4), worker, counts, parallel)


def remote(model, worker, counts):
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=4)
    name = "server" if worker < 0 else f"worker-{worker}"
    if worker < 0:
        Server.model, Server.optimizer = model, torch.optim.Adam(model.parameters(), 1e-4)
    rpc.init_rpc(name, rank=worker + 1, world_size=WORKERS + 1, rpc_backend_options=options)
    if worker >= 0:
        frameworks_models.forever(model, RemoteOptimizer(model), worker, counts)
    threading.Event().wait()


if __name__ == "__main__":
    system, model, worker, counts, address = frameworks_models.arguments()
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = address.split(":")
    (distributed_data_parallel if system == "ddp" else remote)(model, worker, counts)
