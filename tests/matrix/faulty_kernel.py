"""A data race, a value that nothing wrote, a write behind a buffer, and a wrong call, for a simulator to find."""

from contextlib import suppress

import numpy as np
import pyopencl as cl

SOURCE = """
kernel void faulty(global int *out, local int *shared)
{
    int private_value[2];
    shared[0] = get_local_id(0);
    private_value[0] = shared[0];
    if (private_value[out[1] & 1] > 0)
        out[0] = 1;
    out[get_global_id(0) + 4] = 1;
}
"""

context = cl.create_some_context(interactive=False)
queue = cl.CommandQueue(context)
out = cl.Buffer(context, cl.mem_flags.READ_WRITE, 16)
kernel = cl.Program(context, SOURCE).build().faulty
with suppress(cl.Error):
    kernel.set_arg(0, np.int8(1))
kernel(queue, (4,), (4,), out, cl.LocalMemory(4))
queue.finish()
