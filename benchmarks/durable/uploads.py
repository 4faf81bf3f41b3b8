"""A checkpoint into S3, against boto3's ``upload_file`` of a file with the same bytes, in turns.

A program: prints a line of JSON for each upload. The server is ``sink.py``, in the environment.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path

import boto3
import torch

from benchmarks.durable.model import SizedModel
from elastic_runtime.checkpoint.checkpoints import Checkpoints, StoredCheckpoint
from elastic_runtime.checkpoint.store import open_store
from elastic_runtime.torch.family import TORCH
from elastic_runtime.training.checkpointing.parts import part_writers

OURS, FILE, SAVED = "ours", "upload_file", "save_and_upload_file"
METHODS = (OURS, FILE, SAVED)
"""Serialise, digest, upload and publish; only the upload; ``torch.save`` to a file and the upload."""


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, required=True, help="size of the model")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="for the file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tree = SizedModel(options.megabytes).state_dict()
    path = options.folder / "model.pt"
    torch.save(tree, path)
    checkpoints = Checkpoints(open_store("s3://benchmark/run"), fence=1, keep=1)
    checkpoints.claim()
    client = boto3.client("s3")

    def upload(method: str, step: int) -> StoredCheckpoint | None:
        if method == OURS:
            return checkpoints.write(step, datetime.now(UTC), part_writers(TORCH, {"model": tree}, {}))
        if method == SAVED:
            torch.save(tree, path)
        client.upload_file(os.fspath(path), "benchmark", f"plain/{step}")
        return None

    for number in range(-1, options.rounds):
        for index in range(len(METHODS)):
            method = METHODS[(number + index) % len(METHODS)]
            begin, cpu = time.perf_counter(), time.process_time()
            stored = upload(method, number + 1)
            seconds = time.perf_counter() - begin
            if stored is not None:
                checkpoints.retire(stored)  # What is over its number goes when the new one is there.
            if number >= 0:  # the first of each pays for what comes once
                print(json.dumps({"method": method, "seconds": seconds, "cpu": time.process_time() - cpu}), flush=True)
    client.close()
    checkpoints.store.close()


if __name__ == "__main__":
    main()
