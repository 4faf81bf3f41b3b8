"""Every way in which Elastic Horovod 0.28.1 goes wrong by itself, closed in one place; upstream is not forked.

Some could not be closed from outside, so its sources are amended as they are built (``images/trainer/patches``). A lost
rank took survivors with it, by an exception in a thread of Gloo's or of Horovod's: this is an error in the survivor's
Python code now. And whoever could connect to the rendezvous or to a rank could take part in the world, so that code of
his ran there: ranks show each other what only the launcher tells them. A build that is not amended is refused.

Horovod's ``ElasticDriver``, its rendezvous server and its notifications are not used. One session forms the worlds of
this engine and of torch's (:mod:`~elastic_runtime.engines.horovod.session`). What went wrong there, and how it is now:

=====================================================  ==========================================================
upstream                                               here
=====================================================  ==========================================================
Graceful removal below the minimum while others join,  A world changes at one commit of all its ranks, and whether
or remove-then-add before the barrier: deadlock        they sync in the next one, the launcher says, to all alike.
(horovod#3494); stale world in ElasticSampler (#3399)
Two changes in the same second, or one during a        Changes are counted, and told again to a rank that has just
reset: the notification is lost                        come to the state.
A rank that ends with 0 while others train ends the    The session ends as ``EARLY_EXIT``, a failure.
job as a success
Ranks that fail or end at the barrier are counted      There is no barrier. What counts is whether a process runs,
twice, or as ready still                               and what it has said of the present world.
A host that is gone blocks the notifier for minutes    Ranks hear of changes from their agent: nobody calls them.
Ranks listen for notifications on every address, and   They do not listen.
read 2 GiB before they look at the digest
The rendezvous server unpickles what anybody sends,    Nothing is unpickled, and no server is on a network: each rank
and what the address in it answers: code execution     has one on loopback, which needs a token of that rank
Anybody may write what ranks find at the rendezvous,   (:mod:`elastic_runtime.engines.horovod.store`). What ranks have
or come to the barrier for them                        for each other goes over their agents.
Ranks poll it every 10 ms, six times a reset           A GET waits at the server until the key is there.
Hosts found together are ordered by their hash         They are ordered as listed.
A newcomer that dies before it has joined ends the     The others train on, or form a world without it.
whole job
Ranks wait for each other inside ``hvd.init()``, hear  They wait before it; inside, their sockets are shut down when
nothing there, and are aborted after 30 s, or 150      the world breaks, and an ``hvd.init()`` that fails is tried
                                                       again with the next world.
=====================================================  ==========================================================

In the ranks (:mod:`~elastic_runtime.engines.horovod.rank`), whatever framework they use:

=====================================================  ==========================================================
After a SIGKILL the survivors wait 30 s on old         The sockets that ``hvd.init()`` opened are shut down at
sockets of the one that noticed first                  the reset.
They wait as long for a machine that vanished, which   The kernel probes the peers of those sockets, and gives up
ends no connection                                     one that is silent for ten seconds.
A rank that waits for hosts hears nothing else         Hooks are called meanwhile, every tenth of a second.
A script is not told that machines will be taken       It is: see :mod:`elastic_runtime.script.leaving`.
A removed rank is aborted 50 ms after its next commit  It asks whether it still has a rank, and exits with 0.
A loss in a reset callback ends the survivors          They go back to the last commit, as from everywhere else.
Autotune hangs or crashes in a second world (#2835)    Only in runs of one size, whose ranks then start anew.
The timeline is truncated by each generation           Each generation writes a file of its own, or samples.
The thread that writes it takes a core, also when it   It sleeps, in our build (``images/trainer/patches``).
is stopped
=====================================================  ==========================================================

With torch (:mod:`~elastic_runtime.engines.horovod.torch`):

=====================================================  ==========================================================
A scheduler in TorchState is pickled with a copy of    Schedulers and optimizers in it are kept by their
its optimizer; rates drift apart silently (#1281)      ``state_dict()``, as in DurableState:
A newcomer keeps its first learning rate where the     :mod:`elastic_runtime.torch.handlers`.
optimizer has no state, and weight decay changes the
parameters that it was just given
A step that a lost rank has broken leaves gradients    They are gone when the training function is called
to survivors, and the repeated step adds to them       again.
=====================================================  ==========================================================

With TensorFlow (:mod:`~elastic_runtime.engines.horovod.tensorflow`):

=====================================================  ==========================================================
``hvd.elastic.run`` returns, as if all were done, at   It raises every error that no lost rank explains, and
an UnknownError of any other operation than three,     recovers from a lost rank in any of Horovod's operations.
those of Horovod among them: a false success
A loss during ``state.sync()`` ends every survivor,    They go back to the last commit.
and the state in memory with them
=====================================================  ==========================================================
"""

from __future__ import annotations

from typing_extensions import override

from elastic_runtime.engines.base import Engine, RankRunner, Session, SessionCallbacks
from elastic_runtime.engines.horovod.frameworks import built
from elastic_runtime.errors import InvalidSettings

# Some modules are imported lazily by others: torch.optim imports torch._dynamo so, which takes 1 to 2 s.
_PRELOAD = {
    "torch": (
        *("torch", "torch.optim", "torch._dynamo", "torch.utils.data", "horovod.torch.elastic"),
        *("elastic_runtime.torch.durable", "elastic_runtime.torch.global_batches"),
    ),
    # tensorflow.keras is loaded lazily, too. None of them executes an operation: after one, no rank could be forked.
    "tensorflow": (
        *("tensorflow", "keras", "horovod.tensorflow.keras"),
        *("elastic_runtime.tensorflow.durable", "elastic_runtime.tensorflow.batches"),
    ),
}


class HorovodEngine(Engine):
    """Elastic Horovod over Gloo or NCCL. Implements :class:`~elastic_runtime.engines.base.Engine`."""

    name = "horovod"
    world = "elastic_runtime.engines.horovod.world:WORLD"

    def __init__(self) -> None:
        # Where no Horovod is, a warm process says so, by what is usual.
        modules = [module for framework in built() or ("torch",) for module in _PRELOAD[framework]]
        self.preload = (*modules, "elastic_runtime.engines.horovod.rank")

    @override
    def session(self, runner: RankRunner, address: str, port: int, callbacks: SessionCallbacks) -> Session:
        """Raise InvalidSettings if Horovod is not installed."""
        from elastic_runtime.engines.horovod.session import HorovodSession  # Ranks have no use for it.

        check_built()
        return HorovodSession(runner, callbacks)


def check_built() -> None:
    """Raise InvalidSettings if Horovod is not installed."""
    if not built():
        remedy = "Use one of the trainer's images, or build Horovod with images/trainer/build-horovod.sh"
        raise InvalidSettings("engine", "Horovod is not installed here", remedy)


ENGINE = HorovodEngine()
