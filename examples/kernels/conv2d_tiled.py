"""2-D convolution with shared-memory tiles and vector loads: 3×3, stride 1, padding 1.

    python examples/kernels/conv2d_tiled.py

What is different from conv2d_naive.py:
- A block computes a tile of 16 × 32 pixels for 16 output channels. The pixels that it needs and their border are
  brought into shared memory once, for 4 input channels at a time, and read from there by all its threads.
- A thread keeps 4 neighbouring pixels of 16 channels in registers, so each value read is used many times: 192
  multiply-adds for 15 reads of shared memory.
- Memory is read and written four floats at a time (float4), which asks for an address divisible by 16. Where the
  width is not a multiple of 4, the same kernel reads and writes single floats.
"""

import torch

import genesis
import genesis.nn.functional as F

SOURCE = """
constexpr int TILE_H = 16, TILE_W = 32;  // pixels of a block
constexpr int TILE_K = 16, STEP_C = 4;   // output channels of a block, input channels in shared memory
constexpr int PIXELS = 4;                // of a thread, in a row
constexpr int THREADS = TILE_H * TILE_W / PIXELS;
constexpr int ROWS = TILE_H + 2, COLUMNS = TILE_W + 8;  // the tile from 4 columns before to 4 after: whole float4s

template <bool VECTOR>
__global__ void __launch_bounds__(THREADS)
conv2d(const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ y,
       int C, int H, int W, int K) {
    __shared__ __align__(16) float tile[STEP_C][ROWS][COLUMNS];
    __shared__ __align__(16) float filter[STEP_C][9][TILE_K];

    int groups = (K + TILE_K - 1) / TILE_K;
    int n = blockIdx.z / groups, k0 = blockIdx.z % groups * TILE_K;
    int h0 = blockIdx.y * TILE_H, w0 = blockIdx.x * TILE_W;
    int row = threadIdx.x / (TILE_W / PIXELS), column = threadIdx.x % (TILE_W / PIXELS) * PIXELS;
    float sum[TILE_K][PIXELS] = {};

    for (int c0 = 0; c0 < C; c0 += STEP_C) {
        for (int i = threadIdx.x; i < STEP_C * ROWS * COLUMNS / 4; i += THREADS) {
            int c = i / (ROWS * COLUMNS / 4), r = i / (COLUMNS / 4) % ROWS, s = i % (COLUMNS / 4) * 4;
            int h = h0 + r - 1, w = w0 + s - 4;
            float4 four = make_float4(0, 0, 0, 0);  // beyond the border and beyond the last channel
            if (c0 + c < C && h >= 0 && h < H) {
                const float* from = x + ((size_t(n) * C + c0 + c) * H + h) * W;
                if (VECTOR) {
                    if (w >= 0 && w < W) four = *reinterpret_cast<const float4*>(from + w);
                } else {
                    if (w >= 0 && w < W) four.x = from[w];
                    if (w + 1 >= 0 && w + 1 < W) four.y = from[w + 1];
                    if (w + 2 >= 0 && w + 2 < W) four.z = from[w + 2];
                    if (w + 3 >= 0 && w + 3 < W) four.w = from[w + 3];
                }
            }
            *reinterpret_cast<float4*>(&tile[c][r][s]) = four;
        }
        for (int i = threadIdx.x; i < STEP_C * 9 * TILE_K; i += THREADS) {
            int k = i / (STEP_C * 9), c = i / 9 % STEP_C, tap = i % 9;
            bool inside = k0 + k < K && c0 + c < C;
            filter[c][tap][k] = inside ? weight[((k0 + k) * C + c0 + c) * 9 + tap] : 0.0f;
        }
        __syncthreads();
        for (int c = 0; c < STEP_C; ++c)
            for (int r = 0; r < 3; ++r) {
                float4 near[3];  // the columns from 4 before to 7 after the thread's first
                for (int i = 0; i < 3; ++i)
                    near[i] = *reinterpret_cast<const float4*>(&tile[c][row + r][column + 4 * i]);
                float values[6] = {near[0].w, near[1].x, near[1].y, near[1].z, near[1].w, near[2].x};
#pragma unroll
                for (int s = 0; s < 3; ++s)
#pragma unroll
                    for (int k = 0; k < TILE_K; k += 4) {
                        float4 taps = *reinterpret_cast<const float4*>(&filter[c][r * 3 + s][k]);
#pragma unroll
                        for (int i = 0; i < PIXELS; ++i) {
                            sum[k][i] += values[i + s] * taps.x;
                            sum[k + 1][i] += values[i + s] * taps.y;
                            sum[k + 2][i] += values[i + s] * taps.z;
                            sum[k + 3][i] += values[i + s] * taps.w;
                        }
                    }
            }
        __syncthreads();  // before the next channels overwrite what others still read
    }

    int h = h0 + row, w = w0 + column;
    if (h >= H) return;
#pragma unroll
    for (int k = 0; k < TILE_K; ++k) {
        if (k0 + k >= K) return;
        float* to = y + ((size_t(n) * K + k0 + k) * H + h) * W + w;
        if (VECTOR) {
            if (w < W) *reinterpret_cast<float4*>(to) = make_float4(sum[k][0], sum[k][1], sum[k][2], sum[k][3]);
        } else {
#pragma unroll
            for (int i = 0; i < PIXELS; ++i)
                if (w + i < W) to[i] = sum[k][i];
        }
    }
}
"""
module = genesis.cuda.load_inline("conv2d_tiled", SOURCE, functions=["conv2d<true>", "conv2d<false>"])


def forward(ctx, x, weight):
    (N, C, H, W), K = x.shape, weight.shape[0]
    y = x.new_empty(N, K, H, W)
    kernel = module["conv2d<true>" if W % 4 == 0 else "conv2d<false>"]
    grid = (-(-W // 32), -(-H // 16), N * -(-K // 16))
    kernel(x, weight, y, C, H, W, K, grid=grid, block=128)
    return y


conv2d = genesis.cuda.op(forward, cpu=lambda x, weight: F.conv2d(x, weight, None, 1, 1), name="conv2d_tiled")


def check():
    for channels, filters, height, width in [(5, 20, 17, 36), (4, 16, 16, 32), (1, 1, 1, 1), (6, 3, 33, 35)]:
        x, weight = torch.randn(2, channels, height, width), torch.randn(filters, channels, 3, 3)
        expected = torch.nn.functional.conv2d(x.double(), weight.double(), padding=1)
        y = conv2d(genesis.from_torch(x).to("cuda"), genesis.from_torch(weight).to("cuda"))
        torch.testing.assert_close(y.cpu().to_torch().double(), expected, rtol=1e-5, atol=1e-5)


def benchmark():
    from conv2d_naive import conv2d as conv2d_naive

    x, weight = genesis.randn(16, 64, 128, 128, device="cuda"), genesis.randn(64, 64, 3, 3, device="cuda")
    flops = 2 * x.numel() * 64 * 9
    times = {
        "naive": genesis.cuda.milliseconds(lambda: conv2d_naive(x, weight, 1, 1), repeats=10),
        "tiled": genesis.cuda.milliseconds(lambda: conv2d(x, weight), repeats=10),
    }
    for name, elapsed in times.items():
        print(f"{name:12} {elapsed:.3f} ms  {flops / elapsed / 1e9:.1f} TFLOP/s")
    print(f"tiles make it {times['naive'] / times['tiled']:.1f} times as fast")


if __name__ == "__main__":
    if genesis.cuda.is_available():
        check()
        benchmark()
    else:
        print("conv2d_tiled: compiled, but there is no NVIDIA GPU to run it on")
