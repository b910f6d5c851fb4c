"""One file a suite; see `clrope.suite.registry`."""
