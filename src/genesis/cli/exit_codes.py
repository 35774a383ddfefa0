"""The exit codes of the commands, as a shell knows them."""

FAILED = 2
INTERRUPTED = 130
