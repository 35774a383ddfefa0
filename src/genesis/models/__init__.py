"""Networks, a file each, known by name: `genesis.models.create("unet")`."""

from genesis.models.deeplabv3 import DeepLabV3 as DeepLabV3
from genesis.models.deeplabv3 import deeplabv3_resnet50 as deeplabv3_resnet50
from genesis.models.fcn import FCN as FCN
from genesis.models.fcn import fcn_resnet50 as fcn_resnet50
from genesis.models.fused_sequential import FusedSequential as FusedSequential
from genesis.models.registry import create as create
from genesis.models.registry import names as names
from genesis.models.registry import register as register
from genesis.models.resnet import ResNet as ResNet
from genesis.models.resnet import resnet18 as resnet18
from genesis.models.resnet import resnet34 as resnet34
from genesis.models.resnet import resnet50 as resnet50
from genesis.models.resnet import resnet101 as resnet101
from genesis.models.segmentation import SegmentationModel as SegmentationModel
from genesis.models.unet import UNet as UNet
from genesis.models.unet import unet as unet
from genesis.models.vgg import VGG as VGG
from genesis.models.vgg import vgg16_bn as vgg16_bn
