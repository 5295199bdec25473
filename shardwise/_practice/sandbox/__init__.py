"""Strangers' code in a process of its own: limits, a guard, and what is seen of it.

host      in the judge's process: asks for runs, waits, kills, starts the nursery again
nursery   a process that has imported JAX and forks a child for each run
child     the run itself: limits, the guard, the hooks, the learner's file, one answer
guard     what a solution may not do, refused in words
hooks     more devices than the solution asks for, and notes of what it does
wire      values as JSON: nothing that comes back is ever unpickled
"""
