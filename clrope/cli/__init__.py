"""The commands. `main` is the entry; one file a command; what is heavy is imported when a command runs."""
