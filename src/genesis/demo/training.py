"""The training of the demo: a growing U-Net on random crops of one photograph, and a checkpoint after each epoch."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np

import genesis
import genesis.nn.functional as F
from genesis import checkpoint, growth, nn, optim
from genesis.demo import crops
from genesis.demo.photograph import Photograph
from genesis.demo.progress import PlainProgress
from genesis.errors import CheckpointError
from genesis.segmentation.recipe import Recipe

DEPTH = 3
CROP_SIZE = 96
BATCH_SIZE = 8
WARM_UP = 0.1  # the part of the training in which the learning rate rises


@dataclasses.dataclass(frozen=True)
class Plan:
    """What decides the result, beside the photograph."""

    epochs: int = 12
    steps: int = 20
    seed: int = 0
    lr: float = 0.01
    width: int = 16
    grow: bool = True

    @property
    def growth_epochs(self) -> tuple[int, int]:
        """After how many epochs the network becomes wider, and deeper."""
        return max(1, self.epochs // 4), max(2, self.epochs // 2)


@dataclasses.dataclass(frozen=True)
class Epoch:
    """What one epoch achieved: the mean loss on its crops, and the IoU on the part that is held out."""

    loss: float
    held_out_iou: float


class Training:
    """A network on its way. The same plan and photograph give the same network, resumed or not."""

    def __init__(self, photograph: Photograph, plan: Plan, device: str = "cpu") -> None:
        crops.check_size(photograph.training_part(), CROP_SIZE)
        self.plan = plan
        self.device = device
        self.history: list[Epoch] = []
        self._seen, self._held_out = photograph.training_part(), photograph.held_out_part()
        self._mean, self._deviation = float(self._seen.image.mean()), float(self._seen.image.std()) + 1e-6
        genesis.manual_seed(plan.seed)
        width = (plan.width + 1) // 2 if plan.grow else plan.width
        arguments = {"in_channels": 1, "num_classes": 1, "width": width, "depth": DEPTH}
        self._recipe = Recipe("unet", arguments, ("background", "object"), (self._mean,), (self._deviation,))
        self.model = self._recipe.build().to(device)
        self._optimizer = optim.AdamW(self.model.parameters(), lr=plan.lr)
        self._schedule = self._new_schedule()
        self._growths = growth.Schedule(
            self.model,
            self._optimizer,
            [self._widen, self._deepen] if plan.grow else [],
            when=lambda curve: len(curve) >= plan.growth_epochs[self._growths.done],
            example=genesis.zeros(2, 1, CROP_SIZE // 2, CROP_SIZE // 2, device=device),
            seed=plan.seed,
        )

    # --- learning ----------------------------------------------------------------------------------------------------

    def run_epoch(self, progress: PlainProgress) -> Epoch:
        """Grow if it is time, train on plan.steps batches of crops, then look at the held-out part."""
        if self.history:
            for event in self._growths.step(self.history[-1].held_out_iou, self.history[-1].loss):
                progress.event(str(event))
        progress.begin_epoch(self.plan.steps)
        # Each epoch draws from a stream of its own, so that one can go on from any checkpoint with the same crops.
        generator = np.random.default_rng([self.plan.seed, len(self.history)])
        self.model.train()
        losses = [self._step(generator, progress) for _ in range(self.plan.steps)]
        found = self.predict(self._held_out.image) > 0.5
        epoch = Epoch(sum(losses) / len(losses), intersection_over_union(found, self._held_out.mask))
        self.history.append(epoch)
        progress.end_epoch(epoch.loss, epoch.held_out_iou)
        return epoch

    def _step(self, generator: np.random.Generator, progress: PlainProgress) -> float:
        images, masks = crops.batch(self._seen, generator, BATCH_SIZE, CROP_SIZE)
        logits = self.model(self._tensor(images))
        loss = F.binary_cross_entropy_with_logits(logits, genesis.from_numpy(masks).to(self.device))
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self._schedule.step()
        found = logits.detach().cpu().numpy() > 0
        progress.step(loss.item(), intersection_over_union(found, masks > 0.5))
        return loss.item()

    def _new_schedule(self) -> optim.lr_scheduler.LRScheduler:
        """The learning rate rises in a line and falls in a half cosine; it depends only on how many steps were made."""
        done = len(self.history) * self.plan.steps
        total = self.plan.epochs * self.plan.steps

        def factor(step: int) -> float:
            part = (step + 1) / total
            return part / WARM_UP if part < WARM_UP else (1 + math.cos(math.pi * (part - WARM_UP) / (1 - WARM_UP))) / 2

        return optim.lr_scheduler.LambdaLR(self._optimizer, factor, last_epoch=done - 1)

    # --- growing -----------------------------------------------------------------------------------------------------

    @property
    def events(self) -> list[growth.Event]:
        """How the network grew."""
        return self._growths.events

    def _widen(self, model: nn.Module) -> None:
        """Every layer gets the channels of a U-Net of plan.width."""
        for level in range(DEPTH):
            names = [f"encoder.{level}.0.0", f"encoder.{level}.1.0"]
            if level < DEPTH - 1:
                names += [f"upsample.{level}", f"decoder.{level}.0.0", f"decoder.{level}.1.0"]
            wanted = self.plan.width * 2**level
            growth.grow_width(model, [n for n in names if model.get_submodule(n).out_channels < wanted], wanted)

    @staticmethod
    def _deepen(model: nn.Module) -> None:
        """The coarsest level gets a residual block."""
        growth.grow_depth(model, f"encoder.{DEPTH - 1}")

    # --- looking -----------------------------------------------------------------------------------------------------

    def predict(self, image: np.ndarray) -> np.ndarray:
        """The probability of each pixel of (H, W) to belong to an object, by the network as it is now."""
        height, width = image.shape
        multiple = 2 ** (DEPTH - 1)
        padded = np.pad(image, ((0, -height % multiple), (0, -width % multiple)), mode="reflect")
        was_training = self.model.training
        self.model.eval()
        with genesis.no_grad():
            probabilities = self.model(self._tensor(padded[None, None])).sigmoid().cpu().numpy()
        self.model.train(was_training)
        return probabilities[0, 0, :height, :width]

    def predict_both_parts(self) -> np.ndarray:
        """predict() for the whole photograph, each part by itself, so that neither sees over the boundary."""
        return np.concatenate([self.predict(part.image) for part in (self._seen, self._held_out)], axis=1)

    def _tensor(self, images: np.ndarray) -> genesis.Tensor:
        return genesis.from_numpy((images - self._mean) / self._deviation).to(self.device)

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write all that resume() needs to go on."""
        path.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.save(self._state(), path)

    def resume(self, path: Path) -> None:
        """Go on where save() was called; the plan may have more epochs than it had then.

        Raises: CheckpointError: no checkpoint of this training with this plan.
        """
        state = checkpoint.load(path)
        if not {"model", "optimizer", "growth", "schedule", "plan", "history"} <= set(state):
            raise CheckpointError(f"{path}: expected a checkpoint of genesis demo, got one with {', '.join(state)}")
        saved, mine = state["plan"], dataclasses.asdict(self.plan)
        different = [name for name in mine if name != "epochs" and saved[name] != mine[name]]
        if different:
            options = " ".join(_option(name, saved[name]) for name in different)
            raise CheckpointError(f"{path} is of a training with other settings; resume it with {options}")
        growth.replay(self.model, state["growth"], self._optimizer)
        self._growths.load_state_dict(state["schedule"])
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.history = [Epoch(**epoch) for epoch in state["history"]]
        self._schedule = self._new_schedule()

    def _state(self) -> dict[str, object]:
        return {
            "model": self.model.state_dict(),
            "recipe": self._recipe.as_dict(),  # for `genesis segment`
            "optimizer": self._optimizer.state_dict(),
            "growth": growth.history(self.model).state_dict(),
            "schedule": self._growths.state_dict(),
            "plan": dataclasses.asdict(self.plan),
            "history": [dataclasses.asdict(epoch) for epoch in self.history],
        }


def _option(name: str, value: object) -> str:
    """An option of the command line that gives a plan this value."""
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name} {value}"


def intersection_over_union(found: np.ndarray, mask: np.ndarray) -> float:
    """|found ∩ mask| / |found ∪ mask| of two bool arrays; 1 where both are empty."""
    union = (found | mask).sum()
    return float((found & mask).sum() / union) if union else 1.0
