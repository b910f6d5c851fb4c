"""OpenCL arrays on the caller's own queues: two plans overlap, ordered by events alone; the host waits at the end.

Each half of a batch has a queue of its own: while one half is rotated, the other can be uploaded or downloaded.
"""

import numpy as np
import pyopencl as cl
import pyopencl.array as cla

import clrope

HALVES, TOKENS, HEADS, HEAD_DIM = 2, 256, 8, 64
config = clrope.RopeConfig("neox", n_dims=HEAD_DIM, freq_base=1e4)
chosen = clrope.device()  # CLROPE_DEVICE, or the fastest healthy device
context = cl.Context([chosen.cl_device])
queues = [cl.CommandQueue(context) for _ in range(HALVES)]

rng = np.random.default_rng(0)
x = rng.uniform(-1, 1, (HALVES, 1, TOKENS, HEADS, HEAD_DIM)).astype(np.float32)
results = np.empty_like(x)

arrays = [cla.empty(queue, x[0].shape, x.dtype) for queue in queues]
rope = clrope.Rope(config, context)
plans = [rope.plan(array, np.arange(TOKENS), out=array) for array in arrays]  # everything is built and bound here

start = cl.UserEvent(context)  # nothing begins before the host says so
uploads, downloads = [], []  # kept: PyOpenCL waits for a copy from host memory when its event is dropped
for half, (queue, array, plan) in enumerate(zip(queues, arrays, plans, strict=True)):
    uploads.append(cl.enqueue_copy(queue, array.data, x[half], is_blocking=False, wait_for=[start]))
    plan.run(wait_for=[uploads[half]])  # returns at once; the array carries the event of its rotation
    downloads.append(cl.enqueue_copy(queue, results[half], array.data, is_blocking=False, wait_for=array.events))
    queue.flush()

pending = [event.command_execution_status != cl.command_execution_status.COMPLETE for event in downloads]
print(f"both plans are enqueued and neither has begun: {all(pending)}")
assert all(pending)
start.set_status(cl.command_execution_status.COMPLETE)
cl.wait_for_events(downloads)

print(f"device: {chosen}, {len(queues)} queues")
for half in range(HALVES):
    result = clrope.compare(results[half], clrope.reference.rope(x[half], np.arange(TOKENS), config))
    print(f"half {half}: NMSE {result.nmse:.3g}")
    assert result.nmse < 1e-12
