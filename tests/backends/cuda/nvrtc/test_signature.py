"""Kernels are found in a source, and their parameters are understood, without a compiler."""

from __future__ import annotations

from typing import Any

import pytest

from genesis.backends.cuda.nvrtc import signature
from genesis.backends.cuda.nvrtc.types import Number, Pointer, Unsupported, kind_of

INTEGERS = {
    "int8": ("signed char", "int8_t", "std::int8_t", "char"),
    "uint8": ("unsigned char", "uint8_t", "char unsigned"),
    "int16": ("short", "short int", "signed short", "int16_t"),
    "uint16": ("unsigned short", "unsigned short int", "uint16_t"),
    "int32": ("int", "signed", "signed int", "int32_t", "const int", "std::int32_t"),
    "uint32": ("unsigned", "unsigned int", "uint32_t"),
    "int64": ("long long", "long long int", "long", "int64_t", "std::int64_t", "cuda::std::int64_t", "ptrdiff_t",
              "signed long long", "long signed int", "long int long"),
    "uint64": ("size_t", "std::size_t", "unsigned long long", "long unsigned int", "uint64_t", "unsigned long"),
}  # fmt: skip
SAME_SIZE = {"uint16": "int16", "uint32": "int32", "uint64": "int64"}


def kind(text: str, aliases: dict[str, tuple[str, ...]] | None = None) -> object:
    kernels, found = signature.find([f"__global__ void f({text} name) {{}}"])
    (parameter,) = kernels["f"].parameters
    assert parameter.name == "name"
    return kind_of(parameter.type, {**found, **(aliases or {})})


@pytest.mark.parametrize(("dtype", "spelling"), [(d, s) for d, spellings in INTEGERS.items() for s in spellings])
def test_integers_in_every_spelling(dtype: str, spelling: str) -> None:
    bits, signed = int(dtype.lstrip("uint")), not dtype.startswith("u")
    number = kind(spelling)
    assert isinstance(number, Number)
    assert (number.low, number.high) == (-(1 << bits - 1) if signed else 0, (1 << bits - signed) - 1)
    pointer = kind(f"{spelling} *")
    assert isinstance(pointer, Pointer)
    assert pointer.dtypes == ((dtype, SAME_SIZE[dtype]) if dtype in SAME_SIZE else (dtype,))


@pytest.mark.parametrize(
    ("text", "dtypes", "lanes", "alignment", "writable"),
    [
        ("float*", ("float32",), 1, 4, True),
        ("const float* __restrict__", ("float32",), 1, 4, False),
        ("float const *", ("float32",), 1, 4, False),
        ("float* const", ("float32",), 1, 4, True),
        ("double *__restrict", ("float64",), 1, 8, True),
        ("const __half*", ("float16",), 1, 2, False),
        ("half *", ("float16",), 1, 2, True),
        ("const __nv_bfloat16*", ("bfloat16",), 1, 2, False),
        ("bool*", ("bool",), 1, 1, True),
        ("const float4*", ("float32",), 4, 16, False),
        ("double4*", ("float64",), 4, 16, True),
        ("float3*", ("float32",), 3, 4, True),
        ("__half2*", ("float16",), 2, 4, True),
        ("uchar4*", ("uint8",), 4, 4, True),
        ("__nv_bfloat162 *", ("bfloat16",), 2, 4, True),
        ("void*", (), 1, 1, True),
        ("const void*", (), 1, 1, False),
    ],
)
def test_pointers(text: str, dtypes: tuple[str, ...], lanes: int, alignment: int, writable: bool) -> None:
    pointer = kind(text)
    assert isinstance(pointer, Pointer)
    assert (pointer.dtypes, pointer.lanes, pointer.alignment, pointer.writable) == (dtypes, lanes, alignment, writable)


@pytest.mark.parametrize(
    ("text", "slot"), [("float", "f4x"), ("const double", "d"), ("__half", "e6x"), ("bool", "?7x"), ("int", "i4x")]
)
def test_numbers_are_packed(text: str, slot: str) -> None:
    number = kind(text)
    assert isinstance(number, Number)
    assert number.slot == slot


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Params", "the type Params: a struct, or unknown here; pass its members one by one"),
        ("const struct Params", "the type Params: a struct"),
        ("cuda::std::array<int, 3>", "the type cuda::std::array<int,3>: a struct"),
        ("const Params*", "a pointer to Params, which is no dtype"),
        ("float&", "a reference to memory of the host"),
        ("float**", "a pointer to pointers or functions"),
        ("float2", "float2 by value; pass its elements one by one"),
        ("__nv_bfloat16", "__nv_bfloat16 by value; pass a float"),
    ],
)
def test_what_python_cannot_give(text: str, reason: str) -> None:
    refused = kind(text)
    assert isinstance(refused, Unsupported)
    assert refused.reason.startswith(reason)


def test_typedefs() -> None:
    kernels, aliases = signature.find(
        [
            "using scalar = float; typedef unsigned long long size; typedef const scalar* input;",
            "__global__ void f(scalar* x, size n, input y) {}",
        ]
    )
    x, n, y = kernels["f"].kinds("f", aliases)
    assert isinstance(x, Pointer)
    assert isinstance(n, Number)
    assert isinstance(y, Pointer)
    assert (x.dtypes, n.high, y.dtypes, y.writable) == (("float32",), (1 << 64) - 1, ("float32",), False)


@pytest.mark.parametrize(
    ("options", "dtype"),
    [((), "float32"), (("-Dscalar=double",), "float64"), (("--define-macro=scalar=__half", "-DN=4"), "float16")],
)
def test_macros_that_stand_for_a_type(options: tuple[str, ...], dtype: str) -> None:
    source = "#ifndef scalar\n#define scalar float\n#endif\n#define N 3\n__global__ void f(const scalar* x) {}"
    kernels, aliases = signature.find([source], options)
    (x,) = kernels["f"].kinds("f", aliases)
    assert isinstance(x, Pointer)
    assert x.dtypes == (dtype,)
    either = "#if __CUDA_ARCH__ >= 800\n#define scalar float\n#else\n#define scalar double\n#endif\n"
    either += "__global__ void f(scalar x) {}"
    kernels, aliases = signature.find([either])
    assert isinstance(kernels["f"].kinds("f", aliases)[0], Unsupported)


def test_a_typedef_of_itself_ends() -> None:
    kernels, aliases = signature.find(["using a = b; using b = a; __global__ void f(a x) {}"])
    assert isinstance(kernels["f"].kinds("f", aliases)[0], Unsupported)


def test_comments_macros_strings_and_bodies_are_not_looked_at() -> None:
    kernels, _ = signature.find(
        [
            r"""
            // __global__ void in_a_comment(int n);
            /* __global__ void in_another(int n) */
            #define MAKE(name) __global__ void name(int n) {}
            #define LONG \
                __global__ void hidden(int n)
            __device__ const char* text = "a // string { with __global__ void quoted(int n)";
            extern "C" __global__ void found(int a /* , int b */, // int c,
                                             int n = (1, 2)) { for (int i = 0; i < n; ++i) { a = '}'; } }
            __global__ void last() {}
            """
        ]
    )
    assert [(name, [str(p) for p in kernel.parameters]) for name, kernel in kernels.items()] == [
        ("found", ["int a", "int n"]),
        ("last", []),
    ]


def test_names_linkage_and_bounds() -> None:
    kernels, _ = signature.find(
        [
            """
            extern "C" __global__ void one(void);
            extern "C" {
            __global__ __launch_bounds__(256, 2) void two(float x[], int) {}
            }
            namespace images { namespace inner {
            static __global__ void three(int n) {}
            } }
            namespace a::b { __global__ void __launch_bounds__(WARPS * 32) four(int n) {} }
            """
        ]
    )
    found = {name: (kernel.mangled, kernel.max_threads) for name, kernel in kernels.items()}
    assert found == {
        "one": (False, None),
        "two": (False, 256),
        "images::inner::three": (True, None),
        "a::b::four": (True, None),
    }
    assert [str(parameter) for parameter in kernels["two"].parameters] == ["float* x", "int #1"]


def test_templates() -> None:
    kernels, aliases = signature.find(
        ["template <typename T, int N = 4, class Index = long long> __global__ void f(const T* x, T s, Index n) {}"]
    )
    kernel = kernels["f"]
    assert kernel.template == (("T", ()), ("N", ("4",)), ("Index", ("long", "long")))
    for expression, dtype, high in [
        ("f<double>", "float64", 2**63 - 1),
        ("f< float, 8, unsigned >", "float32", 2**32 - 1),
    ]:
        x, s, n = kernel.kinds(expression, aliases)
        assert isinstance(x, Pointer)
        assert isinstance(s, Number)
        assert isinstance(n, Number)
        assert (x.dtypes, s.low, n.high) == ((dtype,), None, high)
    assert isinstance(kernel.kinds("f", aliases)[1], Unsupported)  # without arguments, T is unknown


def parameters_of(source: str, **options: Any) -> dict[str, str]:
    kernels, _ = signature.find([source], **options)
    return {name: ", ".join(map(str, kernel.parameters)) for name, kernel in kernels.items()}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("#if 0\n@ f(double* x) {}\n#endif\n@ f(float* x) {}", {"f": "float* x"}),
        ("#ifdef BIG\n@ f(long n) {}\n#else\n@ f(int n) {}\n#endif", {"f": "int n"}),
        ("#define BIG\n#ifdef BIG\n@ f(long n) {}\n#else\n@ f(int n) {}\n#endif",
         {"f": "long n"}),
        ("#define N 0x10\n#if N % 8 == 0 && !defined(M)\n@ f() {}\n#elif 1\n@ g() {}\n#endif",
         {"f": ""}),
        ("#if defined M || (2 + 2) * 2 < 8\n@ f() {}\n#elif 1'000 > 010\n@ g() {}\n#else\n@ h() {}\n#endif", {"g": ""}),
        ("#define KERNEL extern \"C\" @\n#define IN(T) const T* __restrict__\nKERNEL f(IN(float) x) {}",
         {"f": "const float* x"}),
        ("#define ARGS float* x, \\\n  int n\n@ f(ARGS) {}", {"f": "float* x, int n"}),
        ("#define OF(name, T, op) @ name##_##T(T* x) { x[0] op 1; } // all\nOF(add, float, +=)\nOF(mul,\n double, *=)",
         {"add_float": "float* x", "mul_double": "double* x"}),
        ("#define ALL(...) __VA_ARGS__\n@ f(ALL(int a, ALL(int b))) { puts(#a); }", {"f": "int a, int b"}),
        ("#define T float\n#undef T\n#define T double\n@ f(T x) {}", {"f": "double x"}),
        ("#define f(x) x\n@ f (int n) {}", {}),  # as the compiler sees it: void int n
        ("@ f(float*, int);\n@ f(float* x, int n) {}", {"f": "float* x, int n"}),
        ("@ __cluster_dims__(2, 1, 1) __launch_bounds__(64 * 2) f(float* x) {}", {"f": "float* x"}),
        ("@ f(int n) { n = 1'000; }\n@ g(int n) { n = 2'000; }", {"f": "int n", "g": "int n"}),
        ('__device__ auto s = R"x(\n#define int float\n " // @ no() )x"; @ f(int n) {}',
         {"f": "int n"}),
        ("__glo\\\nbal__ void f(int n) {}", {"f": "int n"}),
    ],
)  # fmt: skip
def test_kernels_are_read_as_they_are_compiled(source: str, expected: dict[str, str]) -> None:
    assert parameters_of(source.replace("@", "__global__ void")) == expected


def test_which_of_two_declarations_is_compiled_may_be_unknown() -> None:
    either = "#if __CUDA_ARCH__ >= 900\n__global__ void f(float x) {}\n#else\n__global__ void f(double x) {}\n#endif"
    kernels, _ = signature.find([either])
    assert kernels["f"].others == ("double x",)
    theirs = "#ifdef CUB_VERSION\n__global__ void f(float x) {}\n#else\n__global__ void f(double x) {}\n#endif"
    assert signature.find([theirs])[0]["f"].others == ("double x",)
    assert parameters_of(theirs.replace("CUB_VERSION", "MINE")) == {"f": "double x"}
    same = "#if __CUDA_ARCH__ >= 900\n__global__ void f(float x) {}\n#else\n__global__ void f(const float y) {}\n#endif"
    assert signature.find([same])[0]["f"].others == ()
    templates = "template <class T> __global__ void f(T* x); template <class U> __global__ void f(U* y) {}"
    assert signature.find([templates])[0]["f"].others == ()
    assert signature.find([templates + "template <class T, int N> __global__ void f(T* x) {}"])[0]["f"].others == (
        "T* x",
    )


def test_macros_of_headers_and_their_guards() -> None:
    header = '#ifndef TYPES_H\n#define TYPES_H\n#include "more.h"\n#define IN(T) const T*\n#endif'
    more = "#pragma once\n#define scalar float"
    kernels, aliases = signature.find(["__global__ void f(IN(scalar) x) {}", header, more])
    (x,) = kernels["f"].kinds("f", aliases)
    assert isinstance(x, Pointer)
    assert (x.dtypes, x.writable) == (("float32",), False)


def test_typedefs_inside_of_functions_and_of_several_meanings_are_none() -> None:
    source = "__device__ void g() { using T = double; } using T = float; __global__ void f(T* x) {}"
    kernels, aliases = signature.find([source])
    (x,) = kernels["f"].kinds("f", aliases)
    assert isinstance(x, Pointer)
    assert x.dtypes == ("float32",)
    kernels, aliases = signature.find(["namespace a { using T = double; } " + source])
    assert isinstance(kernels["f"].kinds("f", aliases)[0], Unsupported)
