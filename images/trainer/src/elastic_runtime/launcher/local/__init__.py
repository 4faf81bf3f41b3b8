"""The launcher's platform on this machine: a folder, and workers as child processes."""
