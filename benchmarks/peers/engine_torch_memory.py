"""What PyTorch keeps of Deep MNIST, batch 50, between forward and backward: for its environment, not for ours.

The tensors that autograd saves, each storage once, without the parameters themselves.
"""

import torch
from torch import nn

net = nn.ModuleList(
    [nn.Conv2d(1, 32, 5, padding=2), nn.Conv2d(32, 64, 5, padding=2), nn.Linear(3136, 1024), nn.Linear(1024, 10)]
)
parameters = {parameter.untyped_storage().data_ptr() for parameter in net.parameters()}
saved = {}


def note(tensor):
    storage = tensor.untyped_storage()
    if storage.data_ptr() not in parameters:
        saved[storage.data_ptr()] = storage.nbytes()
    return tensor


conv1, conv2, fc1, fc2 = net
with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
    x = nn.functional.max_pool2d(nn.functional.relu(conv1(torch.rand(50, 1, 28, 28))), 2)
    x = nn.functional.max_pool2d(nn.functional.relu(conv2(x)), 2)
    x = nn.functional.dropout(nn.functional.relu(fc1(x.flatten(1))), 0.5)
    loss = nn.functional.cross_entropy(fc2(x), torch.randint(0, 10, (50,)))

print(f"RESULT memory torch-activations {sum(saved.values()) / 1e6:.1f} MB")
