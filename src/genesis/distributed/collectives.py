"""The collectives, under torch.distributed's names."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from genesis import dtypes
from genesis.autograd.modes import unrecordable
from genesis.distributed.group import ProcessGroup, require, told
from genesis.distributed.transport import Call, ReduceOp, Work
from genesis.dtypes import DType
from genesis.errors import DeviceError, DTypeError, ShapeError, describe
from genesis.ndarray import CPU, NDArray
from genesis.shapes import Shape
from genesis.tensor import Tensor

_Send = Callable[[Call, Sequence[NDArray]], Work]  # starts a call on these arrays


class _Landing:
    """A Work whose result belongs elsewhere: what is not row-major takes part by a copy."""

    def __init__(self, work: Work, pairs: Sequence[tuple[NDArray, NDArray]]) -> None:
        self._work, self._pairs = work, pairs

    def wait(self) -> bool:
        self._work.wait()
        pairs, self._pairs = self._pairs, ()
        for target, source in pairs:
            if target is not source:
                target.copy_into(source)
            target.changes.note()
        return True

    def is_completed(self) -> bool:
        return self._work.is_completed()


class _Nothing:
    """Nothing was to be done."""

    def wait(self) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


@told
def all_reduce(
    tensor: Tensor, op: ReduceOp = ReduceOp.SUM, group: ProcessGroup | None = None, async_op: bool = False
) -> Work | None:  # fmt: skip
    """Reduce a tensor over the ranks, in place: all get the same bits.

    Args:
        tensor: any shape, of one dtype on all ranks; AVG takes floating dtypes, bool only MIN and MAX.
        op: how values are reduced.
        group: all ranks.
        async_op: return a Work without waiting; its wait() must come before tensor is used.
    Returns: None, or the Work.
    Raises: DTypeError: op does not take the dtype; DistributedError: there is no group, the ranks' calls differ, a rank
        has died, or the time is up.

    Example:
        >>> from torch.distributed import HashStore
        >>> from genesis import distributed
        >>> distributed.init_process_group("gloo", store=HashStore(), world_size=1, rank=0)
        >>> x = genesis.ones(2)
        >>> distributed.all_reduce(x, async_op=True).wait(), x.tolist()
        (True, [1.0, 1.0])
        >>> distributed.barrier()
        >>> distributed.destroy_process_group()
    """
    present, array = _begin("all_reduce", group, tensor)
    return _reduce(present, "all_reduce", "", array, op, async_op)


@told
def reduce(
    tensor: Tensor, dst: int = 0, op: ReduceOp = ReduceOp.SUM, group: ProcessGroup | None = None, async_op: bool = False
) -> Work | None:  # fmt: skip
    """Reduce a tensor over the ranks, in place on rank dst; the others' stay as they are.

    Args:
        tensor: as in `genesis.distributed.all_reduce`.
        dst: the rank that gets the result.
        op, group, async_op: as in `genesis.distributed.all_reduce`.
    Returns: None, or the Work.
    Raises: ValueError: there is no such rank; else as all_reduce.

    Example:
        >>> from torch.distributed import HashStore
        >>> from genesis import distributed
        >>> distributed.init_process_group("gloo", store=HashStore(), world_size=1, rank=0)
        >>> x = genesis.ones(2)
        >>> distributed.reduce(x, dst=0)
        >>> x.tolist()
        [1.0, 1.0]
        >>> distributed.destroy_process_group()
    """
    present, array = _begin("reduce", group, tensor)
    require_rank("reduce", "dst", dst, present.size)
    target = array if present.rank == dst else array.clone()
    return _reduce(present, "reduce", f"to rank {dst}, ", target, op, async_op)


@told
def broadcast(
    tensor: Tensor, src: int = 0, group: ProcessGroup | None = None, async_op: bool = False
) -> Work | None:  # fmt: skip
    """Give all ranks the values of the tensor of rank src, in place.

    Args:
        tensor: any shape and dtype, the same on all ranks.
        src: the rank whose values are taken.
        group, async_op: as in `genesis.distributed.all_reduce`.
    Returns: None, or the Work.
    Raises: ValueError: there is no such rank; else as all_reduce.

    Example:
        >>> from torch.distributed import HashStore
        >>> from genesis import distributed
        >>> distributed.init_process_group("gloo", store=HashStore(), world_size=1, rank=0)
        >>> x = genesis.ones(2)
        >>> distributed.broadcast(x, src=0)
        >>> x.tolist()
        [1.0, 1.0]
        >>> distributed.destroy_process_group()
    """
    present, array = _begin("broadcast", group, tensor)
    require_rank("broadcast", "src", src, present.size)
    transport = present.transport(array.device)

    def send(call: Call, arrays: Sequence[NDArray]) -> Work:
        return transport.broadcast(call, arrays[0], src)

    staged = _row_major(array)
    return _ended(present, "broadcast", f"from rank {src}, {_text(array)}", send, [], [(array, staged)], async_op)


@told
def all_gather(
    tensor_list: Sequence[Tensor], tensor: Tensor, group: ProcessGroup | None = None, async_op: bool = False
) -> Work | None:  # fmt: skip
    """Gather the tensors of all ranks, on all of them.

    Args:
        tensor_list: a tensor for each rank, of the shape and dtype of tensor; they take the values.
        tensor: any shape and dtype, the same on all ranks.
        group, async_op: as in `genesis.distributed.all_reduce`.
    Returns: None, or the Work.
    Raises: ShapeError: tensor_list has another length, or shapes; DTypeError: dtypes differ; else as all_reduce.

    Example:
        >>> from torch.distributed import HashStore
        >>> from genesis import distributed
        >>> distributed.init_process_group("gloo", store=HashStore(), world_size=1, rank=0)
        >>> gathered = [genesis.zeros(2)]
        >>> distributed.all_gather(gathered, genesis.ones(2))
        >>> gathered
        [tensor([1., 1.])]
        >>> distributed.destroy_process_group()
    """
    present, array = _begin("all_gather", group, tensor)
    outputs = _parts("all_gather", "tensor_list", tensor_list, array, present.size)
    for index, output in enumerate(outputs):
        _check_output("all_gather", f"tensor_list[{index}]", output)
    return _gather(present, "all_gather", outputs, array, async_op)


@told
def all_gather_into_tensor(
    output_tensor: Tensor, input_tensor: Tensor, group: ProcessGroup | None = None, async_op: bool = False
) -> Work | None:  # fmt: skip
    """Gather the tensors of all ranks, joined along dimension 0.

    Args:
        output_tensor: (size of the group · N, …), the dtype of input_tensor; takes the values.
        input_tensor: (N, …), the same on all ranks.
        group, async_op: as in `genesis.distributed.all_reduce`.
    Returns: None, or the Work.
    Raises: ShapeError, DTypeError: output_tensor does not fit; else as all_reduce.

    Example:
        >>> from torch.distributed import HashStore
        >>> from genesis import distributed
        >>> distributed.init_process_group("gloo", store=HashStore(), world_size=1, rank=0)
        >>> gathered = genesis.zeros(2)
        >>> distributed.all_gather_into_tensor(gathered, genesis.ones(2))
        >>> gathered.tolist()
        [1.0, 1.0]
        >>> distributed.destroy_process_group()
    """
    op = "all_gather_into_tensor"
    present, array = _begin(op, group, input_tensor)
    _check_output(op, "output_tensor", _array(op, "output_tensor", output_tensor))
    outputs = _chunks(op, "output_tensor", output_tensor, array.shape, array, present.size)
    return _gather(present, op, outputs, array, async_op)


@told
def reduce_scatter(
    output: Tensor, input_list: Sequence[Tensor], op: ReduceOp = ReduceOp.SUM, group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:  # fmt: skip
    """Reduce a list of tensors over the ranks, and give each rank its part: rank r the r-th.

    Args:
        output: any shape and dtype; takes this rank's part.
        input_list: a tensor for each rank, of the shape and dtype of output.
        op: how values are reduced.
        group, async_op: as in `genesis.distributed.all_reduce`.
    Returns: None, or the Work.
    Raises: ShapeError: input_list has another length, or shapes; DTypeError: dtypes differ; else as all_reduce.

    Example:
        >>> from torch.distributed import HashStore
        >>> from genesis import distributed
        >>> distributed.init_process_group("gloo", store=HashStore(), world_size=1, rank=0)
        >>> part = genesis.zeros(2)
        >>> distributed.reduce_scatter(part, [genesis.ones(2)])
        >>> part.tolist()
        [1.0, 1.0]
        >>> distributed.destroy_process_group()
    """
    present, array = _begin("reduce_scatter", group, output)
    inputs = _parts("reduce_scatter", "input_list", input_list, array, present.size)
    return _scatter(present, "reduce_scatter", array, inputs, op, async_op)


@told
def reduce_scatter_tensor(
    output: Tensor, input: Tensor, op: ReduceOp = ReduceOp.SUM, group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:  # fmt: skip
    """Reduce a tensor over the ranks, and give each rank its part along dimension 0.

    Args:
        output: (N, …), takes this rank's part.
        input: (size of the group · N, …), the dtype of output.
        op: how values are reduced.
        group, async_op: as in `genesis.distributed.all_reduce`.
    Returns: None, or the Work.
    Raises: ShapeError, DTypeError: input does not fit; else as all_reduce.

    Example:
        >>> from torch.distributed import HashStore
        >>> from genesis import distributed
        >>> distributed.init_process_group("gloo", store=HashStore(), world_size=1, rank=0)
        >>> part = genesis.zeros(2)
        >>> distributed.reduce_scatter_tensor(part, genesis.ones(2))
        >>> part.tolist()
        [1.0, 1.0]
        >>> distributed.destroy_process_group()
    """
    name = "reduce_scatter_tensor"
    present, array = _begin(name, group, output)
    inputs = _chunks(name, "input", input, array.shape, array, present.size)
    return _scatter(present, name, array, inputs, op, async_op)


def barrier(group: ProcessGroup | None = None, async_op: bool = False) -> Work | None:
    """Wait until all ranks are here. The host waits; on CUDA, work on streams goes on.

    Args:
        group, async_op: as in `genesis.distributed.all_reduce`.
    Returns: None, or the Work.

    Example:
        >>> from torch.distributed import HashStore
        >>> from genesis import distributed
        >>> distributed.init_process_group("gloo", store=HashStore(), world_size=1, rank=0)
        >>> distributed.barrier(async_op=True).wait()
        True
        >>> distributed.destroy_process_group()
    """
    unrecordable("calls distributed.barrier, in which the host waits")
    present = require("barrier", group)
    work = present.start_barrier()
    if async_op:
        return work
    work.wait()
    return None


# --- checks, before anything is sent ----------------------------------------------------------------------------------


def _begin(op: str, group: ProcessGroup | None, tensor: object) -> tuple[ProcessGroup, NDArray]:
    array = _array(op, "tensor", tensor)
    _check_output(op, "tensor", array)
    return require(op, group), array


def _array(op: str, argument: str, value: object) -> NDArray:
    if not isinstance(value, Tensor):
        raise DTypeError(describe(op, argument, "a Tensor", type(value).__name__))
    return value.array


def require_rank(op: str, argument: str, rank: object, size: int) -> None:
    """Raises: ValueError: there is no such rank."""
    if not (isinstance(rank, int) and 0 <= rank < size):
        raise ValueError(describe(op, argument, f"a rank from 0 to {size - 1}", rank))


def _check_output(op: str, argument: str, array: NDArray) -> None:
    if array.is_expanded:
        raise ShapeError(describe(op, argument, "elements of their own", "an expanded tensor, whose share memory"))


def _check_reduction(op: str, reduction: object, dtype: DType) -> None:
    if not isinstance(reduction, ReduceOp):
        raise DTypeError(describe(op, "op", "a ReduceOp", type(reduction).__name__))
    if reduction is ReduceOp.AVG and not dtype.is_floating_point:
        raise DTypeError(describe(op, "op", f"SUM, PRODUCT, MIN or MAX of {dtype.name}", "AVG"))
    if dtype is dtypes.bool_ and reduction not in (ReduceOp.MIN, ReduceOp.MAX):
        raise DTypeError(describe(op, "op", "MIN or MAX of bool", reduction.name))


def _parts(op: str, argument: str, tensors: Sequence[Tensor], like: NDArray, size: int) -> list[NDArray]:
    """The arrays of a list with a tensor for each rank."""
    if not isinstance(tensors, Sequence | Tensor):
        raise DTypeError(describe(op, argument, f"{size} tensors, one for each rank", type(tensors).__name__))
    arrays = [_array(op, f"{argument}[{index}]", tensor) for index, tensor in enumerate(tensors)]
    if len(arrays) != size:
        raise ShapeError(describe(op, argument, f"{size} tensors, one for each rank", len(arrays)))
    for index, array in enumerate(arrays):
        _check_like(op, f"{argument}[{index}]", array, like, like.shape)
    return arrays


def _chunks(op: str, argument: str, tensor: Tensor, shape: Shape, like: NDArray, size: int) -> list[NDArray]:
    """The parts of a tensor along dimension 0, one for each rank."""
    if not shape:
        raise ShapeError(describe(op, argument, "at least 1 dimension", "a part without"))
    array = _array(op, argument, tensor)
    _check_like(op, argument, array, like, (size * shape[0], *shape[1:]))
    return [array.narrow(0, rank * shape[0], shape[0]) for rank in range(size)]


def _check_like(op: str, argument: str, array: NDArray, like: NDArray, shape: Shape) -> None:
    if array.shape != shape:
        raise ShapeError(describe(op, argument, f"shape {shape}", array.shape))
    if array.dtype is not like.dtype:
        raise DTypeError(describe(op, argument, like.dtype.name, array.dtype.name))
    if array.device is not like.device:
        raise DeviceError(describe(op, argument, f"a tensor on {like.device}", f"one on {array.device}"))


# --- the way to a transport -------------------------------------------------------------------------------------------


def _reduce(
    present: ProcessGroup, name: str, where: str, array: NDArray, op: ReduceOp, async_op: bool
) -> Work | None:  # fmt: skip
    _check_reduction(name, op, array.dtype)
    transport = present.transport(array.device)

    def send(call: Call, arrays: Sequence[NDArray]) -> Work:
        return transport.all_reduce(call, arrays[0], op)

    staged = _row_major(array)
    return _ended(present, name, f"{where}{op.value}, {_text(array)}", send, [], [(array, staged)], async_op)


def _gather(
    present: ProcessGroup, name: str, outputs: Sequence[NDArray], array: NDArray, async_op: bool
) -> Work | None:  # fmt: skip
    transport = present.transport(array.device)

    def send(call: Call, arrays: Sequence[NDArray]) -> Work:
        return transport.all_gather(call, arrays[:-1], arrays[-1])

    pairs = [(output, _row_major(output, is_read=False)) for output in outputs]
    return _ended(present, name, _text(array), send, [array.contiguous()], pairs, async_op)


def _scatter(
    present: ProcessGroup, name: str, array: NDArray, inputs: Sequence[NDArray], op: ReduceOp, async_op: bool
) -> Work | None:  # fmt: skip
    _check_reduction(name, op, array.dtype)
    transport = present.transport(array.device)

    def send(call: Call, arrays: Sequence[NDArray]) -> Work:
        return transport.reduce_scatter(call, arrays[0], arrays[1:], op)

    given, staged = [each.contiguous() for each in inputs], _row_major(array, is_read=False)
    return _ended(present, name, f"{op.value}, {_text(array)}", send, given, [(array, staged)], async_op)


def _ended(
    present: ProcessGroup, name: str, details: str, send: _Send, given: Sequence[NDArray],
    pairs: Sequence[tuple[NDArray, NDArray]], async_op: bool,
) -> Work | None:  # fmt: skip
    """Make a call, and wait for it unless it is asynchronous; a recording of this run repeats it.

    Args:
        send: starts it on the arrays that take results, followed by those given.
        given: what it only reads.
        pairs: where each result belongs, and the row-major array that takes it.
    """
    written = [staged for _, staged in pairs]
    if async_op:
        unrecordable(f"calls distributed.{name}(async_op=True), of which a replay cannot tell where its wait() is")
        work = _started(present, present.call(name, details), send, [*written, *given])
        return work if isinstance(work, _Nothing) else _Landing(work, pairs)
    if present.check and not present.compares(written[0].device):
        unrecordable(f"calls distributed.{name}, before which the ranks compare their calls on the host")

    def make(arrays: Sequence[NDArray]) -> None:
        _started(present, present.call(name, details), send, arrays).wait()

    present.repeated(make, [*written, *given], written)
    _Landing(_Nothing(), pairs).wait()
    return None


def _started(present: ProcessGroup, call: Call, send: _Send, arrays: Sequence[NDArray]) -> Work:
    if not arrays[0].numel:  # the ranks still must agree that it is so
        if call.checked:
            present.agree(call)
        return _Nothing()
    if call.checked and not present.compares(arrays[0].device):
        present.agree(call)
    return send(call, arrays)


def _row_major(array: NDArray, is_read: bool = True) -> NDArray:
    """The array itself if its memory is in row-major order, else another that is."""
    if array.is_contiguous:
        return array
    return array.contiguous() if is_read else NDArray.empty(array.shape, array.dtype, array.device)


def _text(array: NDArray) -> str:
    where = "" if array.device is CPU else f" on {array.device.type}"
    return f"{array.dtype.name} {list(array.shape)}{where}"
