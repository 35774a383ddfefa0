"""Convolution + batch norm + ReLU in one kernel, and a gradient that is right.

    python examples/kernels/conv_bn_relu.py

    z = conv(x, w)    ẑ = (z − mean) / √(var + ε)    y = max(γ·ẑ + β, 0)    mean and var over n, p, q of each channel

The gradient passes through mean and var too, which depend on every z of the channel. With g = dy where y > 0 else 0:

    dβ = Σ g      dγ = Σ g·ẑ      dz = γ / √(var + ε) · (g − dβ/M − ẑ·dγ/M)      M = N·P·Q

To forget the last two terms is the classic mistake: the loss still falls, and no test but a numeric one tells. A bias
of the convolution would be pointless: the mean takes it away. A block computes one output channel from start to end,
so nothing but z and y goes through global memory; for speed, take nn.ConvBNReLU.
"""

import torch

import genesis
import genesis.nn.functional as F

SOURCE = """
// The sum over all threads of the block, given to each of them.
template <typename T>
__device__ T block_sum(T value) {
    __shared__ T of_warp[32];
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffff, value, distance);
    __syncthreads();
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0;
    for (int warp = 0; warp < blockDim.x / 32; ++warp) value += of_warp[warp];
    return value;
}

// A block per output channel k; mean and inverse deviation are kept for the gradient.
template <typename T>
__global__ void conv_bn_relu(const T* x, const T* weight, const T* gamma, const T* beta, T* y, T* z, T* mean, T* rstd,
                             int N, int C, int H, int W, int R, int S, int P, int Q, int stride, int padding, T eps) {
    int k = blockIdx.x, K = gridDim.x, M = N * P * Q;
    T sum = 0;
    for (int i = threadIdx.x; i < M; i += blockDim.x) {
        int n = i / (P * Q), p = i / Q % P, q = i % Q;
        T value = 0;
        for (int c = 0; c < C; ++c)
            for (int r = 0; r < R; ++r)
                for (int s = 0; s < S; ++s) {
                    int h = p * stride + r - padding, w = q * stride + s - padding;
                    if (h >= 0 && h < H && w >= 0 && w < W)
                        value += x[((size_t(n) * C + c) * H + h) * W + w] * weight[((k * C + c) * R + r) * S + s];
                }
        z[((size_t(n) * K + k) * P + p) * Q + q] = value;
        sum += value;
    }
    T average = block_sum(sum) / M, squares = 0;
    for (int i = threadIdx.x; i < M; i += blockDim.x) {  // each thread its own values again: no waiting
        T value = z[(size_t(i / (P * Q)) * K + k) * P * Q + i % (P * Q)] - average;
        squares += value * value;
    }
    T inverse = 1 / sqrt(block_sum(squares) / M + eps);
    for (int i = threadIdx.x; i < M; i += blockDim.x) {
        size_t at = (size_t(i / (P * Q)) * K + k) * P * Q + i % (P * Q);
        T value = gamma[k] * (z[at] - average) * inverse + beta[k];
        y[at] = value > 0 ? value : 0;
    }
    if (threadIdx.x == 0) {
        mean[k] = average;
        rstd[k] = inverse;
    }
}

// A block per output channel: from dy to dz, and the sums dgamma and dbeta.
template <typename T>
__global__ void bn_relu_backward(const T* grad, const T* y, const T* z, const T* mean, const T* rstd, const T* gamma,
                                 T* grad_z, T* grad_gamma, T* grad_beta, int N, int area) {
    int k = blockIdx.x, K = gridDim.x, M = N * area;
    T sum = 0, dot = 0;
    for (int i = threadIdx.x; i < M; i += blockDim.x) {
        size_t at = (size_t(i / area) * K + k) * area + i % area;
        T g = y[at] > 0 ? grad[at] : 0;
        sum += g;
        dot += g * (z[at] - mean[k]) * rstd[k];
    }
    sum = block_sum(sum);
    dot = block_sum(dot);
    for (int i = threadIdx.x; i < M; i += blockDim.x) {
        size_t at = (size_t(i / area) * K + k) * area + i % area;
        T g = y[at] > 0 ? grad[at] : 0, normal = (z[at] - mean[k]) * rstd[k];
        grad_z[at] = gamma[k] * rstd[k] * (g - sum / M - normal * dot / M);
    }
    if (threadIdx.x == 0) {
        grad_gamma[k] = dot;
        grad_beta[k] = sum;
    }
}

// A thread per input pixel: the outputs that have read it.
template <typename T>
__global__ void conv_input_grad(const T* grad_z, const T* weight, T* grad_x, int N, int C, int H, int W, int K, int R,
                                int S, int P, int Q, int stride, int padding) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N * C * H * W) return;
    int n = i / (C * H * W), c = i / (H * W) % C, h = i / W % H, w = i % W;
    T sum = 0;
    for (int r = 0; r < R; ++r)
        for (int s = 0; s < S; ++s) {
            int p = h + padding - r, q = w + padding - s;
            if (p < 0 || q < 0 || p % stride || q % stride || p / stride >= P || q / stride >= Q) continue;
            for (int k = 0; k < K; ++k)
                sum += grad_z[((size_t(n) * K + k) * P + p / stride) * Q + q / stride]
                       * weight[((k * C + c) * R + r) * S + s];
        }
    grad_x[i] = sum;
}

// A block per element of the weight: the pairs of pixels that it has connected.
template <typename T>
__global__ void conv_weight_grad(const T* x, const T* grad_z, T* grad_weight, int N, int C, int H, int W, int K, int R,
                                 int S, int P, int Q, int stride, int padding) {
    int s = blockIdx.x % S, r = blockIdx.x / S % R, c = blockIdx.x / (S * R) % C, k = blockIdx.x / (S * R * C);
    T sum = 0;
    for (int i = threadIdx.x; i < N * P * Q; i += blockDim.x) {
        int n = i / (P * Q), p = i / Q % P, q = i % Q, h = p * stride + r - padding, w = q * stride + s - padding;
        if (h >= 0 && h < H && w >= 0 && w < W)
            sum += x[((size_t(n) * C + c) * H + h) * W + w] * grad_z[((size_t(n) * K + k) * P + p) * Q + q];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) grad_weight[blockIdx.x] = sum;
}
"""
NAMES = ("conv_bn_relu", "bn_relu_backward", "conv_input_grad", "conv_weight_grad")
FUNCTIONS = [f"{name}<{ctype}>" for name in NAMES for ctype in ("float", "double")]
module = genesis.cuda.load_inline("conv_bn_relu", SOURCE, FUNCTIONS)


def kernel(name, x):
    return module[f"{name}<{'double' if x.dtype.itemsize == 8 else 'float'}>"]


def forward(ctx, x, weight, gamma, beta, stride=1, padding=0, eps=1e-5):
    (N, C, H, W), (K, _, R, S) = x.shape, weight.shape
    P, Q = (H + 2 * padding - R) // stride + 1, (W + 2 * padding - S) // stride + 1
    y, z, mean, rstd = (x.new_empty(shape) for shape in ((N, K, P, Q), (N, K, P, Q), (K,), (K,)))
    sizes = (N, C, H, W, R, S, P, Q, stride, padding)
    kernel("conv_bn_relu", x)(x, weight, gamma, beta, y, z, mean, rstd, *sizes, eps, grid=K, block=512)
    ctx.save_for_backward(x, weight, gamma, y, z, mean, rstd)
    ctx.sizes = (N, C, H, W, K, R, S, P, Q, stride, padding)
    return y


def backward(ctx, grad):
    x, weight, gamma, y, z, mean, rstd = ctx.saved_tensors
    N, _, _, _, K, _, _, P, Q, _, _ = ctx.sizes
    grad_z, grad_gamma, grad_beta = z.new_empty(z.shape), gamma.new_empty(K), gamma.new_empty(K)
    saved = (y, z, mean, rstd, gamma)
    kernel("bn_relu_backward", x)(grad.contiguous(), *saved, grad_z, grad_gamma, grad_beta, N, P * Q, grid=K, block=512)
    grad_x, grad_weight = x.new_empty(x.shape), weight.new_empty(weight.shape)
    kernel("conv_input_grad", x)(grad_z, weight, grad_x, *ctx.sizes, grid=-(-x.numel() // 256), block=256)
    kernel("conv_weight_grad", x)(x, grad_z, grad_weight, *ctx.sizes, grid=weight.numel(), block=256)
    return grad_x, grad_weight, grad_gamma, grad_beta, None, None, None  # by position; numbers have none


def reference(x, weight, gamma, beta, stride=1, padding=0, eps=1e-5):
    """The same in ops of Genesis; it serves tensors on the CPU."""
    z = F.conv2d(x, weight, None, stride, padding)
    return F.batch_norm(z, None, None, gamma, beta, training=True, eps=eps).relu()


conv_bn_relu = genesis.cuda.op(forward, backward, cpu=reference, name="conv_bn_relu")


def check():
    torch.manual_seed(0)
    for stride, padding in [(1, 1), (2, 0)]:
        given = [torch.randn(2, 3, 9, 8), torch.randn(4, 3, 3, 3), torch.rand(4) + 0.5, torch.randn(4)]
        exact = [tensor.double().requires_grad_() for tensor in given]
        z = torch.nn.functional.conv2d(*exact[:2], stride=stride, padding=padding)
        expected = torch.nn.functional.batch_norm(z, None, None, *exact[2:], training=True).relu()
        loss_weights = torch.randn(expected.shape)
        (expected * loss_weights).sum().backward()
        for give in (genesis.from_torch, torch.clone) if torch.cuda.is_available() else (genesis.from_torch,):
            inputs = [give(tensor).to("cuda").requires_grad_() for tensor in given]
            y = conv_bn_relu(*inputs, stride, padding)
            (y * give(loss_weights).to("cuda")).sum().backward()
            for found, wanted in [(y, expected), *((i.grad, e.grad) for i, e in zip(inputs, exact, strict=True))]:
                found = torch.tensor(found.tolist(), dtype=torch.float64)
                torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    exact = [genesis.from_torch(tensor.double()).to("cuda").requires_grad_() for tensor in given]
    assert genesis.autograd.gradcheck(lambda *inputs: conv_bn_relu(*inputs, 1, 1).square().sum(), exact)


def benchmark():
    x, weight = genesis.randn(16, 64, 56, 56, device="cuda"), genesis.randn(64, 64, 3, 3, device="cuda")
    gamma, beta = genesis.ones(64, device="cuda"), genesis.zeros(64, device="cuda")
    for name, function in {
        "conv_bn_relu": lambda: conv_bn_relu(x, weight, gamma, beta, 1, 1),
        "three ops": lambda: reference(x, weight, gamma, beta, 1, 1),
    }.items():
        print(f"{name:12} {genesis.cuda.milliseconds(function, repeats=10):.3f} ms forward")


if __name__ == "__main__":
    if genesis.cuda.is_available():
        check()
        benchmark()
    else:
        print("conv_bn_relu: compiled, but there is no NVIDIA GPU to run it on")
