"""Every way in which Elastic Horovod 0.28.1 goes wrong by itself, closed in one place; upstream is not forked.

Some could not be closed from outside, so its sources are amended as they are built (``images/trainer/patches``). A lost
rank took survivors with it, by an exception in a thread of Gloo's or of Horovod's: this is an error in the survivor's
Python code now. And whoever could connect to the rendezvous or to a rank could take part in the world, so that code of
his ran there: ranks show the rendezvous a token, and each other what only the rendezvous tells. A build that is not
amended is refused by the rendezvous.

In the launcher (:mod:`~elastic_runtime.engines.horovod.driver`, :mod:`~elastic_runtime.engines.horovod.rendezvous`):

=====================================================  ==========================================================
upstream                                               here
=====================================================  ==========================================================
Graceful removal below the minimum while others join,  Every change is reported as *mixed*, so that no rank ever
or remove-then-add before the barrier: deadlock        skips the sync that the others wait in.
(horovod#3494); stale world in ElasticSampler (#3399)
Two changes in the same second, or one during a        Time stamps are not rounded, and a notification is sent
reset: the notification is lost                        again until the assignments are the wanted ones.
A rank that ends with 0 while others train ends the    The session ends as ``EARLY_EXIT``, a failure.
job as a success
A rank that dies while the run waits below its         Reports of ranks without an assignment are not counted.
minimum is counted in the next barrier
A rank that fails or ends at the barrier counts as      It is counted once, as failed.
ready still, or a second time
A rank that comes to the barrier after its worker was  It is refused.
declared lost is counted twice: another is left out,
and the next world waits for it in vain
A host that is gone blocks the notifier for minutes    Ranks ask, and wait for the answer: nobody calls them.
Ranks listen for notifications on every address, and   They do not listen.
read 2 GiB before they look at the digest
The rendezvous server unpickles what anybody sends,    Nothing is unpickled.
and what the address in it answers: code execution
Anybody may write what ranks find at the rendezvous,   Each request shows the token of a rank, which may store only
or come to the barrier for them                        what is its own, and come only for itself.
It listens on every address, with a backlog of 5       It listens on one address, with a backlog of 1024.
Ranks poll it every 10 ms, six times a reset           A GET waits at the server until the key is there.
Hosts found together are ordered by their hash         They are ordered as listed.
A newcomer that dies before it has joined ends the     Closed by the launcher: see
whole job                                              :mod:`elastic_runtime.engines.horovod.session`.
Ranks wait for each other inside ``hvd.init()``, hear  They wait at a roll call before it, where they can be sent
nothing there, and are aborted after 30 s, or 150      back to the barrier; inside, their sockets are shut down when
                                                       the world is given up, and an ``hvd.init()`` that fails is
                                                       tried again with the next world.
=====================================================  ==========================================================

In the ranks (:mod:`~elastic_runtime.engines.horovod.rank`):

=====================================================  ==========================================================
After a SIGKILL the survivors wait 30 s on old         The sockets that ``hvd.init()`` opened are shut down at
sockets of the one that noticed first                  the reset.
They wait as long for a machine that vanished, which   The kernel probes the peers of those sockets, and gives up
ends no connection                                     one that is silent for ten seconds.
A rank that waits for hosts hears nothing else         Hooks are called meanwhile, every tenth of a second.
A removed rank is aborted 50 ms after its next commit  It asks whether it still has a rank, and exits with 0.
A scheduler in TorchState is pickled with a copy of    Schedulers and optimizers in it are kept by their
its optimizer; rates drift apart silently (#1281)      ``state_dict()``, as in DurableState:
A newcomer keeps its first learning rate where the     :mod:`elastic_runtime.torch.state.handlers`.
optimizer has no state, and weight decay changes the
parameters that it was just given
Autotune hangs after rank 0 left (#2835)               ``HOROVOD_AUTOTUNE`` is refused.
The timeline is truncated by each generation           Each generation writes a file of its own.
=====================================================  ==========================================================
"""

from __future__ import annotations

from elastic_runtime.engines.base import RankRunner, Session, SessionCallbacks


class HorovodEngine:
    """Elastic Horovod over Gloo or NCCL. Implements :class:`~elastic_runtime.engines.base.Engine`."""

    name = "horovod"
    # torch.optim imports torch._dynamo lazily, which takes 1-2 s.
    preload = (
        *("torch", "torch.optim", "torch._dynamo", "torch.utils.data", "horovod.torch.elastic"),
        *(
            "elastic_runtime.torch.state.durable",
            "elastic_runtime.torch.batches.global_batches",
            "elastic_runtime.torch.reporting",
        ),
        "elastic_runtime.engines.horovod.rank",
    )
    world = "elastic_runtime.engines.horovod.world:WORLD"

    def session(self, runner: RankRunner, address: str, port: int, callbacks: SessionCallbacks) -> Session:
        """See :class:`~elastic_runtime.engines.base.Engine`."""
        from elastic_runtime.engines.horovod.session import HorovodSession

        return HorovodSession(runner, address, port, callbacks)


ENGINE = HorovodEngine()
