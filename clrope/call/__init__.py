"""From checked arguments to the enqueue: signatures, calls, memory, runtimes."""
