"""The exit codes of the commands, as a shell knows them."""

PARTLY_FAILED = 1  # some of what was given could not be done; the rest was
FAILED = 2
INTERRUPTED = 130
