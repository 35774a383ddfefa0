"""Draw the README's figure from the committed results.

python benchmarks/figures.py        docs/images/resnet50.svg, of results/bench_torch_resnet50.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

HERE = Path(__file__).resolve().parent
RESULT = HERE / "results" / "bench_torch_resnet50.json"
PICTURE = HERE.parent / "docs" / "images" / "resnet50.svg"

LABELS = {
    "torch": "PyTorch, eager",
    "compile default": "torch.compile",
    "compile max-autotune-no-cudagraphs": "torch.compile, max-autotune",
    "genesis": "genesis.torch.fuse",
}
WIDTH, ROW, BAR_X, BAR_WIDTH = 720, 34, 230, 390

STYLE = """
text { font: 15px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600 } .note { font-size: 12px; fill: #59636e } .bar { fill: #afb8c1 } .ours { fill: #1a7f37 }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .note { fill: #9198a1 } .bar { fill: #656c76 } .ours { fill: #3fb950 } }
"""


def bar_chart(result: dict[str, Any]) -> str:
    """A horizontal bar per side, in milliseconds per training step, as an SVG document."""
    times = {row["side"]: row["median_ms"] for row in result["rows"]}
    reference = times["torch"]
    lines = [f'<text class="title" x="0" y="18">{escape(result["rows"][0]["case"])}: ms per step</text>']
    for index, (side, label) in enumerate(LABELS.items()):
        top = 34 + index * ROW
        width = BAR_WIDTH * times[side] / reference
        kind = "ours" if side == "genesis" else "bar"
        speed = f" ({reference / times[side]:.2f}×)" if side != "torch" else ""
        lines += [
            f'<text x="0" y="{top + 17}">{escape(label)}</text>',
            f'<rect class="{kind}" x="{BAR_X}" y="{top}" width="{width:.1f}" height="24" rx="3"/>',
            f'<text x="{BAR_X + width + 8:.1f}" y="{top + 17}">{times[side]:.1f}{speed}</text>',
        ]
    height = 34 + len(LABELS) * ROW + 24
    versions = f"PyTorch {result['versions']['torch']}, {result['date']}"
    note = f"{result['machine']['gpu']}, bfloat16 autocast, channels_last, every side in a CUDA graph; {versions}"
    lines.append(f'<text class="note" x="0" y="{height - 8}">{escape(note)}</text>')
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    header = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    return "\n".join([header, f"<style>{STYLE}</style>", *lines, "</svg>", ""])


def main() -> None:
    PICTURE.write_text(bar_chart(json.loads(RESULT.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
