"""cuDNN's engines as candidates: every plan that its heuristics name for a problem."""

from __future__ import annotations

import functools
import re

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import KernelError, cudnn
from genesis.backends.cuda.driver.cudnn import Graph, Sums
from genesis.backends.cuda.engine.candidate import FULL, TF32, Candidate, Family, Launch
from genesis.backends.cuda.launch.barrier import behind_all
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, ConvProblem
from genesis.shapes import numel

# In a plan's name: CUDNN_KNOB_TYPE_SPLIT_K, over how many programs the terms of a result are shared out; more than 1.
_SPLIT_K = re.compile(r"_k0=(?![01](_|$))")
# Of cuDNN 9.19: in float32 up to three times as far off as a chain of multiply-adds, and no note says so.
_INEXACT = re.compile(r"eng17(_|$)")
_ANYWHERE = 1 << 32  # an address that is as good as any where a launch is captured, and does not run
_ENOUGH_RESULTS = 1024  # so that their error is that of many, within a few percent


class CudnnFamily(Family[ConvProblem]):
    prefix = "cudnn"
    per_turn = 4  # they are measured in the time that a compiler takes for a part of one of ours

    def variants(self, problem: ConvProblem) -> list[Candidate[ConvProblem]]:
        return _suggested(problem, checked=False)

    def trials(self, problem: ConvProblem) -> list[Candidate[ConvProblem]]:
        return _suggested(problem, checked=True)

    def named(self, problem: ConvProblem, name: str) -> Candidate[ConvProblem] | None:
        """prepare() finds out whether cuDNN still has a plan of that name."""
        plan = name.partition("/")[2]
        return Cudnn(plan, problem, checked=True) if _is_supported(problem) else None


class Cudnn(Candidate[ConvProblem]):
    """One plan of one graph: an engine and its settings, as in "eng7_k24=39"."""

    def __init__(self, plan: str, problem: ConvProblem, *, checked: bool = False) -> None:
        """checked: nobody uses it whose result on random operands is not within the tuner's bound."""
        self._plan, self._checked = plan, checked
        self.name = f"{CudnnFamily.prefix}/{plan}"
        self.arithmetic = FULL if _full_precision(problem) else TF32
        self.deterministic = problem.deterministic  # only then it is made sure of
        self.builds_slowly = problem.bias or problem.residual or problem.activation is not None  # compiled by cuDNN
        self.is_ready_made = not self.builds_slowly
        self._built: tuple[Graph, int] | None = None

    def supports(self, problem: ConvProblem) -> bool:
        if problem.dtype.itemsize == 2 and _adds_up_in_result(self._plan):
            return False
        return _is_supported(problem) and not (problem.is_exact and _INEXACT.match(self._plan))

    def workspace(self, problem: ConvProblem) -> int:
        graph, index = self._build(problem)
        return graph.workspace(index)

    def prepare(self, problem: ConvProblem) -> Launch:
        graph, index = self._build(problem)
        execute = graph.runner(index)
        if problem.bias or problem.residual:  # which its kernels may read too soon
            num_operands = 3 + problem.bias + problem.residual
            execute = behind_all(execute, problem.device, *[_ANYWHERE] * (1 + num_operands))
        if problem.bias and problem.residual:
            return lambda stream, out, first, second, bias, residual, workspace: execute(
                stream, workspace, first, second, bias, residual, out
            )
        if problem.bias:
            return lambda stream, out, first, second, bias, _, workspace: execute(
                stream, workspace, first, second, bias, out
            )
        if problem.residual:
            return lambda stream, out, first, second, _, residual, workspace: execute(
                stream, workspace, first, second, residual, out
            )
        return lambda stream, out, first, second, _, __, workspace: execute(stream, workspace, first, second, out)

    def _build(self, problem: ConvProblem) -> tuple[Graph, int]:
        """Raises: KernelError: cuDNN has no such plan, or it can't run."""
        if self._built is None:
            graph, index = _graph(problem), 0
            if not graph.plan_named(self._plan, _sums(problem, self._checked)):
                graph, names = _planned(problem, self._checked)
                if self._plan not in names:
                    raise KernelError(f"cuDNN has no plan {self._plan} for {problem}")
                index = names.index(self._plan)
            graph.build(index)
            self._built = graph, index
        return self._built


def _suggested(problem: ConvProblem, checked: bool) -> list[Candidate[ConvProblem]]:
    if not _is_supported(problem):
        return []
    try:
        names = _names(problem, checked)
    except KernelError:  # no engine for this problem
        return []
    return [Cudnn(name, problem, checked=checked) for name in names]


@functools.lru_cache(maxsize=1024)
def _names(problem: ConvProblem, checked: bool) -> tuple[str, ...]:
    """Names of the plans, each once; cached, as the tuner asks several times. Raises: KernelError: there are none."""
    return tuple(dict.fromkeys(_planned(problem, checked)[1]))


driver.forget_on_switch(_names.cache_clear)


def _is_supported(problem: ConvProblem) -> bool:
    p = problem
    known = p.dtype in (dtypes.float32, dtypes.float16, dtypes.bfloat16)
    # Addresses of half a cache sector are what its fastest engines want; with less it has few, and those are slow.
    shapes = (p.first_shape, p.second_shape, p.result_shape)
    return known and p.alignment == 16 and all(0 < numel(shape) < 2**31 for shape in shapes) and cudnn.is_available()


def _adds_up_in_result(plan: str) -> bool:
    """Do several programs add to the elements of the result, so that each addition is rounded to its dtype?

    cuDNN's numerical notes are of engines, whatever their settings: the one on reduced precision does not tell of
    these. On an H200 their weight gradients in bfloat16 were 2.4e-3 to 4.4e-3 off, where one rounding comes to 1.7e-3.
    """
    return _SPLIT_K.search(plan) is not None


def _full_precision(problem: ConvProblem) -> bool:
    return not problem.is_rounded


def _shows_rounded_sums(problem: ConvProblem) -> bool:
    """Does the tuner's check tell sums in 16 bits, of all terms or parts of them, from those in float32?

    The result's own rounding comes to 0.86 of the bound. Of independent terms the squares of all parts add up to that
    of the result: parts that are rounded to the same dtype add as much error again, at least, and √2 · 0.86 is 1.2.
    A bias or residual, which is in no part, would hide some of that; the bound of float32 in TF32 leaves room for it.
    """
    p = problem
    is_alone = not p.bias and not p.residual and p.activation is None
    return p.dtype.itemsize == 2 and is_alone and numel(p.result_shape) >= _ENOUGH_RESULTS


def _planned(problem: ConvProblem, checked: bool) -> tuple[Graph, list[str]]:
    """The graph of a problem, and the names of its plans. Raises: KernelError: there are none."""
    graph = _graph(problem)
    return graph, graph.plan_names(_sums(problem, checked))


def _sums(problem: ConvProblem, checked: bool) -> Sums:
    """How a plan is to add up.

    cuDNN notes of an engine, whatever its kernels and settings, that its sums may be in less than float32: the fastest
    forward of a first layer in float16 comes from one whose sums are, there, as accurate as any.
    """
    # Tensor cores round float32 operands, but lose nothing of 16-bit ones; Winograd's sums of operands are rounded too.
    return Sums(problem.is_exact, problem.deterministic, any_width=checked and _shows_rounded_sums(problem))


def _graph(problem: ConvProblem) -> Graph:
    p = problem
    graph = Graph(p.device, p.dtype)
    first, second = graph.operand(p.first_shape), graph.operand(p.second_shape)
    bias = graph.operand((1, p.result_shape[1], 1, 1)) if p.bias else None
    residual = graph.operand(p.result_shape) if p.residual else None
    options = {"padding": list(p.padding), "stride": list(p.stride), "dilation": list(p.dilation)}
    if p.direction == FORWARD:
        result = graph.ops.conv_fprop(image=first, weight=second, **options)
    elif p.direction == INPUT_GRAD:
        result = graph.ops.conv_dgrad(loss=first, filter=second, **options)
    else:
        result = graph.ops.conv_wgrad(image=second, loss=first, **options)
    result.set_dim(list(p.result_shape))
    if bias is not None:
        result = graph.ops.bias(input=result, bias=bias)
    if residual is not None:
        result = graph.ops.add(a=result, b=residual)
    if p.activation == "relu":
        result = graph.ops.relu(input=result)
    graph.result(result, p.result_shape)
    return graph
