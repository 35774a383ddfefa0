"""Sharpen a photograph: each pixel against its four neighbours, three channels of bytes.

    python examples/kernels/sharpen.py

Writes sharpened.png: the photograph on the left, the result on the right.
"""

import numpy as np
from PIL import Image
from skimage import data

import genesis

SOURCE = """
// A thread per pixel; beyond the border the nearest pixel stands in.
extern "C" __global__ void sharpen(const uint8_t* image, uint8_t* out, int height, int width, float strength) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    int left = max(x - 1, 0), right = min(x + 1, width - 1);
    int above = max(y - 1, 0), below = min(y + 1, height - 1);
    for (int channel = 0; channel < 3; ++channel) {
        auto pixel = [&](int row, int column) { return float(image[(row * width + column) * 3 + channel]); };
        float edge = 4 * pixel(y, x) - pixel(y, left) - pixel(y, right) - pixel(above, x) - pixel(below, x);
        float value = pixel(y, x) + strength * edge;
        out[(y * width + x) * 3 + channel] = uint8_t(fminf(fmaxf(rintf(value), 0.0f), 255.0f));
    }
}
"""
module = genesis.cuda.load_inline("sharpen", SOURCE)


def forward(ctx, image, strength):
    height, width, _ = image.shape
    out = image.new_empty(image.shape)
    module.sharpen(image, out, height, width, strength, grid=(-(-width // 32), -(-height // 8)), block=(32, 8))
    return out


def reference(image: np.ndarray, strength: float) -> np.ndarray:
    padded = np.pad(image.astype(np.float32), ((1, 1), (1, 1), (0, 0)), mode="edge")
    middle = padded[1:-1, 1:-1]
    edge = 4 * middle - padded[1:-1, :-2] - padded[1:-1, 2:] - padded[:-2, 1:-1] - padded[2:, 1:-1]
    return np.rint(middle + np.float32(strength) * edge).clip(0, 255).astype(np.uint8)


sharpen = genesis.cuda.op(
    forward, cpu=lambda image, strength: genesis.from_numpy(reference(image.numpy(), strength)), name="sharpen"
)


def check():
    image = data.astronaut()
    out = sharpen(genesis.from_numpy(image).to("cuda"), 0.5)
    assert (out.cpu().numpy() == reference(image, 0.5)).all()


def benchmark():
    image = genesis.randint(0, 256, (4096, 4096, 3), device="cuda", dtype=genesis.uint8)
    elapsed = genesis.cuda.milliseconds(lambda: sharpen(image, 0.5))
    print(f"sharpen      {elapsed:.3f} ms for 16 megapixels, {2 * image.numel() / elapsed / 1e6:.0f} GB/s")


def write_picture(device: str, path: str = "sharpened.png"):
    image = data.astronaut()
    out = sharpen(genesis.from_numpy(image).to(device), 0.5).cpu().numpy()
    Image.fromarray(np.concatenate([image, out], axis=1)).save(path)
    print(f"wrote {path}")


if __name__ == "__main__":
    if genesis.cuda.is_available():
        check()
        benchmark()
        write_picture("cuda")
    else:
        print("sharpen: compiled, but there is no NVIDIA GPU to run it on; the picture is NumPy's")
        write_picture("cpu")
