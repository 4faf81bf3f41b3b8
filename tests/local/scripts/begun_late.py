"""A thread begins a collective while Horovod shuts down, which has to end, too: ``begun_late.py ROUNDS``.

Of many tensors at once, since Horovod looks once, before it has noted all of them, whether it is still there.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError

TENSORS, COLLECTIVE_TIMEOUT = 3000, 10.0
tensors = [torch.ones(1)] * TENSORS
rounds = int(sys.argv[1])


def begin(begins: threading.Event) -> None:
    try:
        while True:
            begins.set()
            hvd.synchronize(hvd.grouped_allreduce_async(tensors, name="late"))
    except HorovodInternalError:
        return


with ThreadPoolExecutor(1) as pool:
    for each in range(rounds):
        hvd.init()
        begins = threading.Event()
        ends = pool.submit(begin, begins)
        begins.wait(COLLECTIVE_TIMEOUT)
        time.sleep(0.02 + 0.08 * each / rounds)  # While it is noted, or another is.
        hvd.mpi_ops._basics.MPI_LIB_CTYPES.horovod_shutdown()  # hvd.shutdown() would forget the handles, too.
        try:
            ends.result(COLLECTIVE_TIMEOUT)
        except TimeoutError:
            print(f"a collective of round {each} has not ended", flush=True)
            os._exit(1)  # It would not end either.
        hvd.shutdown()
print("all have ended", flush=True)
