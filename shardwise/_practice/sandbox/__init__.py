"""Strangers' code in a process of its own: walls, limits, and what is seen of it.

host      in the judge's process: asks for runs, waits, kills, starts the nursery again
nursery   a process that has imported JAX and forks a child for each run
child     the run itself: limits, walls, hooks, the learner's file, one answer
walls     what the kernel keeps a solution from doing
hooks     more devices than the solution asks for, and notes of what it does
runs      limits, what comes in, how runs ended
wire      the answer: JSON, checked against a schema; nothing that comes back is ever unpickled
"""
