"""`shardwise launch`: processes on this machine, or on several when it is started on each.

One launcher per machine starts its processes, passes on signals and output, and leaves no process
behind. The launcher of node 0 leads: it is told by the others what happens on their machines, and
tells them when to start and when to stop. Nothing here imports JAX.
"""
