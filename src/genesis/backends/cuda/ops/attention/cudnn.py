"""cuDNN's fused attention as candidates.

Source: NVIDIA's cuDNN documentation, "Attention" (operands, masks, statistics).
"""

from __future__ import annotations

from collections.abc import Iterator

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import KernelError, cudnn
from genesis.backends.cuda.driver.debug import show_choice
from genesis.backends.cuda.engine.candidate import Candidate, Family, Launch
from genesis.backends.cuda.ops.attention.problem import AttentionProblem
from genesis.shapes import contiguous_strides

_NUM_TRIED = 3  # plans, of half a second each; none but the first that can be built has been the fastest yet
_MOST_PROBLEMS = 64  # that are asked about: a program whose lengths keep changing must not build plans all the time
_SUMS = cudnn.Sums(deterministic=True)
_asked: set[AttentionProblem] = set()
driver.forget_on_switch(_asked.clear)


class CudnnFamily(Family[AttentionProblem]):
    prefix = "cudnn"

    def variants(self, problem: AttentionProblem) -> Iterator[Candidate[AttentionProblem]]:
        if len(_asked) >= _MOST_PROBLEMS and problem not in _asked:
            return
        _asked.add(problem)
        try:
            names = _graph(problem).plan_names(_SUMS)
        except KernelError as error:
            show_choice(str(problem), f"not by cuDNN, {error}")
            return
        yield from map(CudnnAttention, names[:_NUM_TRIED])

    def named(self, problem: AttentionProblem, name: str) -> Candidate[AttentionProblem] | None:
        """prepare() finds out whether cuDNN still has a plan of that name."""
        return CudnnAttention(name.partition("/")[2]) if cudnn.is_available() else None


class CudnnAttention(Candidate[AttentionProblem]):
    """One plan of one problem's graph."""

    builds_slowly = True

    def __init__(self, plan: str) -> None:
        self._plan = plan
        self.name = f"{CudnnFamily.prefix}/{plan}"
        self._built: tuple[cudnn.Graph, int] | None = None

    def supports(self, problem: AttentionProblem) -> bool:
        return cudnn.is_available()

    def workspace(self, problem: AttentionProblem) -> int:
        graph, index = self._build(problem)
        return graph.workspace(index)

    def prepare(self, problem: AttentionProblem) -> Launch:
        graph, index = self._build(problem)
        execute = graph.runner(index)
        return lambda stream, y, logsumexp, query, key, value, workspace: execute(
            stream, workspace, query, key, value, y, logsumexp
        )

    def _build(self, problem: AttentionProblem) -> tuple[cudnn.Graph, int]:
        """Raises: KernelError: cuDNN has no such plan, or it can't run."""
        if self._built is None:
            graph, index = _graph(problem), 0
            if not graph.plan_named(self._plan, _SUMS):
                graph = _graph(problem)
                names = graph.plan_names(_SUMS)
                if self._plan not in names:
                    raise KernelError(f"cuDNN has no plan {self._plan} for {problem}")
                index = names.index(self._plan)
            graph.build(index)
            self._built = graph, index
        return self._built


def _graph(problem: AttentionProblem) -> cudnn.Graph:
    """Raises: KernelError: this cuDNN cannot be asked so."""
    p = problem
    masked = {"diagonal_band_right_bound": 0} if p.is_causal else {}  # counted from the upper left corner
    (batch, heads, num_queries, _), value_size = p.queries[0], p.values[0][-1]
    with cudnn.reported():  # also what a frontend says that knows other arguments
        graph = cudnn.Graph(p.device, p.dtype)
        query, key, value = (graph.operand(*x) for x in (p.queries, p.keys, p.values))
        y, logsumexp = graph.ops.sdpa(q=query, k=key, v=value, attn_scale=p.scale, generate_stats=True, **masked)
        shape = (batch, heads, num_queries, value_size)
        graph.result(y, shape, contiguous_strides(shape))
        shape = (batch, heads, num_queries, 1)
        graph.result(logsumexp, shape, contiguous_strides(shape), dtypes.float32)
    return graph
