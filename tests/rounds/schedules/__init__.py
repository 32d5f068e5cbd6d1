"""PROTOCOL's schedules on the simulated network: the real engine, made-up Δ, whole hours in virtual time.

A `Schedule` is a named scenario with a stated bound; `run` plays it with a seed and judges it by the protocol's four
properties (one log, equal states, every token once, nobody waits too long). One module holds a group of schedules;
`catalogue.ALL` has all. The tests play one seed of each, benchmarks/schedules.py as many as one likes.
"""
