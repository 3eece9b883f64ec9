"""Domain parallelism: a grid cut into parts, one for each process, and the exchanges that make them act as one."""
