"""`psserver` whose shards give no portion to a second worker. For `minimize.py`: no option of the server does this."""

from psserver.__main__ import main
from psserver.core.minimization.portions import Portions

Portions._backup = lambda self, worker: None  # type: ignore[method-assign]
main()
