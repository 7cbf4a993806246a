"""A shard of a parameter server: the state machine (`core`), and around it gRPC, a clock and a command line.

Start one with the command `psserver serve`, or inside a program with `psserver.rpc.server.ServerThread`.
"""
