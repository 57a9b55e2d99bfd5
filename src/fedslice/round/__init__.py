"""One round: its plan, its working set, the protocol between server and clients, and the engines
that run it."""
