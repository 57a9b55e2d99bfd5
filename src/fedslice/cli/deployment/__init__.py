"""``fedslice deploy``: a Flower app of a task and an algorithm, and its trial on one machine."""
