"""Which kernel variant a problem gets: the choice, the shipped defaults, and the database of tuning records."""
