"""Strategies: when gradients go to the servers, and when fresh weights come back. Each is a replica of the model.

The default, a push every step, is `Replica` itself; `downpour` sums several steps, and can compute while a push is
under way; `local_steps` runs the optimizer in the worker, and pushes the difference that a round of steps has made.
"""
