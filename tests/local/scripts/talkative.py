"""Writes a lot, quickly, and ends."""

from __future__ import annotations

import sys

import horovod.torch as hvd

hvd.init()
for number in range(1000):
    print(f"line {number}")
sys.stderr.write("no newline at the end")
