"""Hostile input for everything that reads what a user brings: seeds, mutations, and the promise that is held to them.

`readers` lists what is read and from which seeds, `mutations` damages a seed, `guard` runs a reader within a time and
with its eyes on files, processes and sockets. `tests/fuzz/test_readers.py` draws from all three in seconds;
``python -m tests.studies.fuzz --minutes N`` does for as long as one likes. `plans` and `commands` draw whole
scenarios and command lines from seeds, which are planned and run and held to what must hold of any answer.
"""
