"""Networks, a file each, known by name: `genesis.models.create("unet")`."""

from genesis.models.registry import create as create
from genesis.models.registry import names as names
from genesis.models.registry import register as register
from genesis.models.resnet import ResNet as ResNet
from genesis.models.resnet import resnet18 as resnet18
from genesis.models.resnet import resnet34 as resnet34
from genesis.models.resnet import resnet50 as resnet50
from genesis.models.resnet import resnet101 as resnet101
from genesis.models.unet import UNet as UNet
from genesis.models.unet import unet as unet
