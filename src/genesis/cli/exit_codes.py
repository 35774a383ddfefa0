"""The exit codes of the commands, as a shell knows them."""

PARTLY_FAILED = 1  # some inputs failed; the rest succeeded
FAILED = 2
INTERRUPTED = 130
SCRIPT_FAILED = 1  # genesis run: as Python says it
