"""A one-stage detector: anchors, box codes, focal and smooth L1 losses, and greedy non-maximum suppression."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def box_iou(a: Tensor, b: Tensor) -> Tensor:
    area_a = (a[:, 2] - a[:, 0]) * (a[:, 3] - a[:, 1])
    area_b = (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])
    lt = torch.max(a[:, None, :2], b[:, :2])
    rb = torch.min(a[:, None, 2:], b[:, 2:])
    wh = (rb - lt).clamp(min=0)
    inter = wh[:, :, 0] * wh[:, :, 1]
    return inter / (area_a[:, None] + area_b - inter)


def nms(boxes, scores, threshold):
    order, keep = scores.argsort(descending=True), []
    while order.numel() > 0:
        i = order[0].item()
        keep.append(i)
        order = order[1:][box_iou(boxes[i : i + 1], boxes[order[1:]])[0] <= threshold]
    return torch.as_tensor(keep, dtype=torch.int64, device=boxes.device)


def sigmoid_focal_loss(inputs, targets, alpha=0.25, gamma=2.0):
    p = torch.sigmoid(inputs)
    ce_loss = F.binary_cross_entropy_with_logits(inputs, targets, reduction="none")
    p_t = p * targets + (1 - p) * (1 - targets)
    return ((alpha * targets + (1 - alpha) * (1 - targets)) * ce_loss * ((1 - p_t) ** gamma)).sum()


torch.manual_seed(0)
backbone = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(), nn.Conv2d(8, 8, 3, 2, 1))
cls_head, reg_head = nn.Conv2d(8, 2, 1), nn.Conv2d(8, 4, 1)
torch.nn.init.constant_(cls_head.bias, -2.0)
params = [p for m in (backbone, cls_head, reg_head) for p in m.parameters() if p.requires_grad]
optimizer = torch.optim.SGD(params, lr=0.01, momentum=0.9, weight_decay=1e-4)
images, gt, labels = torch.rand(1, 3, 16, 16), torch.tensor([[2.0, 2, 9, 9], [8, 6, 15, 14]]), torch.tensor([0, 1])
shift = (torch.arange(0, 4) + 0.5) * 4
cy, cx = torch.meshgrid(shift, shift, indexing="ij")
anchors = torch.stack([cx - 3, cy - 3, cx + 3, cy + 3], dim=-1).reshape(-1, 4)
losses = []
for step in range(5):
    quality, matched = box_iou(gt, anchors).max(dim=0)
    positive = torch.nonzero(quality > 0.2).squeeze(1)
    features = backbone(images)
    logits, deltas = (h(features).permute(0, 2, 3, 1).flatten(1, 2)[0] for h in (cls_head, reg_head))
    targets = torch.zeros_like(logits)
    targets[positive, labels[matched[positive]]] = 1.0
    codes = (gt[matched[positive]] - anchors[positive]) / 6
    box_loss = F.smooth_l1_loss(deltas[positive], codes, beta=1 / 9, reduction="sum")
    loss = (sigmoid_focal_loss(logits, targets) + box_loss) / max(1, positive.numel())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
with torch.no_grad():
    scores, _ = logits.sigmoid().max(-1)
    losses += [float(i) for i in nms(anchors + deltas * 6, scores, 0.5)[:4]]
