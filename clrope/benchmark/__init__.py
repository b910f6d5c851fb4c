"""Measuring: workloads, the ceilings of a device, peers, rounds of calls, results with their environment, reports.

Nothing is timed that was not validated first, and whatever is compared was measured in turns, in the same process.
"""
