"""Data queues: the blocks of examples that workers take, and the workers that wait for one."""
