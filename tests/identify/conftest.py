"""Makes the folder's own modules importable, as pytest does for a folder with tests."""
