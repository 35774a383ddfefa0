"""Draw the README's figure from the committed results.

python benchmarks/figures.py        docs/images/loops.svg, of results/bench_loop.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

HERE = Path(__file__).resolve().parent
RESULT = HERE / "results" / "bench_loop.json"
PICTURE = HERE.parent / "docs" / "images" / "loops.svg"

NETWORKS = {
    "resnet18": "ResNet-18", "resnet50": "ResNet-50", "resnet101": "ResNet-101", "resnext50": "ResNeXt-50",
    "vgg16_bn": "VGG16-BN", "mobilenet_v2": "MobileNetV2", "hrnet": "HRNet-W18-Small", "deeplabv3": "DeepLabV3",
    "unet": "U-Net",
}  # fmt: skip
THEIRS, OURS = "reduce-overhead", "genesis"
SIDES = {THEIRS: 'torch.compile(mode="reduce-overhead")', OURS: "genesis.torch.compile"}
WIDTH, ROW, BAR, BAR_X, BAR_WIDTH, TOP = 720, 38, 13, 140, 470, 62

STYLE = """
text { font: 14px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600 } .note { font-size: 12px; fill: #59636e } .bar { fill: #afb8c1 } .ours { fill: #1a7f37 }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .note { fill: #9198a1 } .bar { fill: #656c76 } .ours { fill: #3fb950 } }
"""


def bar_chart(result: dict[str, Any]) -> str:
    """Two horizontal bars per network, in milliseconds per training step, as an SVG document."""
    times: dict[str, dict[str, float]] = {}
    for row in result["rows"]:
        times.setdefault(row["case"], {})[row["side"]] = row["median_ms"]
    cases = {case.partition(",")[0]: case for case in times}
    longest = max(times[cases[name]][THEIRS] for name in NETWORKS)
    lines = ['<text class="title" x="0" y="18">Training loops as people write them: ms per step</text>']
    for index, (side, label) in enumerate(SIDES.items()):
        x = BAR_X + 270 * index
        lines += [
            f'<rect class="{_kind(side)}" x="{x}" y="34" width="{BAR}" height="{BAR}" rx="2"/>',
            f'<text class="note" x="{x + BAR + 6}" y="45">{escape(label)}</text>',
        ]
    for index, (name, label) in enumerate(NETWORKS.items()):
        top, by_side = TOP + index * ROW, times[cases[name]]
        size = cases[name].partition("batch ")[2].replace(", ", " × ")
        lines += [
            f'<text x="0" y="{top + BAR}">{escape(label)}</text>',
            f'<text class="note" x="0" y="{top + 2 * BAR + 2}">{escape(size)}</text>',
        ]
        for place, side in enumerate(SIDES):
            y, width = top + place * (BAR + 1), BAR_WIDTH * by_side[side] / longest
            speed = f" ({by_side[THEIRS] / by_side[OURS]:.2f}×)" if side == OURS else ""
            lines += [
                f'<rect class="{_kind(side)}" x="{BAR_X}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2"/>',
                f'<text class="note" x="{BAR_X + width + 6:.1f}" y="{y + 11}">{by_side[side]:.1f}{speed}</text>',
            ]
    height = TOP + len(NETWORKS) * ROW + 20
    versions = f"PyTorch {result['versions']['torch']}, {result['date']}"
    note = f"{result['machine']['gpu']}, bfloat16 autocast, channels_last, SGD; {versions}"
    lines.append(f'<text class="note" x="0" y="{height - 6}">{escape(note)}</text>')
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    header = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    return "\n".join([header, f"<style>{STYLE}</style>", *lines, "</svg>", ""])


def _kind(side: str) -> str:
    return "ours" if side == OURS else "bar"


def main() -> None:
    PICTURE.write_text(bar_chart(json.loads(RESULT.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
