"""Strategies: when gradients go to the servers, and when fresh weights come back. Each is a replica of the model.

The default, a push every step, is `Replica` itself.
"""
