"""`shardwise launch`: processes on this machine, or on several when it is started on each.

One launcher per machine starts its processes, passes on signals and output, and leaves no process
behind. The launcher of node 0 leads: the others report to it what happens on their
machines, and it orders them to start and to stop. Nothing here imports JAX.
"""
