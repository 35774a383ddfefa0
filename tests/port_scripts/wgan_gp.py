"""WGAN-GP: the critic's gradient at points between real and fake samples is held near length 1."""

import torch
import torch.autograd as autograd
import torch.nn as nn
from torch.autograd import Variable


class Critic(nn.Module):
    def __init__(self):
        super(Critic, self).__init__()
        self.model = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.InstanceNorm2d(8, affine=True), nn.LeakyReLU(0.2, inplace=True)
        )
        self.out = nn.Linear(8 * 4 * 4, 1)

    def forward(self, img):
        return self.out(self.model(img).view(img.shape[0], -1))


def compute_gradient_penalty(D, real_samples, fake_samples):
    alpha = torch.rand(real_samples.size(0), 1, 1, 1, device=real_samples.device)
    interpolates = (alpha * real_samples + ((1 - alpha) * fake_samples)).requires_grad_(True)
    d_interpolates = D(interpolates)
    fake = Variable(torch.Tensor(real_samples.shape[0], 1).fill_(1.0), requires_grad=False)
    gradients = autograd.grad(
        outputs=d_interpolates,
        inputs=interpolates,
        grad_outputs=fake,
        create_graph=True,
        retain_graph=True,
        only_inputs=True,
    )[0]
    gradients = gradients.view(gradients.size(0), -1)
    return ((gradients.norm(2, dim=1) - 1) ** 2).mean()


torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32, 0.8), nn.ReLU(True), nn.Linear(32, 64), nn.Tanh())
critic = Critic()
optimizer_G = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.0, 0.9))
optimizer_D = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))
losses = []
for i in range(6):
    real_imgs = Variable(torch.FloatTensor(8, 1, 8, 8).uniform_(-1, 1))
    fake_imgs = generator(torch.randn(8, 6)).view(-1, 1, 8, 8)
    optimizer_D.zero_grad()
    penalty = compute_gradient_penalty(critic, real_imgs.data, fake_imgs.data)
    d_loss = -torch.mean(critic(real_imgs)) + torch.mean(critic(fake_imgs.detach())) + 10 * penalty
    d_loss.backward()
    optimizer_D.step()
    optimizer_G.zero_grad()
    g_loss = -torch.mean(critic(fake_imgs))
    g_loss.backward()
    optimizer_G.step()
    losses += [d_loss.item(), g_loss.item()]
