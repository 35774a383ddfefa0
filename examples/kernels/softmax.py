"""Softmax over the rows of a matrix, and its gradient: a block per row, sums by warp shuffles.

    python examples/kernels/softmax.py

    y_i = exp(x_i − max x) / Σ_j exp(x_j − max x)        dx_i = y_i · (g_i − Σ_j g_j · y_j)

The template is compiled for float and double; in double, numeric differences confirm the gradient.
"""

import torch

import genesis

SOURCE = """
struct Max { template <typename T> static __device__ T of(T a, T b) { return a > b ? a : b; } };
struct Sum { template <typename T> static __device__ T of(T a, T b) { return a + b; } };

// The result over all threads of the block, given to each of them: within warps by shuffles, then among the warps.
template <typename Op, typename T>
__device__ T across_block(T value) {
    __shared__ T of_warp[32];
    for (int distance = 16; distance > 0; distance /= 2)
        value = Op::of(value, __shfl_xor_sync(0xffffffff, value, distance));
    __syncthreads();  // nobody reads the result before any more
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    value = of_warp[0];
    for (int warp = 1; warp < blockDim.x / 32; ++warp) value = Op::of(value, of_warp[warp]);
    return value;
}

template <typename T>
__global__ void softmax(const T* x, T* y, int columns) {
    x += size_t(blockIdx.x) * columns;
    y += size_t(blockIdx.x) * columns;
    T largest = -INFINITY, sum = 0;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) largest = Max::of(largest, x[i]);
    largest = across_block<Max>(largest);  // so that no exponential overflows
    for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += exp(x[i] - largest);
    sum = across_block<Sum>(sum);
    for (int i = threadIdx.x; i < columns; i += blockDim.x) y[i] = exp(x[i] - largest) / sum;
}

template <typename T>
__global__ void softmax_backward(const T* grad, const T* y, T* grad_x, int columns) {
    grad += size_t(blockIdx.x) * columns;
    y += size_t(blockIdx.x) * columns;
    grad_x += size_t(blockIdx.x) * columns;
    T dot = 0;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) dot += grad[i] * y[i];
    dot = across_block<Sum>(dot);
    for (int i = threadIdx.x; i < columns; i += blockDim.x) grad_x[i] = y[i] * (grad[i] - dot);
}
"""
FUNCTIONS = [f"{name}<{ctype}>" for name in ("softmax", "softmax_backward") for ctype in ("float", "double")]
module = genesis.cuda.load_inline("softmax", "#include <cmath>\n" + SOURCE, FUNCTIONS)


def kernel(name, x):
    return module[f"{name}<{'double' if x.dtype.itemsize == 8 else 'float'}>"]


def forward(ctx, x):
    rows, columns = x.shape
    y = x.new_empty(x.shape)
    kernel("softmax", x)(x, y, columns, grid=rows, block=256)
    ctx.save_for_backward(y)
    return y


def backward(ctx, grad):
    (y,) = ctx.saved_tensors
    grad_x = y.new_empty(y.shape)
    kernel("softmax_backward", y)(grad.contiguous(), y, grad_x, y.shape[1], grid=y.shape[0], block=256)
    return grad_x


softmax = genesis.cuda.op(forward, backward, cpu=lambda x: x.softmax(1), name="softmax")


def check():
    x = torch.randn(33, 1000) * 10
    expected = torch.softmax(x.double(), 1)
    for give in (genesis.from_torch, torch.clone) if torch.cuda.is_available() else (genesis.from_torch,):
        y = softmax(give(x).to("cuda"))
        torch.testing.assert_close(torch.tensor(y.tolist(), dtype=torch.float64), expected, rtol=1e-5, atol=1e-8)
    exact = genesis.randn(3, 70, dtype=genesis.float64, device="cuda", requires_grad=True)
    weights = genesis.randn(3, 70, dtype=genesis.float64, device="cuda")
    assert genesis.autograd.gradcheck(lambda x: (softmax(x) * weights).sum(), exact)


def benchmark():
    x = genesis.randn(16384, 4096, device="cuda")
    for name, function in {"softmax": lambda: softmax(x), "x.softmax(1)": lambda: x.softmax(1)}.items():
        elapsed = genesis.cuda.milliseconds(function)
        print(f"{name:12} {elapsed:.3f} ms  {8 * x.numel() / elapsed / 1e6:.0f} GB/s")


if __name__ == "__main__":
    if genesis.cuda.is_available():
        check()
        benchmark()
    else:
        print("softmax: compiled, but there is no NVIDIA GPU to run it on")
