"""`shardwise launch`: processes on this machine, or on several machines if started on each.

One launcher per machine starts its processes, forwards signals and output, and leaves no process
behind. The launcher of node 0 leads: the others report events on their machines to it, and it
orders them to start and stop processes. Nothing here imports JAX.
"""
