"""`python -m clrope` is the command `clrope`, whose script imports this module, too: see `interrupt.py`."""

from __future__ import annotations

from .cli.main import main

if __name__ == "__main__":
    main()
