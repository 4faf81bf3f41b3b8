"""Side-by-side benchmarks of this launcher and plain ``horovodrun``."""
