"""The training: what is learned, the same again, going on bit for bit from any step, scores, sets, events."""

from __future__ import annotations

import struct
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import genesis
from genesis import models, nn
from genesis.models import registry
from genesis.segmentation import crops, curves, events, sets, start
from genesis.segmentation.examples import Example, LabelledSet
from genesis.segmentation.metrics import confusion, scores
from genesis.segmentation.progress import PlainProgress
from genesis.segmentation.recipe import Recipe
from genesis.segmentation.training import Epoch, Plan, Training

QUIET = PlainProgress(epochs=99)


def discs(count: int = 6, size: int = 40) -> list[Example]:
    """Bright discs of class 1 and dark ones of class 2 on a grey ground with some noise."""
    generator = np.random.default_rng(0)
    y, x = np.mgrid[:size, :size]
    examples = []
    for _ in range(count):
        labels = np.zeros((size, size), np.uint8)
        for number in (1, 2):
            top, left = generator.integers(8, size - 8, 2)
            labels[(y - top) ** 2 + (x - left) ** 2 < 49] = number
        values = np.float32([0.5, 0.9, 0.1])[labels] + generator.normal(0, 0.05, labels.shape)
        examples.append(Example(np.repeat(values[None], 3, axis=0).clip(0, 1).astype(np.float32), labels))
    return examples


DISCS = LabelledSet("discs", ("ground", "bright", "dark"), discs()[:5], discs()[5:])
PLAN = Plan(epochs=4, steps=3, batch_size=2, crop=32, lr=0.02, seed=3)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """A network with all that a state can forget: batch norm, dropout, two outputs."""
    monkeypatch.setattr(registry, "_constructors", dict(registry._constructors))

    class Tiny(nn.Module):
        def __init__(self, num_classes: int) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.ConvBNReLU(3, 4, 3), nn.Dropout(0.3), nn.ConvBNReLU(4, 4, 3))
            self.classifier = nn.Conv2d(4, num_classes, 1)
            self.aux_classifier = nn.Conv2d(4, num_classes, 1)

        def forward(self, input: genesis.Tensor) -> dict[str, genesis.Tensor]:
            x = self.body(input)
            return {"out": self.classifier(x), "aux": self.aux_classifier(x)}

    def tiny(num_classes: int) -> Tiny:
        return Tiny(num_classes)

    models.register(tiny)
    return Recipe("tiny", {"num_classes": 3}, DISCS.classes, *start.mean_and_deviation(DISCS.training))


def unet(plan: Plan = PLAN, data: LabelledSet = DISCS) -> Training:
    return Training(data, start.recipe_for(data, "unet", width=4, depth=2), plan)


def bits(training: Training) -> list[bytes]:
    """Everything that a training goes on from, as bytes."""
    found: list[bytes] = []

    def walk(value: Any) -> None:
        if isinstance(value, genesis.Tensor):
            found.append(value.numpy().tobytes())
        elif isinstance(value, dict):
            for key, item in value.items():
                found.append(str(key).encode())
                walk(item)
        elif isinstance(value, list | tuple):
            for item in value:
                walk(item)
        else:
            found.append(repr(value).encode())

    walk(training.state())
    return found


def test_it_learns() -> None:
    training = unet(Plan(epochs=6, steps=8, batch_size=4, crop=32, lr=0.03, turns=True))
    first = training.run_epoch(QUIET)
    while not training.is_done:
        last = training.run_epoch(QUIET)
    assert last.loss < first.loss / 2
    assert last.miou > 0.8
    assert last.miou < last.dice <= 1
    assert last.lr == pytest.approx(0, abs=1e-4)


def test_the_same_seed_gives_the_same_network(tiny: Recipe) -> None:
    first, again = Training(DISCS, tiny, PLAN), Training(DISCS, tiny, PLAN, workers=2)
    other = Training(DISCS, tiny, Plan(**{**vars(PLAN), "seed": 4}))
    for training in (first, again, other):
        genesis.manual_seed(77)  # what else draws random numbers makes no difference
        training.run_epoch(QUIET)
    assert bits(first) == bits(again)
    assert bits(first) != bits(other)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("stopped_after", [1, 3, 5])
def test_going_on_is_bit_for_bit_never_having_stopped(
    tiny: Recipe, precision: str, stopped_after: int, tmp_path: Path
) -> None:
    plan = Plan(**{**vars(PLAN), "precision": precision})
    whole = Training(DISCS, tiny, plan)
    for _ in range(3):
        whole.run_epoch(QUIET)

    class StoppedError(Exception):
        pass

    stopped = Training(DISCS, tiny, plan)

    def after_step(loss: float) -> None:
        if stopped.step == stopped_after:
            genesis.save(stopped.state(), tmp_path / "state.safetensors")
            raise StoppedError

    def train_until_stopped() -> None:
        while True:
            stopped.run_epoch(QUIET, after_step)

    with pytest.raises(StoppedError):
        train_until_stopped()
    genesis.rand(5)
    resumed = Training(DISCS, tiny, plan)
    resumed.load_state(genesis.load(tmp_path / "state.safetensors"), "state")
    while len(resumed.history) < 3:
        resumed.run_epoch(QUIET)
    assert bits(resumed) == bits(whole)


def test_growing_goes_on_bit_for_bit_too(tmp_path: Path) -> None:
    plan = Plan(**{**vars(PLAN), "grow": True})
    whole = unet(plan)
    sizes = []
    while not whole.is_done:
        whole.run_epoch(QUIET)
        sizes.append(sum(parameter.numel() for parameter in whole.model.parameters()))
        genesis.save(whole.state(), tmp_path / f"{len(sizes)}.safetensors")
    assert sizes[0] < sizes[1] < sizes[2] == sizes[3]
    for stopped_after in (1, 2, 3):
        resumed = unet(plan)
        resumed.load_state(genesis.load(tmp_path / f"{stopped_after}.safetensors"), "state")
        while not resumed.is_done:
            resumed.run_epoch(QUIET)
        assert bits(resumed) == bits(whole)


def test_an_interrupted_load_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(**{**vars(PLAN), "grow": True})
    whole = unet(plan)
    for _ in range(2):
        whole.run_epoch(QUIET)
    state, fresh = whole.state(), unet(plan)
    before = bits(fresh)

    def interrupted(self: Training, step: int = 0) -> None:
        raise KeyboardInterrupt

    new_schedule = Training._new_schedule
    monkeypatch.setattr(Training, "_new_schedule", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fresh.load_state(state, "here")
    assert bits(fresh) == before
    monkeypatch.setattr(Training, "_new_schedule", new_schedule)
    fresh.load_state(state, "here")
    assert bits(fresh) == bits(whole)


def test_only_a_unet_grows(tiny: Recipe) -> None:
    with pytest.raises(ValueError, match="'grow': expected False but for a unet, got True for tiny"):
        Training(DISCS, tiny, Plan(**{**vars(PLAN), "grow": True}))


def test_a_state_of_another_training_is_refused(tiny: Recipe) -> None:
    state = unet().state()
    unet().load_state(state, "here")
    more = unet(Plan(**{**vars(PLAN), "epochs": 9}))
    more.load_state(state, "here")
    with pytest.raises(ValueError, match=r"here is of a training with another plan: steps = 3, lr = 0\.02"):
        unet(Plan(**{**vars(PLAN), "steps": 2, "lr": 0.1})).load_state(state, "here")
    with pytest.raises(ValueError, match="here is of a training with another recipe: model = unet"):
        Training(DISCS, tiny, PLAN).load_state(state, "here")
    with pytest.raises(ValueError, match="another data: num_pictures = 5"):
        unet(data=LabelledSet("discs", DISCS.classes, [*DISCS.training] * 2, DISCS.held_out)).load_state(state, "here")
    with pytest.raises(ValueError, match="here: expected the checkpoint of a training, with model, recipe"):
        unet().load_state({"weight": 1}, "here")


def test_what_does_not_fit_is_said_first() -> None:
    with pytest.raises(ValueError, match="'crop': expected a multiple of 2, got 33"):
        unet(Plan(crop=33))
    with pytest.raises(ValueError, match="'precision': expected one of float32, bfloat16, float16, got 'int8'"):
        unet(Plan(crop=32, precision="int8"))


def test_a_channel_without_contrast_stays_small() -> None:
    flat = [Example(np.full((3, 8, 8), 0.25, np.float32), np.zeros((8, 8), np.uint8))] * 2
    mean, deviation = start.mean_and_deviation(flat)
    assert mean == pytest.approx((0.25,) * 3)
    assert deviation == (0.01,) * 3


def test_a_loss_that_is_not_finite_ends_the_training() -> None:
    training = unet()
    with genesis.no_grad():
        training.model.head.bias.fill_(float("inf"))
    with pytest.raises(FloatingPointError, match=r"the loss of step 0 is nan; a lower --lr may help"):
        training.run_epoch(QUIET)


def test_pixels_that_do_not_count_teach_nothing() -> None:
    nothing = [Example(example.values, np.full_like(example.labels, 255)) for example in DISCS.training]
    training = unet(data=LabelledSet("discs", DISCS.classes, nothing, DISCS.held_out))
    before = training.model.head.weight.tolist()
    training._optimizer.param_groups[0]["weight_decay"] = 0.0
    assert training.run_epoch(QUIET).loss == 0
    assert training.model.head.weight.tolist() == before


# --- weights to start from -------------------------------------------------------------------------------------------


def test_what_fits_is_taken_over(tmp_path: Path) -> None:
    source, target = models.unet(3, 21, width=4, depth=2), models.unet(3, 2, width=4, depth=2)
    genesis.save(source, tmp_path / "w.safetensors")
    assert start.load_what_fits(target, tmp_path / "w.safetensors") == ["head.weight", "head.bias"]
    assert target.encoder[0][0].conv.weight.tolist() == source.encoder[0][0].conv.weight.tolist()
    genesis.save({"other": genesis.ones(1)}, tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match="missing key"):
        start.load_what_fits(target, tmp_path / "w.safetensors")


# --- crops -----------------------------------------------------------------------------------------------------------


def test_crops_keep_values_and_labels_together() -> None:
    cut = crops.Crops(DISCS.training, 24, seed=0, turns=True)
    for position in range(20):
        values, labels = cut[crops.Draw(0, position, position % 5)]
        assert values.shape == (3, 24, 24)
        assert values.dtype == np.float32
        means = [values[0][labels == number].mean() for number in np.unique(labels)]
        assert len(means) < 2 or np.ptp(means) > 0.2
        again = cut[crops.Draw(0, position, position % 5)]
        assert again[0].tobytes() == values.tobytes()
    assert cut[crops.Draw(1, 0, 0)][0].tobytes() != cut[crops.Draw(0, 0, 0)][0].tobytes()


def test_small_pictures_are_padded_with_what_does_not_count() -> None:
    _, labels = crops.Crops(DISCS.training, 64, seed=0, turns=False)[crops.Draw(0, 0, 0)]
    assert (labels != 255).sum() == 40 * 40


def test_every_picture_has_its_turn() -> None:
    cut = crops.Crops(DISCS.training, 32, seed=0, turns=False)

    def drawn(epoch: int) -> list[crops.Draw]:
        return [draw for batch in islice(crops._batches_of_draws(cut, epoch, 4), 3) for draw in batch]

    assert [draw.position for draw in drawn(0)] == list(range(12))
    seen = [draw.picture for draw in drawn(0)]
    assert sorted(seen[:5]) == sorted(seen[5:10]) == [*range(5)]
    assert seen != [draw.picture for draw in drawn(1)]


def test_an_epoch_of_a_billion_steps_takes_no_memory_for_it() -> None:
    batches = crops.batches(crops.Crops(DISCS.training, 8, 0, False), 0, 10**9, 2)
    assert next(batches)[0].shape == (2, 3, 8, 8)


# --- scores ----------------------------------------------------------------------------------------------------------


def test_scores() -> None:
    labels = np.array([0, 0, 0, 1, 1, 255])
    found = np.array([0, 0, 1, 1, 0, 2])
    matrix = confusion(found, labels, 3)
    assert matrix.tolist() == [[2, 1, 0], [1, 1, 0], [0, 0, 0]]
    expected = ((2 / 4 + 1 / 3) / 2, (4 / 6 + 2 / 4) / 2, 3 / 5)  # without class 2, which is nowhere
    assert scores(matrix)[:3] == pytest.approx(expected)
    assert scores(matrix).iou == pytest.approx((2 / 4, 1 / 3, 1))
    assert scores(np.zeros((3, 3), np.int64)) == (1, 1, 1, (1, 1, 1))
    assert str(scores(matrix)) == "mIoU 0.417"
    assert str(scores(matrix[:2, :2])) == "mIoU 0.417, object IoU 0.333"
    assert scores(matrix[:2, :2]).miou == pytest.approx((2 / 4 + 1 / 3) / 2), "the background is a class"


# --- sets ------------------------------------------------------------------------------------------------------------


def write(folder: Path, masks: list[np.ndarray]) -> None:
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    for number, mask in enumerate(masks):
        Image.fromarray(np.full((8, 6, 3), 40 * number, np.uint8)).save(folder / f"images/{number}.jpg")
        Image.fromarray(mask).save(folder / f"masks/{number}.png")


def mask(*numbers: int) -> np.ndarray:
    return np.resize(np.array(numbers, np.uint8), (8, 6))


def test_a_folder_with_numbers(tmp_path: Path) -> None:
    write(tmp_path, [mask(0, 2), mask(0, 1), mask(0), mask(255), mask(1)])
    data = sets.open_set(str(tmp_path))
    assert data.classes == ("background", "class 1", "class 2")
    assert (len(data.training), len(data.held_out)) == (4, 1)
    names = {pair[0].name for source in (data.training, data.held_out) for pair in source.pairs}
    assert names == {f"{number}.jpg" for number in range(5)}
    values, labels = data.training[0]
    assert (values.shape, labels.shape, values.dtype) == ((3, 8, 6), (8, 6), np.float32)
    assert sets.open_set(str(tmp_path), held_out_share=0.6, seed=1).held_out.pairs[:1] != data.held_out.pairs


def test_a_folder_with_black_and_white(tmp_path: Path) -> None:
    write(tmp_path, [mask(0, 255), mask(255), mask(0)])
    data = sets.open_set(str(tmp_path), classes=("sky", "bird"))
    assert data.classes == ("sky", "bird")
    labels = [source[index].labels for source in (data.training, data.held_out) for index in range(len(source))]
    assert set(np.unique(labels).tolist()) == {0, 1}


@pytest.mark.parametrize(("masks", "classes", "said"), [
    ([mask(0)], None, "expected at least 2 pictures in"),
    ([mask(0), mask(3)], ("a", "b"), "expected numbers below 2, the number of classes, got 3"),
    ([mask(0), mask(0)[:4]], None, r"expected the size of 1\.jpg, 6×8, got .*1\.png: 6×4"),
    ([mask(0), np.zeros((8, 6, 3), np.uint8)], None, "expected one channel with a class's number per pixel"),
    ([mask(0), np.full((8, 6), 300, np.uint16)], None, "expected numbers of classes from 0 to 254, got 0 to 300"),
])  # fmt: skip
def test_folders_that_are_wrong(tmp_path: Path, masks: list[np.ndarray], classes: Any, said: str) -> None:
    write(tmp_path, masks)
    with pytest.raises(ValueError, match=said):
        sets.open_set(str(tmp_path), classes)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"expected a folder with images/ and masks/, or one of coins, immuno.*images/"
    ):
        sets.open_set(str(tmp_path))
    write(tmp_path, [mask(0), mask(0)])
    (tmp_path / "masks/1.png").unlink()
    with pytest.raises(ValueError, match=r"expected a mask for each picture in .*, got none for 1\.jpg"):
        sets.open_set(str(tmp_path))


@pytest.mark.parametrize(("name", "shapes", "num_classes"), [
    ("coins", ((3, 303, 256), (3, 303, 128)), 2),
    ("immunohistochemistry", ((3, 512, 341), (3, 512, 171)), 3),
])  # fmt: skip
def test_photographs(name: str, shapes: tuple[Any, Any], num_classes: int) -> None:
    data = sets.open_set(name)
    assert len(data.classes) == num_classes
    for source, shape in zip((data.training, data.held_out), shapes, strict=True):
        values, labels = source[0]
        assert values.shape == shape
        shares = np.bincount(labels.ravel()) / labels.size
        assert len(shares) == num_classes
        assert shares.min() > 0.05
    assert sets.open_set(name, tuple("abc")[:num_classes]).classes == tuple("abc")[:num_classes]
    with pytest.raises(ValueError, match=f"expected {num_classes} names, got 4"):
        sets.open_set(name, tuple("abcd"))


# --- what is written -------------------------------------------------------------------------------------------------


def read_events(path: Path) -> list[tuple[int, str, float]]:
    """(step, tag, value) of each scalar, with every checksum tried."""
    content, found, position = path.read_bytes(), [], 0
    while position < len(content):
        (length,) = struct.unpack_from("<Q", content, position)
        event = content[position + 12 : position + 12 + length]
        assert content[position + 8 : position + 12] == events._masked_crc(content[position : position + 8])
        assert content[position + 12 + length : position + 16 + length] == events._masked_crc(event)
        position += 16 + length
        step, shift, place = 0, 0, 10
        while True:
            step |= (event[place] & 0x7F) << shift
            shift, place = shift + 7, place + 1
            if event[place - 1] < 0x80:
                break
        if event[place] == 0x2A:  # a summary: lengths of one byte, tag, value
            tag_length = event[place + 5]
            tag = event[place + 6 : place + 6 + tag_length].decode()
            (value,) = struct.unpack("<f", event[-4:])
            found.append((step, tag, value))
    return found


def test_events_can_be_read_and_dropped(tmp_path: Path) -> None:
    path = tmp_path / events.NAME
    file = events.EventFile(path)
    file.add("loss", 0.5, 1)
    size = file.flush()
    file.add("epoch/miou", 0.25, 300)
    file.close()
    assert read_events(path) == [(1, "loss", 0.5), (300, "epoch/miou", 0.25)]
    file = events.EventFile(path, size)
    file.add("loss", 2.0, 2)
    file.close()
    assert read_events(path) == [(1, "loss", 0.5), (2, "loss", 2.0)]


def test_tensorboard_reads_the_events(tmp_path: Path) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    file = events.EventFile(tmp_path / events.NAME)
    for step in range(200):
        file.add("loss", 1 / (step + 1), step)
    file.close()
    accumulator = accumulators.EventAccumulator(str(tmp_path))
    accumulator.Reload()
    assert [(scalar.step, scalar.value) for scalar in accumulator.Scalars("loss")] == [
        (step, np.float32(1 / (step + 1))) for step in range(200)
    ]


def test_the_curves_are_a_picture(tmp_path: Path) -> None:
    curves.save(tmp_path / "curves.png", [Epoch(1.0, 0.1, 0.5, 0.6, 0.7, ()), Epoch(0.5, 0.01, 0.6, 0.7, 0.8, ())])
    with Image.open(tmp_path / "curves.png") as image:
        image.load()
        assert image.size == (750, 300)
