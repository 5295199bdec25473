"""Untrusted solutions in processes of their own: isolation, limits, observation.

host      in the judge's process: requests runs, waits, kills, restarts the nursery
nursery   a process that has imported JAX and forks a child for each run
child     one run: set the limits and the walls, install the hooks, run the file, answer
walls     isolation by the kernel: what a solution cannot do
hooks     give the solution more devices than it asks for, and record what it does
runs      limits, pipes, and how runs ended
wire      the answer: JSON, checked against a schema; nothing that comes back is ever unpickled
"""
