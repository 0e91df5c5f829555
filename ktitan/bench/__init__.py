"""Benches: correct first, then interleaved against a peer, each figure beside the ceiling of the same run.

`result` is the record, `measure` the way a figure is taken, `report` how it is shown; `hw` measures the machine itself.
Nothing heavy is imported before a bench runs.
"""
