"""One job, three libraries: workers of numpy, PyTorch and JAX train the network of examples/deep_mnist.py together.

psworker local --workers 3 examples/mixed/deep_mnist.py --steps 2000

Each worker runs one of three programs, by its number: the first one that of numpy, the second one that of PyTorch, the
third one that of JAX, the fourth one that of numpy again. The servers know variables, gradients and examples, and no
library: each of the 55,000 examples is trained once an epoch, by one of the workers. Workers may also be started one by
one, on any machine, while others train:

psserver serve --bind 127.0.0.1:7070
psworker run --servers 127.0.0.1:7070 examples/deep_mnist.py
psworker run --servers 127.0.0.1:7070 examples/pytorch/deep_mnist.py
psworker run --servers 127.0.0.1:7070 examples/jax/deep_mnist.py
"""

import os
import runpy
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1]
PROGRAMS = "deep_mnist.py", "pytorch/deep_mnist.py", "jax/deep_mnist.py"

number = os.environ.get("PSWORKER_NAME", "").rpartition("-")[2]  # worker-1, as psworker local names its workers
program = PROGRAMS[int(number) % len(PROGRAMS) if number.isdecimal() else 0]
print(f"trains with examples/{program}", flush=True)
runpy.run_path(str(EXAMPLES / program), run_name="__main__")
