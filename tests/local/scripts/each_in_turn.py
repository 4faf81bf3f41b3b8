"""Runs scripts one after another, each twice, in forks of one process that has imported torch and Horovod once.

``each_in_turn.py FOLDER…``: each has a ``train.py``. Its output goes into the files ``1`` and ``2`` beside it.
The first one that fails is printed and ends the process.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import NoReturn

import horovod.torch  # noqa: F401  # for all of them
import torch  # noqa: F401

from elastic_runtime.protocol.rank_link import CHECKPOINT


def run(folder: Path, number: int) -> NoReturn:
    os.chdir(folder)
    output = os.open(str(number), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ[CHECKPOINT] = json.dumps({"uri": (folder / "store").as_uri()})
    status = 0
    try:
        runpy.run_path("train.py", run_name="__main__")
        atexit._run_exitfuncs()
    except BaseException:  # noqa: BLE001  # whatever the script ends with
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


for each in sys.argv[1:]:
    for time in (1, 2):
        if (child := os.fork()) == 0:
            run(Path(each), time)
        _, ended = os.waitpid(child, 0)
        if code := os.waitstatus_to_exitcode(ended):
            print(Path(each, str(time)).read_text())
            sys.exit(f"{each}, time {time}: {code}")
