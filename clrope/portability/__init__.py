"""Reports over devices and machines: one page, the metric of performance portability, changes between two runs."""
