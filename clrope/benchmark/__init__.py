"""Measurements: workloads, the ceilings of a device, peers, rounds of calls, results with their environment, reports.

Every entry is validated before it is timed. Compared entries are measured interleaved, in the same process.
"""
