"""The OpenCL kernels as Python objects: what each can do, how it is built, launched, and given its arguments."""
