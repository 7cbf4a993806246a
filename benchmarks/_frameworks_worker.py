"""A PyTorch worker of paramserver, in the place of `peers/frameworks_torch.py`: for `frameworks.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))

import frameworks_models
import torch

import psworker.torch as pst

_, model, worker, counts, _ = frameworks_models.arguments()
with pst.session():
    optimizer = pst.distribute(torch.optim.Adam(model.parameters(), lr=1e-4), model)
    frameworks_models.forever(model, optimizer, worker, counts)
