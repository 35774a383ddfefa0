"""CUDA graphs on a GPU: networks, libraries, cost."""

from __future__ import annotations

import time

import pytest

import genesis
from genesis import Tensor, nn, optim
from genesis import functional as F
from genesis.amp import GradScaler
from genesis.backends.cuda.engine import planner
from genesis.cuda import Graph, graph
from genesis.settings import override
from tests.cuda.capturing import OPS, captured, reserved

pytestmark = pytest.mark.usefixtures("cuda")


@pytest.mark.parametrize("cuda", [pytest.param("auto", marks=pytest.mark.gpu)], indirect=True)
class TestGpu:
    @pytest.mark.parametrize("dtype", [genesis.float32, genesis.bfloat16], ids=str)
    def test_a_resnets_inference(self, dtype: genesis.dtype) -> None:
        """Up to rounding: a capture does not fold norms into weights, as eager inference does."""
        rounding = 1e-5 if dtype == genesis.float32 else 2e-2
        net = genesis.models.create("resnet18").to("cuda", dtype).eval()
        x = genesis.randn(4, 3, 64, 64, device="cuda").to(dtype)
        with genesis.no_grad():
            net(x)
            g, y = captured(lambda: net(x))
            for _ in range(3):
                x.copy_(genesis.randn(4, 3, 64, 64, device="cuda"))
                g.replay()
                expected = net(x).float()
                assert (y.float() - expected).norm().item() <= rounding * expected.norm().item()

    def test_a_resnets_training(self) -> None:
        """With deterministic kernels, replays are the eager steps."""
        with override(deterministic=True):
            target = genesis.arange(4, device="cuda")
            batches = [genesis.randn(4, 3, 64, 64, device="cuda") for _ in range(5)]

            def step(net: nn.Module, optimizer: optim.SGD, x: Tensor) -> Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(net(x), target)
                loss.backward()
                optimizer.step()
                return loss.detach()

            runs = []
            for is_captured in (False, True):
                genesis.manual_seed(0)
                net = genesis.models.create("resnet18").to("cuda")
                optimizer = optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
                losses = [step(net, optimizer, x).item() for x in batches[:2]]
                if is_captured:
                    x = batches[0].clone()
                    g, loss = captured(lambda: step(net, optimizer, x))  # noqa: B023
                    for batch in batches[2:]:
                        x.copy_(batch)
                        g.replay()
                        losses.append(loss.item())
                else:
                    losses += [step(net, optimizer, x).item() for x in batches[2:]]
                runs.append((losses, [value.tolist() for value in net.state_dict().values()]))
            assert runs[0] == runs[1]

    def test_its_memory_is_given_back(self) -> None:
        net = genesis.models.create("resnet18").to("cuda").eval()
        x = genesis.randn(4, 3, 64, 64, device="cuda")
        with genesis.no_grad():
            net(x)
            before, taken = reserved(), []
            for _ in range(4):  # what is free is the device's: other processes take some of it, but not always
                free = genesis.cuda.mem_get_info()[0]
                for _ in range(5):
                    g, y = captured(lambda: net(x))
                    g.replay()
                    del g, y
                assert reserved() == before
                taken.append(free - genesis.cuda.mem_get_info()[0])
            assert min(taken) < 32 << 20

    def test_a_users_kernel(self) -> None:
        source = "__global__ void add_one(float *x, int n) { int i = threadIdx.x; if (i < n) x[i] += 1; }"
        module = genesis.cuda.load_inline("graphs_add_one", source)
        x = genesis.zeros(32, device="cuda")
        g = Graph()
        with graph(g):
            module.add_one(x, 32, grid=1, block=32)
        for _ in range(3):
            g.replay()
        assert x.tolist() == [3.0] * 32

    @pytest.mark.parametrize("name", ["matmul", "attention"])
    def test_libraries(self, name: str) -> None:
        x = genesis.randn(2, 4, 128, 64, device="cuda").to(genesis.bfloat16)
        expected = OPS[name](x).tolist()
        g, y = captured(lambda: OPS[name](x))
        g.replay()
        assert y.tolist() == expected

    def test_libraries_that_are_not_warm(self) -> None:
        """Handles, plans and kernels are made in the capture, on a stream that they have never seen."""
        x = genesis.randn(2, 16, 32, 32, device="cuda").to(genesis.bfloat16)
        weight = genesis.randn(16, 16, 3, 3, device="cuda").to(genesis.bfloat16)

        def products() -> Tensor:
            images = F.conv2d(x, weight, padding=1).contiguous().reshape(2, 16, 16, 64)
            return F.scaled_dot_product_attention(images, images, images @ images.transpose(-1, -2) @ images)

        for _ in range(2):
            planner.forget()
            stream, g = genesis.cuda.Stream(), Graph()
            with graph(g, stream=stream):
                y = products()
            g.replay()
            expected = products().float()
            error = (y.float() - expected).abs().amax().item() / expected.abs().amax().item()
            assert error < 2e-2

    def test_mixed_precision_with_a_scaler(self) -> None:
        """With deterministic kernels, replays are the eager steps: overflows are skipped, the scale follows."""
        with override(deterministic=True):
            target = genesis.arange(4, device="cuda")
            batches = [genesis.randn(4, 3, 64, 64, device="cuda") for _ in range(8)]
            batches[5] = batches[5] * 1e30  # infinite gradients

            def step(net: nn.Module, optimizer: optim.AdamW, scaler: GradScaler, x: Tensor) -> Tensor:
                optimizer.zero_grad()
                with genesis.autocast("cuda"):
                    loss = F.cross_entropy(net(x).float(), target)
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                return loss.detach()

            runs = []
            for is_captured in (False, True):
                genesis.manual_seed(0)
                net = genesis.models.create("resnet18").to("cuda")
                optimizer, scaler = optim.AdamW(net.parameters(), lr=1e-3), GradScaler(growth_interval=3)
                schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
                losses, x = [step(net, optimizer, scaler, batches[0]).item()], batches[0].clone()
                schedule.step()
                if is_captured:
                    g, loss = captured(lambda: step(net, optimizer, scaler, x))  # noqa: B023
                for batch in batches[1:]:
                    if is_captured:
                        x.copy_(batch)
                        g.replay()
                        losses.append(loss.item())
                    else:
                        losses.append(step(net, optimizer, scaler, batch).item())
                    schedule.step()
                parameters = [parameter.tolist() for parameter in net.parameters()]
                count = int(optimizer.state[next(iter(net.parameters()))]["step"])
                runs.append((repr(losses), parameters, scaler.state_dict(), count))
            assert runs[0] == runs[1]
            assert runs[0][3] < len(batches), "a step was skipped"

    def test_a_replayed_training_step_costs_little_on_the_host(self) -> None:
        net = genesis.models.create("resnet18").to("cuda")
        optimizer = optim.AdamW(net.parameters())
        x, target = genesis.randn(2, 3, 64, 64, device="cuda"), genesis.arange(2, device="cuda")

        def step() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), target)
            loss.backward()
            optimizer.step()
            return loss.detach()

        step()
        g, _ = captured(step)
        times = []
        for _ in range(20):
            genesis.cuda.synchronize()
            began = time.perf_counter()
            g.replay()
            times.append(time.perf_counter() - began)
        genesis.cuda.synchronize()
        assert min(times) < 200e-6, "the driver's own cost of some 300 kernels, and 5 µs of ours"

    def test_a_replay_costs_little_on_the_host(self) -> None:
        x = genesis.zeros(16, device="cuda")
        g, _ = captured(lambda: x.add_(1))
        g.replay()
        genesis.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(100):
            g.replay()
        assert (time.perf_counter() - began) / 100 < 50e-6
        assert x[0].item() == 101
