"""Exit statuses of the command. The module imports nothing, for Ctrl-C while Airflow is being imported."""

DONE, REFUSED, USAGE, INTERRUPTED = 0, 1, 2, 130
"""USAGE is argparse's own for wrong arguments, and INTERRUPTED a shell's for Ctrl-C."""
