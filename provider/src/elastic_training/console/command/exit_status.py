"""Exit statuses of the command."""

DONE, REFUSED, USAGE, INTERRUPTED = 0, 1, 2, 130
"""Argparse's own is that of a wrong usage, and a shell's that of Ctrl-C."""
