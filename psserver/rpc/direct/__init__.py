"""The direct transport on the server: sockets, and connections that carry Transfers. May import pswire and `rpc`."""
