"""Genesis: a deep-learning framework that a person can read from end to end."""
