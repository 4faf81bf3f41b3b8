"""What only a GPU can show: ``tools/gpu_check.py``."""
