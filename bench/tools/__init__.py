"""What this project measures for itself: acceptance, variants side by side, machine code, threads."""
