"""Several processes that train one model: torchrun --nproc-per-node 2 -m bidr train ...

Every process prepares the same whole batch, encodes its share of the texts, and compares the gathered vectors of all.
The first process alone writes files. `Group` is a process by itself, so that nothing has to ask whether there are
others; `Processes` are several.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bidr.errors import BidrError, ConfigError, StoppedError
from bidr.training.engine import checkpoint
from bidr.utils import progress

T = TypeVar("T")

# The others wait while the first one encodes a corpus.
LONGEST_WAIT = timedelta(days=2)
BUCKET = 1 << 25


class ProcessGroup:
    """A process alone: what several would share it does by itself."""

    rank, size = 0, 1

    @property
    def active_size(self) -> int:
        """How many processes go through this at the same time: one within a turn."""
        return 1

    def get_device(self, name: str) -> str:
        """This process' own device, where 'cuda' is asked for."""
        return name

    def gather(self, own: Tensor, counts: Sequence[int]) -> Tensor:
        """The rows of all processes, in their order; counts says how many each has. No gradient goes through it."""
        return own.detach()

    def drop_duplicate_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Drop gradients that are the same everywhere from all processes but the first, before a sum is taken."""

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Make every gradient the sum of all processes'."""

    def broadcast(self, values: Tensor) -> Tensor:
        """The first process' values, on their device."""
        return values

    def reduce_any(self, flag: bool) -> bool:
        """Whether it is so in any process; no device is waited for."""
        return flag

    def run_on_rank_zero(self, make: Callable[[], T]) -> T:
        """What the first process makes, for all."""
        return make()

    def rank_zero_first(self) -> AbstractContextManager[None]:
        """A block that the first process goes through before the others do, which find what it has left."""
        return nullcontext()

    def barrier(self) -> None:
        """Until all are here."""


class _Told(NamedTuple):
    """What the first process says: what it made, or why it could not."""

    made: Any = None
    failure: str | None = None
    stopped: bool = False


class DistributedGroup(ProcessGroup):
    """Those that torchrun started, on one machine or several with a shared folder."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.local = int(os.environ.get("LOCAL_RANK", self.rank))
        # What the hosts tell one another goes past the devices: asking for it must not wait for theirs.
        self._hosts = dist.new_group(backend="gloo", timeout=LONGEST_WAIT)
        self._alone = False

    @property
    def active_size(self) -> int:
        return 1 if self._alone else self.size

    def get_device(self, name: str) -> str:
        if not name.startswith("cuda"):
            return name
        if name != "cuda":
            raise ConfigError(f"device: given {name!r} to {self.size} processes, expected 'cuda': each takes its own")
        if self.local >= torch.cuda.device_count():
            raise ConfigError(
                f"torchrun started process {self.local + 1} on a machine with {torch.cuda.device_count()} GPUs; "
                "start as many as there are (--nproc-per-node)"
            )
        torch.cuda.set_device(self.local)
        return f"cuda:{self.local}"

    def gather(self, own: Tensor, counts: Sequence[int]) -> Tensor:
        most = max(counts)
        padded = own.new_zeros(most, *own.shape[1:])
        padded[: len(own)] = own.detach()
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    def drop_duplicate_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        if self.rank:
            for parameter in parameters:
                parameter.grad = None

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """A parameter that no process used keeps none: the optimizer must not take it for one that stands still."""
        learned = [parameter for parameter in parameters if parameter.requires_grad]
        used = torch.tensor([parameter.grad is not None for parameter in learned], dtype=torch.uint8)
        dist.all_reduce(used, dist.ReduceOp.MAX, group=self._hosts)
        gradients = []
        for parameter, is_used in zip(learned, used.tolist(), strict=True):
            if is_used:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                gradients.append(parameter.grad)
        for bucket in _buckets(gradients):
            flat = torch.cat([gradient.flatten() for gradient in bucket])
            dist.all_reduce(flat)
            totals = torch.split(flat, [gradient.numel() for gradient in bucket])
            for gradient, total in zip(bucket, totals, strict=True):
                gradient.copy_(total.view_as(gradient))

    def broadcast(self, values: Tensor) -> Tensor:
        values = values.clone()
        dist.broadcast(values, 0)
        return values

    def reduce_any(self, flag: bool) -> bool:
        flags = torch.tensor([flag], dtype=torch.uint8)
        with _in_touch():
            dist.all_reduce(flags, dist.ReduceOp.MAX, group=self._hosts)
        return bool(flags.item())

    def run_on_rank_zero(self, make: Callable[[], T]) -> T:
        if self._alone:
            return make()
        found: T = self._hear() if self.rank else self._by_first(make)
        return found

    @contextmanager
    def rank_zero_first(self) -> Iterator[None]:
        if self._alone:
            yield
        elif self.rank:
            self._hear()
            with self._by_itself():
                yield
        else:
            with self._telling(), self._by_itself():
                yield
            self._tell(_Told())
            self._stop_together(False)

    def barrier(self) -> None:
        with _in_touch():
            dist.barrier(group=self._hosts)

    def _by_first(self, make: Callable[[], T]) -> T:
        with self._telling(), self._by_itself():
            made = make()
        self._tell(_Told(made))
        self._stop_together(False)
        return made

    def _hear(self) -> Any:
        """Wait for what the first process makes. A signal meanwhile must not end this process: the first would have
        nobody to tell."""
        with checkpoint.hold_stop_signals() as stop:
            told = self._tell(_Told())
        if told.failure is not None:
            raise StoppedError(told.failure) if told.stopped else BidrError(f"the first process failed: {told.failure}")
        self._stop_together(stop.asked)
        return told.made

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Tell the others of a failure within."""
        try:
            yield
        except BaseException as error:
            with suppress(BidrError):
                self._tell(_Told(None, str(error) or type(error).__name__, isinstance(error, StoppedError)))
            raise

    def _stop_together(self, asked: bool) -> None:
        if self.reduce_any(asked):
            raise StoppedError("stopped; what was finished is kept: run the same command again to go on from there")

    @contextmanager
    def _by_itself(self) -> Iterator[None]:
        """Within, this process waits for nobody: the others are elsewhere."""
        self._alone = True
        try:
            yield
        finally:
            self._alone = False

    def _tell(self, what: _Told) -> _Told:
        """What the first process says."""
        said = [what]
        with _in_touch():
            dist.broadcast_object_list(said, 0, group=self._hosts, device=torch.device("cpu"))
        return said[0]


@contextmanager
def join_process_group(device: str) -> Iterator[ProcessGroup]:
    """The processes that torchrun started, or this one alone. Only the first of them shows progress."""
    begun = dist.is_initialized()
    if not begun and ("RANK" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1"):
        yield ProcessGroup()
        return
    if not begun:
        on_gpus = device != "cpu" and torch.cuda.is_available()
        dist.init_process_group("nccl" if on_gpus else "gloo", timeout=LONGEST_WAIT)
    group = DistributedGroup()
    try:
        with progress.hide_progress() if group.rank else nullcontext():
            yield group
    except StoppedError:
        with suppress(BidrError):
            _leave(group, begun)
        raise
    _leave(group, begun)


def _leave(group: ProcessGroup, begun: bool) -> None:
    """All together, with nothing left to say: gloo may abort a process whose peers have gone."""
    group.barrier()
    if not begun:
        dist.destroy_process_group()


@contextmanager
def _in_touch() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise BidrError(
            "another process of this run has ended; what was finished is kept: run the same command again to go "
            f"on from there ({error})"
        ) from error


def _buckets(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Gradients that go over the wire together."""
    bucket: list[Tensor] = []
    size = 0
    for gradient in gradients:
        if bucket and size + gradient.numel() > BUCKET:
            yield bucket
            bucket, size = [], 0
        bucket.append(gradient)
        size += gradient.numel()
    if bucket:
        yield bucket
