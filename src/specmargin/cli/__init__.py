"""The command line: a command per verb, and what it says of invalid input."""
