"""out = a + b: the first kernel that one writes, as an op with a gradient.

    python examples/kernels/vector_add.py

The same call takes tensors of Genesis and of PyTorch; the kernel itself takes anything with DLPack, CuPy's arrays say.
"""

import torch

import genesis

SOURCE = """
extern "C" __global__ void vector_add(const float* a, const float* b, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a[i] + b[i];
}
"""
module = genesis.cuda.load_inline("vector_add", SOURCE)


def forward(ctx, a, b):
    out = a.new_empty(a.shape)
    module.vector_add(a, b, out, out.numel())  # by default a thread per element
    return out


def backward(ctx, grad):
    return grad, grad  # d(a + b)/da = d(a + b)/db = 1


vector_add = genesis.cuda.op(forward, backward, cpu=lambda a, b: a + b, name="vector_add")


def add_in_float32(a, b):
    return vector_add(a.float(), b.float()).double()


def check():
    a, b = torch.randn(1000), torch.randn(1000)
    for give in (genesis.from_torch, torch.clone) if torch.cuda.is_available() else (genesis.from_torch,):
        x, y = give(a).to("cuda").requires_grad_(), give(b).to("cuda").requires_grad_()
        out = vector_add(x, y)
        (3 * out).sum().backward()
        assert out.tolist() == (a + b).tolist()
        assert x.grad.tolist() == y.grad.tolist() == [3.0] * 1000
    exact = [genesis.randn(5, dtype=genesis.float64, device="cuda", requires_grad=True) for _ in range(2)]
    assert genesis.autograd.gradcheck(add_in_float32, exact, eps=0.1, atol=1e-4)  # a sum is linear: large steps will do


def benchmark():
    n = 1 << 26
    a, b = genesis.randn(n, device="cuda"), genesis.randn(n, device="cuda")
    out = a.new_empty(n)
    for name, function in {"vector_add": lambda: module.vector_add(a, b, out, n), "a + b": lambda: a + b}.items():
        elapsed = genesis.cuda.milliseconds(function)
        print(f"{name:12} {elapsed:.3f} ms  {12 * n / elapsed / 1e6:.0f} GB/s")


if __name__ == "__main__":
    if genesis.cuda.is_available():
        check()
        benchmark()
    else:
        print("vector_add: compiled, but there is no NVIDIA GPU to run it on")
