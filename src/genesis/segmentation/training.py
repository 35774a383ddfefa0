"""The training of a segmentation network: crops, mixed precision, a schedule, scores on what is held out, a state.

All that is random is a function of the plan's seed and the number of the step. So the state is the weights, the
optimizer's and the scaler's state, and the step: a training that goes on from there is the one that was never stopped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

import genesis
import genesis.nn.functional as F
from genesis import amp, distributed, growth, nn, optim
from genesis.errors import CheckpointError, describe
from genesis.growth.room import shapes_in
from genesis.growth.snapshot import Restoring, Snapshot
from genesis.segmentation import crops, ranks
from genesis.segmentation.arrays import Array
from genesis.segmentation.examples import LabelledSet
from genesis.segmentation.metrics import IGNORED, Scores, confusion, scores
from genesis.segmentation.progress import PlainProgress
from genesis.segmentation.recipe import Recipe
from genesis.segmentation.segmenter import PRECISIONS, Segmenter
from genesis.tensor import Tensor

State = dict[str, Any]  # of a training
_Replica = nn.parallel.DistributedDataParallel
_BUCKETS = "buckets"  # of a state; older checkpoints have none
AUX_WEIGHT = 0.5  # of the auxiliary head's loss, as in torchvision's training
WARM_UP = 0.1  # the part of the training in which the learning rate rises


@dataclasses.dataclass(frozen=True)
class Plan:
    """The settings that decide the result, beside the pictures and the network.

    Args:
        steps: batches per epoch; 0: as many as use each picture once.
        crop: the side of the crops.
        turns: turn crops by quarters, where pictures have no up and down.
        grow: a U-Net becomes twice as wide after a quarter of the epochs, and deeper at its bottom after half.
        precision: "float32", "bfloat16" or "float16", of what autocast lowers.
    """

    epochs: int = 20
    steps: int = 0
    batch_size: int = 8
    crop: int = 256
    lr: float = 0.001
    weight_decay: float = 0.01
    turns: bool = False
    precision: str = "float32"
    seed: int = 0
    grow: bool = False

    @property
    def growth_epochs(self) -> tuple[int, int]:
        """After how many epochs the network becomes wider, and deeper."""
        return max(1, self.epochs // 4), max(2, self.epochs // 2)


@dataclasses.dataclass(frozen=True)
class Epoch:
    """The mean loss on an epoch's crops, the learning rate at its end, and the Scores on what is held out."""

    loss: float
    lr: float
    miou: float
    dice: float
    accuracy: float
    iou: tuple[float, ...]

    @property
    def held_out(self) -> Scores:
        return Scores(self.miou, self.dice, self.accuracy, self.iou)


class Training:
    """A network on its way.

    Args:
        workers: processes that prepare batches; their number does not change the result.
        synchronized: where several processes train, batch norm takes the statistics of all of them.
    Raises: ValueError: the crops don't fit the network, or an unknown precision.
    """

    def __init__(
        self, data: LabelledSet, recipe: Recipe, plan: Plan, device: str = "cpu", workers: int = 0,
        synchronized: bool = True,
    ) -> None:  # fmt: skip
        ranks.check(plan.batch_size)
        if plan.crop % recipe.multiple:
            raise ValueError(describe("train", "crop", f"a multiple of {recipe.multiple}", plan.crop))
        if plan.precision not in PRECISIONS:
            raise ValueError(describe("train", "precision", f"one of {', '.join(PRECISIONS)}", repr(plan.precision)))
        if plan.grow and recipe.model != "unet":
            raise ValueError(describe("train", "grow", "False but for a unet", f"True for {recipe.model}"))
        self.data, self.recipe, self.plan, self.device, self.workers = data, recipe, plan, device, workers
        self.num_steps = plan.steps or math.ceil(len(data.training) / plan.batch_size)  # of an epoch
        self.step = 0
        self.history: list[Epoch] = []
        self._losses: list[float] = []  # of the present epoch
        genesis.manual_seed(plan.seed)
        self.model, self._synchronized = recipe.build().to(device), synchronized
        self._optimizer = optim.AdamW(self.model.parameters(), lr=plan.lr, weight_decay=plan.weight_decay)
        self._scaler = amp.GradScaler(enabled=plan.precision == "float16")
        self._schedule = self._new_schedule()
        self._growths = growth.Schedule(
            self.model,
            self._optimizer,
            [_widen, _deepen] if plan.grow else [],
            when=lambda curve: len(curve) >= plan.growth_epochs[self._growths.done],
            example=genesis.zeros(2, recipe.channels, plan.crop, plan.crop, device=device),
            seed=plan.seed,
        )
        self._crops = crops.Crops(data.training, plan.crop, plan.seed, plan.turns)
        self._normalization = [_per_channel(numbers, device) for numbers in (recipe.mean, recipe.std)]
        self._network = self._connected()

    def _connected(self) -> nn.Module:
        """The module that a step calls: the model, or its replica in DistributedDataParallel."""
        if distributed.get_world_size() == 1:
            return self.model
        self._synchronize()
        return _Replica(self.model)

    def _synchronize(self) -> None:
        """Let batch norm take the statistics of all ranks."""
        if self._synchronized and distributed.get_world_size() > 1:
            nn.SyncBatchNorm.convert_sync_batchnorm(self.model)

    @property
    def events(self) -> list[growth.Event]:
        """How the network grew."""
        return self._growths.events

    @property
    def best(self) -> int:
        """The number of the epoch with the highest mIoU, from 1 on; the first of several."""
        return 1 + max(range(len(self.history)), key=lambda index: self.history[index].miou)

    @property
    def is_done(self) -> bool:
        return len(self.history) >= self.plan.epochs

    # --- learning ----------------------------------------------------------------------------------------------------

    def run_epoch(self, progress: PlainProgress, after_step: Callable[[float], None] = lambda loss: None) -> Epoch:
        """The steps that are left of the present epoch, then the scores on what is held out.

        Args:
            after_step: is called with each step's loss.
        """
        if self.history and not self._losses:  # in the middle of an epoch, it has been done
            for event in self._growths.step(self.history[-1].miou, self.history[-1].loss):
                progress.event(str(event))
            self._synchronize()  # layers that growth has added
        epoch, done = len(self.history), len(self._losses)
        progress.begin_epoch(self.num_steps, done)
        self.model.train()
        if done < self.num_steps:
            loader = crops.batches(self._crops, epoch, self.num_steps, self.plan.batch_size, done, self.workers)
            for images, labels in loader:
                loss, found = self._step(images, labels)
                progress.step(loss, found)
                after_step(loss)
        held_out = self.evaluate()
        self.history.append(Epoch(sum(self._losses) / len(self._losses), self.lr, *held_out))
        self._losses = []
        progress.end_epoch(self.history[-1].loss, held_out)
        return self.history[-1]

    @property
    def lr(self) -> float:
        return self._optimizer.param_groups[0]["lr"]

    def _step(self, images: Tensor, labels: Tensor) -> tuple[float, Scores]:
        """One update; its loss, and the scores on its crops."""
        rank = distributed.get_rank()
        genesis.manual_seed(_seed(self.plan.seed, self.step, rank))  # of dropout: a stream for each step
        mean, std = self._normalization
        inputs, targets = (images.to(self.device) - mean) / std, labels.to(self.device)
        with self._autocast():
            outputs = self._network(inputs)
        outputs = outputs if isinstance(outputs, dict) else {"out": outputs}
        counted = ranks.total(np.array([int((labels != IGNORED).sum().item())]))
        num_counted = max(1, int(counted[0])) / distributed.get_world_size()  # gradients are means over the ranks
        loss = _loss(outputs["out"], targets, num_counted)
        if "aux" in outputs:
            loss = loss + AUX_WEIGHT * _loss(outputs["aux"], targets, num_counted)
        mean_loss = ranks.mean(loss.item())
        if not math.isfinite(mean_loss):
            raise FloatingPointError(f"train: the loss of step {self.step} is {mean_loss}; a lower --lr may help")
        self._optimizer.zero_grad()
        self._scaler.scale(loss).backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._schedule.step()
        self.step += 1
        self._losses.append(mean_loss)
        found = outputs["out"].detach().argmax(1).cpu().numpy()
        return mean_loss, scores(ranks.total(confusion(found, labels.numpy(), len(self.recipe.classes))))

    def _autocast(self) -> contextlib.AbstractContextManager[object]:
        if self.plan.precision == "float32":
            return contextlib.nullcontext()
        return amp.autocast(genesis.Device(self.device).type, PRECISIONS[self.plan.precision])

    def _new_schedule(self, step: int = 0) -> optim.lr_scheduler.LRScheduler:
        """The learning rate rises in a line and falls in a half cosine; it depends only on how many steps were made."""
        total = self.plan.epochs * self.num_steps

        def factor(step: int) -> float:
            part = min(1.0, (step + 1) / total)
            return part / WARM_UP if part < WARM_UP else (1 + math.cos(math.pi * (part - WARM_UP) / (1 - WARM_UP))) / 2

        return optim.lr_scheduler.LambdaLR(self._optimizer, factor, last_epoch=step - 1)

    # --- looking -----------------------------------------------------------------------------------------------------

    def evaluate(self) -> Scores:
        """The scores on the whole of what is held out, by the network as it is now."""
        num_classes = len(self.recipe.classes)
        matrix = np.zeros((num_classes, num_classes), np.int64)
        for index in ranks.numbers(len(self.data.held_out)):
            values, labels = self.data.held_out[index]
            matrix += confusion(self.predict(values), labels, num_classes)
        return scores(ranks.total(matrix))

    def predict(self, values: Array) -> Array:
        """The class of each pixel of (channels, H, W) from 0 to 1, by the network as it is now."""
        was_training = self.model.training
        self.model.eval()
        found = Segmenter(self.model, self.recipe, self.device).classes(values)
        self.model.train(was_training)
        return found

    # --- the state ---------------------------------------------------------------------------------------------------

    def state(self) -> State:
        """All that load_state() needs to go on; `genesis segment` reads "model", "recipe" and "growth"."""
        return {
            "model": self.model.state_dict(),
            "recipe": self.recipe.as_dict(),
            "plan": dataclasses.asdict(self.plan),
            "data": {"name": self.data.name, "num_pictures": len(self.data.training)},
            "growth": growth.history(self.model).state_dict(),
            "growth schedule": self._growths.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "scaler": self._scaler.state_dict(),
            "step": self.step,
            "losses": self._losses,
            "history": [dataclasses.asdict(epoch) for epoch in self.history],
            _BUCKETS: self._network.bucket_order if isinstance(self._network, _Replica) else [],
        }

    def load_state(self, state: object, where: str) -> None:
        """Go on where state() was called; the plan may have more epochs than it had then.

        Args:
            where: the file that it is from, for messages.
        Raises: CheckpointError: it is no state of this training. Where anything raises, nothing has changed.
        """
        mine = self.state()
        if not isinstance(state, dict) or not mine.keys() - {_BUCKETS} <= state.keys():
            raise CheckpointError(f"{where}: expected the checkpoint of a training, with {', '.join(mine)}")
        for part in ("plan", "recipe", "data"):
            theirs = state[part] if isinstance(state[part], dict) else {}
            different = [key for key in mine[part] if key != "epochs" and theirs.get(key) != mine[part][key]]
            if different:
                saved = ", ".join(f"{key} = {theirs.get(key)}" for key in different)
                raise CheckpointError(f"{where} is of a training with another {part}: {saved}")
        try:
            self._take(state)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{where}: damaged, or of another Genesis: {error}") from error

    def repeats(self, state: object) -> bool:
        """Whether state() of this training, done anew from the beginning, will give what this state is of."""
        mine = self.state()
        return isinstance(state, dict) and all(state.get(part) == mine[part] for part in ("plan", "recipe", "data"))

    def _take(self, state: State) -> None:
        others = (self._growths, self._scaler)
        with Restoring(Snapshot([self.model], [self._optimizer], others, [growth.history(self.model).steps])):
            growth.replay(self.model, state["growth"], self._optimizer, shapes=shapes_in(state["model"]))
            self._growths.load_state_dict(state["growth schedule"])
            self.model.load_state_dict(state["model"])
            self._optimizer.load_state_dict(state["optimizer"])
            self._scaler.load_state_dict(state["scaler"])
            loaded = {
                "step": state["step"],
                "history": [Epoch(**epoch) for epoch in state["history"]],
                "_losses": list(state["losses"]),
                "_schedule": self._new_schedule(state["step"]),
            }
        vars(self).update(loaded)
        self._synchronize()
        if isinstance(self._network, _Replica):
            self._network.bucket_order = list(state.get(_BUCKETS, []))


def _widen(model: nn.Module) -> None:
    """Every level of a U-Net gets twice the channels."""
    num_levels = len(model.encoder)
    for level in range(num_levels):
        names = [f"encoder.{level}.0.0", f"encoder.{level}.1.0"]
        if level < num_levels - 1:
            names += [f"upsample.{level}", f"decoder.{level}.0.0", f"decoder.{level}.1.0"]
        growth.grow_width(model, names, 2 * model.get_submodule(names[0]).out_channels)


def _deepen(model: nn.Module) -> None:
    """The coarsest level gets a residual block."""
    growth.grow_depth(model, f"encoder.{len(model.encoder) - 1}")


def _loss(logits: Tensor, labels: Tensor, num_counted: float) -> Tensor:
    """Cross entropy, the mean over the pixels that count, of which there may be none."""
    total = F.cross_entropy(logits.to(genesis.float32), labels, ignore_index=IGNORED, reduction="sum")
    return total / num_counted


def _per_channel(numbers: tuple[float, ...] | None, device: str) -> Tensor:
    assert numbers is not None  # a training's recipe has them
    return genesis.tensor(list(numbers)).reshape(-1, 1, 1).to(device)


def _seed(seed: int, step: int, rank: int) -> int:
    entropy = [seed, step, rank] if rank else [seed, step]
    return int(np.random.SeedSequence(entropy).generate_state(1)[0])
