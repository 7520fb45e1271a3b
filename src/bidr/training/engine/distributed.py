"""Process groups for data-parallel training: torchrun --nproc-per-node 2 -m bidr train ...

Every process prepares the same batch, encodes its share of the texts and computes the loss on the gathered vectors.
Only rank zero writes files. `ProcessGroup` is the single-process case with the same interface as `DistributedGroup`.
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

# Other ranks wait while rank zero encodes a corpus.
COLLECTIVE_TIMEOUT = timedelta(days=2)
BUCKET_ELEMENTS = 1 << 25


class ProcessGroup:
    """A group of one process; every collective is the identity."""

    rank, size = 0, 1

    @property
    def active_size(self) -> int:
        """How many processes run this code at the same time: 1 within rank_zero_first."""
        return 1

    def get_device(self, name: str) -> str:
        """Resolve 'cuda' to this process's device."""
        return name

    def gather(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Gather the rows of all ranks, in rank order, without gradient; counts: rows per rank."""
        return rows.detach()

    def drop_duplicate_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Keep gradients that are equal on all ranks on rank zero only, before they are summed."""

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """All-reduce gradients by sum."""

    def broadcast(self, values: Tensor) -> Tensor:
        """Broadcast rank zero's values."""
        return values

    def reduce_any(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank, without waiting for a device."""
        return flag

    def run_on_rank_zero(self, make: Callable[[], T]) -> T:
        """Run a function on rank zero and return its result on all ranks."""
        return make()

    def rank_zero_first(self) -> AbstractContextManager[None]:
        """Return a context that rank zero runs before the others, which find its results."""
        return nullcontext()

    def barrier(self) -> None:
        """Wait for all ranks."""


class _RankZeroResult(NamedTuple):
    """Rank zero's result, or the reason of its failure."""

    value: Any = None
    failure: str | None = None
    stopped: bool = False


class DistributedGroup(ProcessGroup):
    """The processes of torchrun, on one machine or on several with a shared folder."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.local = int(os.environ.get("LOCAL_RANK", self.rank))
        # Host-side messages use gloo so that they do not wait for the devices.
        self._hosts = dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT)
        self._is_alone = False

    @property
    def active_size(self) -> int:
        return 1 if self._is_alone else self.size

    def get_device(self, name: str) -> str:
        if not name.startswith("cuda"):
            return name
        if name != "cuda":
            raise ConfigError(
                f"device: given {name!r} to {self.size} processes, expected 'cuda', from which each picks its own"
            )
        if self.local >= torch.cuda.device_count():
            raise ConfigError(
                f"torchrun started process {self.local + 1} on a machine with {torch.cuda.device_count()} GPUs; "
                "start as many as there are (--nproc-per-node)"
            )
        torch.cuda.set_device(self.local)
        return f"cuda:{self.local}"

    def gather(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        max_count = max(counts)
        padded = rows.new_zeros(max_count, *rows.shape[1:])
        padded[: len(rows)] = rows.detach()
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    def drop_duplicate_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        if self.rank:
            for parameter in parameters:
                parameter.grad = None

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """All-reduce gradients by sum. A parameter unused on all ranks keeps None, so that the optimizer skips it."""
        learned = [parameter for parameter in parameters if parameter.requires_grad]
        used = torch.tensor([parameter.grad is not None for parameter in learned], dtype=torch.uint8)
        dist.all_reduce(used, dist.ReduceOp.MAX, group=self._hosts)
        gradients = []
        for parameter, is_used in zip(learned, used.tolist(), strict=True):
            if is_used:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                gradients.append(parameter.grad)
        for bucket in _split_into_buckets(gradients):
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
        with _report_lost_peer():
            dist.all_reduce(flags, dist.ReduceOp.MAX, group=self._hosts)
        return bool(flags.item())

    def run_on_rank_zero(self, make: Callable[[], T]) -> T:
        if self._is_alone:
            return make()
        value: T = self._receive_result() if self.rank else self._run_and_broadcast(make)
        return value

    @contextmanager
    def rank_zero_first(self) -> Iterator[None]:
        if self._is_alone:
            yield
        elif self.rank:
            self._receive_result()
            with self._run_alone():
                yield
        else:
            with self._broadcast_failure(), self._run_alone():
                yield
            self._broadcast_result(_RankZeroResult())
            self._stop_together(False)

    def barrier(self) -> None:
        with _report_lost_peer():
            dist.barrier(group=self._hosts)

    def _run_and_broadcast(self, make: Callable[[], T]) -> T:
        with self._broadcast_failure(), self._run_alone():
            value = make()
        self._broadcast_result(_RankZeroResult(value))
        self._stop_together(False)
        return value

    def _receive_result(self) -> Any:
        """Wait for rank zero's result. Signals are deferred: rank zero needs a peer to report to."""
        with checkpoint.hold_stop_signals() as stop:
            result = self._broadcast_result(_RankZeroResult())
        if result.failure is not None:
            raise StoppedError(result.failure) if result.stopped else BidrError(f"rank zero failed: {result.failure}")
        self._stop_together(stop.is_requested)
        return result.value

    @contextmanager
    def _broadcast_failure(self) -> Iterator[None]:
        """Broadcast a failure within the block to the other ranks."""
        try:
            yield
        except BaseException as error:
            with suppress(BidrError):
                self._broadcast_result(
                    _RankZeroResult(None, str(error) or type(error).__name__, isinstance(error, StoppedError))
                )
            raise

    def _stop_together(self, is_requested: bool) -> None:
        if self.reduce_any(is_requested):
            raise StoppedError("stopped; what was finished is kept: run the same command again to resume")

    @contextmanager
    def _run_alone(self) -> Iterator[None]:
        """Within the block, collectives do not wait: the other ranks run other code."""
        self._is_alone = True
        try:
            yield
        finally:
            self._is_alone = False

    def _broadcast_result(self, result: _RankZeroResult) -> _RankZeroResult:
        """Broadcast rank zero's result."""
        messages = [result]
        with _report_lost_peer():
            dist.broadcast_object_list(messages, 0, group=self._hosts, device=torch.device("cpu"))
        return messages[0]


@contextmanager
def join_process_group(device: str) -> Iterator[ProcessGroup]:
    """Join torchrun's process group, or a group of one. Only rank zero shows progress."""
    was_initialized = dist.is_initialized()
    if not was_initialized and ("RANK" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1"):
        yield ProcessGroup()
        return
    if not was_initialized:
        on_gpus = device != "cpu" and torch.cuda.is_available()
        dist.init_process_group("nccl" if on_gpus else "gloo", timeout=COLLECTIVE_TIMEOUT)
    group = DistributedGroup()
    try:
        with progress.hide_progress() if group.rank else nullcontext():
            yield group
    except StoppedError:
        with suppress(BidrError):
            _leave(group, was_initialized)
        raise
    _leave(group, was_initialized)


def _leave(group: ProcessGroup, was_initialized: bool) -> None:
    """Leave the group together: gloo may abort a process whose peers have exited."""
    group.barrier()
    if not was_initialized:
        dist.destroy_process_group()


@contextmanager
def _report_lost_peer() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise BidrError(
            "another process of this run has ended; what was finished is kept: run the same command again to "
            f"resume ({error})"
        ) from error


def _split_into_buckets(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Split gradients into buckets that are reduced together."""
    bucket: list[Tensor] = []
    size = 0
    for gradient in gradients:
        if bucket and size + gradient.numel() > BUCKET_ELEMENTS:
            yield bucket
            bucket, size = [], 0
        bucket.append(gradient)
        size += gradient.numel()
    if bucket:
        yield bucket
