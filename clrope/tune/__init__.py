"""Finding the fastest variant of each kernel that a driver gets right, in child processes."""
