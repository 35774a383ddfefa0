"""The C++ standard headers that kernels include, for NVRTC, which has none.

Functions need no header there: those of <cmath>, printf and assert are built in. What is left is names of types and
constants. The 64-bit integers are `long long`, as CUDA's own libraries declare them under NVRTC, so both can meet.
"""

from __future__ import annotations

_STDINT = """#pragma once
using int8_t = signed char;
using int16_t = signed short;
using int32_t = signed int;
using int64_t = signed long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
namespace std {
using ::int8_t; using ::int16_t; using ::int32_t; using ::int64_t;
using ::uint8_t; using ::uint16_t; using ::uint32_t; using ::uint64_t;
}
"""
_MATH = """#pragma once
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
#ifndef M_PI
#define M_PI 3.14159265358979323846
#endif
"""
_FLOAT = """#pragma once
#ifndef FLT_MAX
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define DBL_MAX 1.7976931348623157e+308
#define DBL_MIN 2.2250738585072014e-308
#define DBL_EPSILON 2.2204460492503131e-16
#endif
"""
_LIMITS = """#pragma once
#ifndef INT_MAX
#define INT_MAX 2147483647
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX 4294967295u
#define LLONG_MAX 9223372036854775807LL
#define LLONG_MIN (-LLONG_MAX - 1)
#define ULLONG_MAX 18446744073709551615ULL
#endif
"""
_NOTHING = "#pragma once\n"

HEADERS = {
    "stdint.h": _STDINT,
    "cstdint": _STDINT,
    "math.h": _MATH,
    "cmath": _MATH,
    "float.h": _FLOAT,
    "cfloat": _FLOAT,
    "limits.h": _LIMITS,
    "climits": _LIMITS,
    "stddef.h": _NOTHING,
    "cstddef": _NOTHING,
    "stdio.h": _NOTHING,
    "cstdio": _NOTHING,
    "assert.h": _NOTHING,
    "cassert": _NOTHING,
}
