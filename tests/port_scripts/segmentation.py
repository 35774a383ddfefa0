"""A U-Net on images and masks: up-sampling, skip connections, Dice and cross entropy, IoU by a confusion matrix."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class DoubleConv(nn.Sequential):
    def __init__(self, cin, cout):
        super().__init__()
        for i, c in enumerate((cin, cout)):
            self.add_module(f"conv{i}", nn.Conv2d(c, cout, kernel_size=3, padding=1, bias=False))
            self.add_module(f"bn{i}", nn.BatchNorm2d(cout))
            self.add_module(f"relu{i}", nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.inc, self.down, self.pool = DoubleConv(3, 8), DoubleConv(8, 16), nn.MaxPool2d(2)
        self.up, self.conv = nn.ConvTranspose2d(16, 8, kernel_size=2, stride=2), DoubleConv(16, 8)
        self.outc = nn.Conv2d(8, classes, kernel_size=1)

    def forward(self, x):
        x1 = self.inc(x)
        up = self.up(self.down(self.pool(x1)))
        dy, dx = x1.size()[2] - up.size()[2], x1.size()[3] - up.size()[3]
        up = F.pad(up, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return self.outc(self.conv(torch.cat([x1, up], dim=1)))


class Shapes(Dataset):
    def __init__(self):
        self.images = np.random.RandomState(0).rand(6, 9, 9, 3).astype(np.float32)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image = torch.from_numpy(self.images[i]).permute(2, 0, 1).contiguous()
        return image, torch.as_tensor((self.images[i].sum(-1) * 0.99).astype(np.int64)).long()


def dice_loss(logits, target, smooth=1.0):
    probs, hot = F.softmax(logits, dim=1).float(), F.one_hot(target, 3).permute(0, 3, 1, 2).float()
    inter = (probs * hot).sum(dim=(2, 3))
    return 1 - ((2.0 * inter + smooth) / (probs.sum((2, 3)) + hot.sum((2, 3)) + smooth)).mean()


torch.manual_seed(0)
model, losses = UNet().to(memory_format=torch.channels_last), []
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, weight_decay=1e-8, momentum=0.9, foreach=True)
for image, mask in DataLoader(Shapes(), batch_size=2, shuffle=False, drop_last=True, num_workers=0):
    logits = model(image.to(memory_format=torch.channels_last))
    loss = F.cross_entropy(logits, mask) + dice_loss(logits, mask)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)
    optimizer.step()
    confusion = torch.bincount(3 * mask.view(-1) + logits.argmax(1).view(-1), minlength=9).reshape(3, 3)
    iou = confusion.diag().float() / (confusion.sum(0) + confusion.sum(1) - confusion.diag()).clamp(min=1)
    losses += [loss.item(), logits.detach().abs().mean().cpu().numpy().item(), iou.mean().item()]
