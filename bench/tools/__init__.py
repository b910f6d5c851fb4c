"""This project's own measurements: acceptance, variants interleaved, machine code, threads."""
