"""2-D convolution as the formula says it: a thread per output pixel, every operand from global memory.

    python examples/kernels/conv2d_naive.py

    y[n, k, p, q] = Σ_{c,r,s} x[n, c, p·stride + r − padding, q·stride + s − padding] · w[k, c, r, s]

Each input pixel is read by up to R·S threads of each of K channels. conv2d_tiled.py shows what to do about that.
"""

import torch

import genesis
import genesis.nn.functional as F

SOURCE = """
extern "C" __global__ void conv2d(const float* x, const float* weight, float* y, int N, int C, int H, int W, int K,
                                  int R, int S, int P, int Q, int stride, int padding) {
    int q = blockIdx.x * blockDim.x + threadIdx.x;
    int p = blockIdx.y * blockDim.y + threadIdx.y;
    int k = blockIdx.z % K, n = blockIdx.z / K;
    if (p >= P || q >= Q) return;
    float sum = 0;
    for (int c = 0; c < C; ++c)
        for (int r = 0; r < R; ++r)
            for (int s = 0; s < S; ++s) {
                int h = p * stride + r - padding, w = q * stride + s - padding;
                if (h >= 0 && h < H && w >= 0 && w < W)
                    sum += x[((size_t(n) * C + c) * H + h) * W + w] * weight[((k * C + c) * R + r) * S + s];
            }
    y[((size_t(n) * K + k) * P + p) * Q + q] = sum;
}
"""
module = genesis.cuda.load_inline("conv2d_naive", SOURCE)


def forward(ctx, x, weight, stride=1, padding=0):
    (N, C, H, W), (K, _, R, S) = x.shape, weight.shape
    P, Q = (H + 2 * padding - R) // stride + 1, (W + 2 * padding - S) // stride + 1
    y = x.new_empty(N, K, P, Q)
    grid = (-(-Q // 32), -(-P // 8), N * K)
    module.conv2d(x, weight, y, N, C, H, W, K, R, S, P, Q, stride, padding, grid=grid, block=(32, 8))
    return y


conv2d = genesis.cuda.op(
    forward, cpu=lambda x, weight, *settings: F.conv2d(x, weight, None, *settings), name="conv2d_naive"
)


def check():
    for (channels, height, width), (filters, size), stride, padding in [
        ((3, 17, 33), (5, 3), 1, 1),
        ((4, 20, 21), (2, 5), 2, 0),
        ((2, 7, 9), (3, 1), 3, 0),
    ]:
        x, weight = torch.randn(2, channels, height, width), torch.randn(filters, channels, size, size)
        expected = torch.nn.functional.conv2d(x.double(), weight.double(), stride=stride, padding=padding)
        y = conv2d(genesis.from_torch(x).to("cuda"), genesis.from_torch(weight).to("cuda"), stride, padding)
        torch.testing.assert_close(y.cpu().to_torch().double(), expected, rtol=1e-5, atol=1e-5)


def benchmark():
    x, weight = genesis.randn(16, 64, 128, 128, device="cuda"), genesis.randn(64, 64, 3, 3, device="cuda")
    flops = 2 * x.numel() * 64 * 9
    for name, function in {
        "naive": lambda: conv2d(x, weight, 1, 1),
        "F.conv2d": lambda: F.conv2d(x, weight, None, 1, 1),
    }.items():
        elapsed = genesis.cuda.milliseconds(function, repeats=10)
        print(f"{name:12} {elapsed:.3f} ms  {flops / elapsed / 1e9:.1f} TFLOP/s")


if __name__ == "__main__":
    if genesis.cuda.is_available():
        check()
        benchmark()
    else:
        print("conv2d_naive: compiled, but there is no NVIDIA GPU to run it on")
