"""genesis.compile sees each change of what a run reads, wherever it stands; or says that it cannot."""

from __future__ import annotations

import builtins
import re
import sys

import pytest

import genesis
from genesis import functional
from genesis.nn import functional as nn_functional
from tests.graphs.programs import MODEL, STEP, Program, run

CLASS = "class Config:\n    k = 2.0\nconfig = Config()\n"
DATA = "import dataclasses\n@dataclasses.dataclass\nclass Config:\n    k: float = 2.0\nconfig = Config()\n"
HELPER = "class Helper:\n    k = 2.0\n    @staticmethod\n    def fixed(): return K\n    @classmethod\n"
HELPER += "    def of_class(cls): return cls.k\n    @property\n    def shown(self): return self.k\n    def get(self): return 2.0\n"
HELPER += "class Child(Helper):\n    def get(self): return super().get() + 1.0\nK = 2.0\nhelper = Child()\n"

WATCHED = {
    "global": Program("K = 2.0\n", "K", ("K = 3.0", "K = 3", "del K\nimport builtins\nbuiltins.K = 5.0", "K = 2.0")),
    "attribute over a class default": Program(CLASS, "config.k", ("config.k = 3.0", "del config.k")),
    "class attribute": Program(CLASS, "config.k", ("Config.k = 3.0", "config = Config()")),
    "attribute of a class": Program(CLASS, "Config.k", ("Config.k = 3.0",)),
    "rebound object": Program(CLASS, "config.k", ("config = Config()\nconfig.k = 4.0",)),
    "another class": Program(CLASS, "config.k", ("class Other(Config):\n    k = 5.0\nconfig.__class__ = Other",)),
    "attribute that shadows in a child": Program(HELPER, "helper.k", ("Child.k = 7.0", "helper.k = 8.0")),
    "dataclass": Program(DATA, "config.k", ("config.k = 3.0", "config = Config(4.0)")),
    "frozen dataclass": Program(DATA.replace("lass\n", "lass(frozen=True)\n", 1), "config.k", ("config = Config(3.0)",)),
    "replaced field": Program(DATA, "config.k", ("config = dataclasses.replace(config, k=5.0)",)),
    "tuple": Program("rates = (2.0, 1.0)\n", "rates[0]", ("rates = (3.0, 1.0)",)),
    "named tuple": Program(
        "import collections\nRates = collections.namedtuple('Rates', 'k j')\nrates = Rates(2.0, 1.0)\n",
        "rates.k", ("rates = rates._replace(k=3.0)",),
    ),
    "list": Program("rates = [2.0]\n", "rates[0]", ("rates[0] = 3.0", "rates = [4.0]", "rates.insert(0, 5.0)")),
    "length of a list": Program("rates = [2.0]\n", "len(rates)", ("rates.append(1.0)", "rates.clear()")),
    "list in a list": Program("rates = [[2.0]]\n", "rates[0][0]", ("rates[0][0] = 3.0",)),
    "dict": Program("rates = {'k': 2.0}\n", "rates['k']", ("rates['k'] = 3.0", "rates = {'k': 4.0}")),
    "missing key": Program("rates = {}\n", "rates.get('k', 2.0)", ("rates['k'] = 3.0", "rates.pop('k')")),
    "ordered dict": Program(
        "import collections\nrates = collections.OrderedDict(k=2.0, j=1.0)\n",
        "next(iter(rates.values()))", ("rates.move_to_end('k')",),
    ),
    "deque": Program("import collections\nrates = collections.deque([2.0])\n", "rates[0]", ("rates.appendleft(3.0)",)),
    "set": Program("flags = {'a'}\n", "3.0 if 'b' in flags else 2.0", ("flags.add('b')", "flags.remove('b')")),
    "counter": Program("import collections\nc = collections.Counter('aab')\n", "c['a']", ("c.update('a')",)),
    "subclass of dict": Program("class D(dict):\n    scale = 1.0\nd = D(k=2.0)\n", "d['k'] * d.scale",
                                ("d['k'] = 3.0", "d.scale = 2.0", "D.scale = 9.0\ndel d.scale")),
    "namespace": Program("import types\nns = types.SimpleNamespace(k=2.0)\n", "ns.k", ("ns.k = 3.0",)),
    "slots": Program("class S:\n    __slots__ = ('k',)\ns = S()\ns.k = 2.0\n", "s.k", ("s.k = 3.0",)),
    "getattr": Program(CLASS, "getattr(config, 'k')", ("config.k = 3.0",)),
    "getattr with a default": Program(CLASS, "getattr(config, 'j', 2.0)", ("config.j = 3.0", "Config.j = 4.0\ndel config.j")),
    "getattr of a computed name": Program(CLASS + "name = 'k'\n", "getattr(config, name.lower())", ("config.k = 3.0", "config.j = 5.0\nname = 'J'")),
    "hasattr": Program(CLASS, "3.0 if hasattr(config, 'on') else 2.0", ("config.on = 1",)),
    "vars": Program(CLASS + "config.j = 1.0\n", "vars(config)['j']", ("config.j = 3.0",)),
    "__dict__": Program(CLASS + "config.j = 1.0\n", "config.__dict__['j']", ("config.j = 3.0",)),
    "__getattr__": Program("class G:\n    def __getattr__(self, name): return store[name]\nstore = {'k': 2.0}\ng = G()\n", "g.k", ("store['k'] = 3.0", "g.k = 5.0")),
    "property": Program(HELPER, "helper.shown", ("helper.k = 3.0", "Helper.shown = property(lambda self: 5.0)")),
    "static method": Program(HELPER, "helper.fixed()", ("K = 3.0", "Helper.fixed = staticmethod(lambda: 6.0)")),
    "class method": Program(HELPER, "helper.of_class()", ("Child.k = 3.0",)),
    "super": Program(HELPER, "helper.get()", ("Helper.get = lambda self: 5.0",)),
    "instance method over the class's": Program(HELPER, "helper.get()", ("helper.get = lambda: 5.0",)),
    "descriptor": Program(
        "class D:\n    def __init__(self): self.v = 2.0\n    def __get__(self, owner, kind): return self.v\nclass C:\n    k = D()\nc = C()\n",
        "c.k", ("C.__dict__['k'].v = 3.0",),
    ),
    "cached property": Program(
        "import functools\nclass C:\n    @functools.cached_property\n    def k(self): return 2.0\nc = C()\n", "c.k", ("c.k = 3.0", "c = C()"),
    ),
    "callable object": Program("class C:\n    k = 2.0\n    def __call__(self): return self.k\nc = C()\n", "c()", ("c.k = 3.0", "C.__call__ = lambda self: 5.0")),
    "operator of a class": Program("class C:\n    def __add__(self, other): return 2.0 + other\nc = C()\n", "(c + 0.0)", ("C.__add__ = lambda self, other: 5.0",)),
    "length of an object": Program("class C:\n    n = 2\n    def __len__(self): return self.n\nc = C()\n", "len(c)", ("c.n = 3", "C.__len__ = lambda self: 7")),
    "partial": Program("import functools\ndef f(k): return k\ng = functools.partial(f, 2.0)\n", "g()", ("g = functools.partial(f, 3.0)",)),
    "keyword of a partial": Program("import functools\ndef f(k): return k\ng = functools.partial(f, k=2.0)\n", "g()", ("g.keywords['k'] = 3.0",)),
    "function": Program("def f(): return 2.0\n", "f()", ("f = lambda: 3.0",)),
    "code of a function": Program("def f(): return 2.0\n", "f()", ("f.__code__ = (lambda: 3.0).__code__",)),
    "default of a function": Program("def f(k=2.0): return k\n", "f()", ("f.__defaults__ = (3.0,)",)),
    "keyword default": Program("def f(*, k=2.0): return k\n", "f()", ("f.__kwdefaults__['k'] = 3.0",)),
    "attribute of a function": Program("def f(): return f.k\nf.k = 2.0\n", "f()", ("f.k = 3.0",)),
    "closure": Program("def make():\n    k = 2.0\n    def get(): return k\n    def put(v):\n        nonlocal k\n        k = v\n    return get, put\nget, put = make()\n", "get()", ("put(3.0)",)),
    "list in a closure": Program("def make(k):\n    def get(): return k[0]\n    return get\nbox = [2.0]\nget = make(box)\n", "get()", ("box[0] = 3.0",)),
    "decorated": Program("import functools\ndef double(f):\n    @functools.wraps(f)\n    def g(): return f() * K\n    return g\n@double\ndef f(): return 1.0\nK = 2.0\n", "f()", ("K = 3.0",)),
    "function of a dict": Program("table = {'f': lambda: 2.0}\n", "table['f']()", ("table['f'] = lambda: 3.0",)),
    "context manager": Program("import contextlib\n@contextlib.contextmanager\ndef scaled():\n    yield K\nK = 2.0\ndef f():\n    with scaled() as k:\n        return k\n", "f()", ("K = 3.0",)),
    "generator": Program("K = [2.0, 1.0]\n", "sum(k for k in K)", ("K.append(3.0)",)),
    "module": Program("import types\nmodule = types.ModuleType('m')\nmodule.k = 2.0\n", "module.k", ("module.k = 3.0",)),
    "import in a function": Program("import sys, types\nsys.modules['a_module'] = types.ModuleType('a_module')\nsys.modules['a_module'].k = 2.0\ndef f():\n    import a_module\n    return a_module.k\n", "f()", ("sys.modules['a_module'].k = 3.0",)),
    "enum": Program("import enum\nclass E(enum.Enum):\n    A = 2.0\n    B = 3.0\nchosen = E.A\n", "chosen.value", ("chosen = E.B",)),
    "rebound builtin": Program(
        "", "len(ascii(-2))",
        ("ascii = lambda v: 'abc'", "del ascii", "import builtins\nbuiltins.ascii = lambda v: 'abcd'", "builtins.ascii = repr"),
    ),
    "function of Genesis": Program("", "F.relu(x)", ("F.relu = lambda x: x * 3.0", "F.relu = genesis.functional.relu")),
    "sign of zero": Program("K = 0.0\n", "(x * 0.0 + 1) / genesis.tensor(K)", ("K = -0.0",)),
    "NaN": Program("K = float('nan')\n", "K", ("K = float('nan')", "K = 1.0")),
    "dtype of the process": Program("", "genesis.full((3,), 1 / 3).sum()", ("genesis.set_default_dtype(genesis.float64)", "genesis.set_default_dtype(genesis.float32)")),
    "attribute of the model": Program("", "self.k", ("model.k = 3.0", "model.k = 3"), "self.k = 2.0"),
    "class attribute of the model": Program("", "self.k", ("model.k = 3.0",), "type(self).k = 2.0"),
    "list of the model": Program("", "self.ks[0]", ("model.ks[0] = 3.0",), "self.ks = [2.0]"),
    "object of the model": Program(CLASS, "self.config.k", ("model.config.k = 3.0",), "self.config = config"),
    "private attribute of the model": Program("", "self._ks[0]", ("model._ks[0] = 3.0",), "self._ks = [2.0]"),
    "flag of the model": Program("", "(2.0 if self.training else 3.0)", ("model.train(not model.training)",)),
    "attribute of a parameter": Program("", "self.weight.scale", ("model.weight.scale = 3.0",), "self.weight.scale = 2.0"),
    "layer outside the model": Program("layer = nn.Dropout(0.0)\n", "layer(x).sum().detach()", ("layer = nn.Identity()",)),
    "setting of a layer": Program("", "self.act(x - 5.0).sum().detach()", ("model.act.negative_slope = 0.5",), "self.act = nn.LeakyReLU(0.25)"),
    "learning rate": Program("", "optimizer.param_groups[0]['lr']", ("optimizer.param_groups[0]['lr'] = 0.5",)),
    "forward of one module": Program("class Act(nn.Module):\n    def forward(self, x): return x.relu()\n", "self.act(x).sum().detach()", ("self = model\nself.act.forward = lambda x: x * 9.0",), "self.act = Act()"),
    "forward of a layer": Program("", "self.act(x - 5.0).sum().detach()", ("model.act.forward = lambda x: x * 9.0",), "self.act = nn.ReLU()"),
    "forward of a class": Program("class Act(nn.Module):\n    def forward(self, x): return x.relu()\n", "self.act(x).sum().detach()", ("Act.forward = lambda self, x: x * 9.0",), "self.act = Act()"),
    "forward of the model": Program("", "1.0", ("def new(self, x): return x * 9.0\nNet.forward = new",)),
}  # fmt: skip

REFUSED = {
    "lru_cache": (
        Program("import functools\n@functools.lru_cache\ndef f(): return K\nK = 2.0\n", "f()", ("f.cache_clear()\nK = 3.0",)),
        r"calls 'f', whose results functools.lru_cache keeps \(a_program.py:\d+\)",
    ),
    "random": (Program("import random\nr = random\n", "0.0 * r.random()", ("r.seed(3)",)), r"calls Random.random, which a replay would not \(a_program"),
    "time": (Program("import time\n", "0.0 * time.time()", ()), r"calls time.time, which a replay would not \(a_program.py:\d+\)"),
    "print": (Program("def f():\n    print('', end='')\n    return 1.0\n", "f()", ()), r"calls print, which a replay would not \(a_program"),
    "function that is handed on": (Program("import time\n", "0.0 * sum(map(abs, map(lambda f: f(), [time.time])))", ()), "which a replay would not|hands on"),
    "iterator": (Program("numbers = iter([1.0] * 99)\n", "next(numbers)", ()), r"uses 'numbers', a list_iterator, which cannot be watched \(a_program"),
    "generator": (Program("numbers = (1.0 for _ in range(99))\n", "next(numbers)", ()), "uses 'numbers', a generator, which cannot be watched"),
    "numpy": (Program("import numpy\nk = numpy.ones(3)\n", "float(k[0])", ("k[0] = 3.0",)), "uses 'k', a numpy.ndarray, which cannot be watched"),
    "array": (Program("import array\nk = array.array('d', [2.0])\n", "k[0]", ("k[0] = 3.0",)), "uses 'k', an array.array, which cannot be watched"),
    "thread-local": (Program("import threading\nlocal = threading.local()\nlocal.k = 2.0\n", "local.k", ("local.k = 3.0",)), "uses 'local', a _thread._local"),
    "context variable": (Program("import contextvars\nv = contextvars.ContextVar('v', default=2.0)\n", "v.get()", ("v.set(3.0)",)), "ContextVar"),
    "globals()": (Program("K = 2.0\n", "globals()['K']", ("K = 3.0",)), "calls globals, which a replay would not"),
    "eval": (Program("K = 2.0\n", "eval('K')", ("K = 3.0",)), "calls eval, which a replay would not"),
    "counter": (Program("n = [0.0]\ndef f():\n    n[0] += 1.0\n    return n[0]\n", "f()", ()), "changes 'n', a name outside of it"),
    "attribute that it sets": (Program(CLASS + "def f():\n    config.k += 1.0\n    return config.k\n", "f()", ()), r"changes 'config.k', a name outside of it"),
    "seed": (Program("def f():\n    genesis.manual_seed(0)\n    return 1.0\n", "f()", ()), "sets the state of a random generator"),
    "mode that it leaves": (Program("def f():\n    genesis.set_default_dtype(genesis.float32 if genesis.get_default_dtype() is genesis.float64 else genesis.float64)\n    return 1.0\n", "f()", ("genesis.set_default_dtype(genesis.float32)",)), "changes its arguments or a mode"),
}  # fmt: skip


@pytest.mark.parametrize("kind", [MODEL, STEP])
@pytest.mark.parametrize("name", WATCHED)
def test_what_is_watched(name: str, kind: str) -> None:
    program = WATCHED[name]
    try:
        outcome = run(program, kind)
    finally:
        _restore()
    assert outcome.compiled == outcome.as_it_stands
    assert not outcome.warned
    assert outcome.num_recordings >= 1


@pytest.mark.parametrize("kind", [MODEL, STEP])
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, kind: str) -> None:
    program, reason = REFUSED[name]
    try:
        outcome = run(program, kind)
    finally:
        _restore()
    assert outcome.compiled == outcome.as_it_stands
    assert len(outcome.warned) == 1
    assert re.search(f"genesis.compile: .* runs as it stands: it .*({reason})", outcome.warned[0])


def _restore() -> None:
    """What a program that failed might have left."""
    genesis.set_default_dtype(genesis.float32)
    sys.modules.pop("a_module", None)
    vars(builtins).pop("K", None)
    builtins.ascii = _ascii  # type: ignore[assignment]
    nn_functional.relu = functional.relu


_ascii = ascii
