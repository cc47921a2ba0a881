"""How many images a second other loaders deliver: the same files, transforms and batches as
`throughput` (benches/src/bin/throughput.rs), by NVIDIA DALI's CPU pipeline, SPDL or torchvision.

    throughput.py --root DIR --task train|eval --peer dali|spdl|pil|tensor|webdataset|grain|ffcv
        [--workers 2] [--batch-size 128] [--epochs 3]

Prints the images a second of each epoch, as JSON. The first epoch includes the start of the workers
and is told apart. `pil` and `tensor` are torchvision's transforms on Pillow images and on tensors, in
PyTorch's DataLoader with forked workers; `webdataset` reads the images from tar files into the same, which
are made first, and how long that takes is told too; `grain` maps the transforms on Pillow images over
its own worker processes. `spdl` decodes, crops and scales in threads by FFmpeg's libraries, which have to
be installed, and leaves the rest to PyTorch. `ffcv` writes one file of its own first, whose time is told as well, with
the images as JPEG anew.
"""

import argparse
import itertools
import json
import os
import tempfile
import time

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def dali(args):
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=args.batch_size, num_threads=args.workers, device_id=None)
    def pipeline():
        files, labels = fn.readers.file(file_root=args.root, random_shuffle=True, name="files")
        if args.task == "train":
            images = fn.decoders.image_random_crop(files, device="cpu", output_type=types.RGB)
            images = fn.resize(images, resize_x=224, resize_y=224)
            mirror = fn.random.coin_flip(probability=0.5)
        else:
            images = fn.decoders.image(files, device="cpu", output_type=types.RGB)
            images = fn.resize(images, resize_shorter=256)
            mirror = 0
        images = fn.crop_mirror_normalize(
            images, dtype=types.FLOAT, output_layout="CHW", crop=(224, 224), mirror=mirror,
            mean=[255 * m for m in MEAN], std=[255 * s for s in STD])
        return images, labels

    pipe = pipeline()
    pipe.build()
    batches = pipe.epoch_size("files") // args.batch_size

    def epoch():
        for _ in range(batches):
            images, _ = pipe.run()
            yield len(images)

    return epoch


def spdl(args):
    import random

    import spdl.io
    import torch
    from spdl.pipeline import PipelineBuilder
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    torch.set_num_threads(1)
    samples = ImageFolder(args.root).samples
    mean, std = (255 * torch.tensor(of).view(1, 3, 1, 1) for of in (MEAN, STD))

    def decode(sample):
        path, label = sample
        packets = spdl.io.demux_image(path)
        if args.task == "train":
            size = torch.empty((3, packets.height, packets.width), device="meta")
            top, left, height, width = v2.RandomResizedCrop(224).make_params([size]).values()
            steps = f"crop={width}:{height}:{left}:{top}:exact=1,scale=224:224:flags=bilinear"
            steps += ",hflip" if random.random() < 0.5 else ""
        else:
            steps = "scale='if(gt(iw,ih),-1,256)':'if(gt(iw,ih),256,-1)':flags=bilinear,crop=224:224"
        return spdl.io.decode_packets(packets, filter_desc=f"{steps},format=rgb24"), label

    def stack(decoded):
        images = spdl.io.to_torch(spdl.io.convert_frames([frames for frames, _ in decoded]))
        images = images.permute(0, 3, 1, 2).to(torch.float32).sub_(mean).div_(std)
        return images.contiguous(), torch.tensor([label for _, label in decoded])

    def epoch():
        builder = PipelineBuilder().add_source(random.sample(samples, len(samples)))
        builder = builder.pipe(decode, concurrency=args.workers).aggregate(args.batch_size)
        pipeline = builder.pipe(stack).add_sink(2).build(num_threads=args.workers)
        with pipeline.auto_stop():
            for images, _ in pipeline:
                yield len(images)

    return epoch


def transforms(args):
    import torch
    from torchvision.transforms import v2

    torch.set_num_threads(1)
    size = [v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()]
    if args.task == "eval":
        size = [v2.Resize(256, antialias=True), v2.CenterCrop(224)]
    to = [] if args.peer == "tensor" else [v2.ToImage()]
    return v2.Compose(size + to + [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])


def torchvision(args):
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder
    from torchvision.io import ImageReadMode, decode_image

    transform = transforms(args)

    def read(path):
        return decode_image(path, mode=ImageReadMode.RGB)

    kinds = {} if args.peer == "pil" else {"loader": read}
    data = ImageFolder(args.root, transform, **kinds)
    loader = DataLoader(data, args.batch_size, shuffle=True, num_workers=args.workers,
                        persistent_workers=True, multiprocessing_context="fork")
    return lambda: (len(images) for images, _ in loader)


def webdataset(args):
    import webdataset
    from torchvision.datasets import ImageFolder

    samples = ImageFolder(args.root).samples
    begun = time.perf_counter()
    shards = []
    size = -(-len(samples) // 8)
    for first in range(0, len(samples), size):
        shards.append(os.path.join(args.scratch, f"{first}.tar"))
        with webdataset.TarWriter(shards[-1]) as out:
            for index, (path, label) in enumerate(samples[first:first + size], first):
                with open(path, "rb") as file:
                    out.write({"__key__": f"{index:08}", "jpg": file.read(), "cls": label})
    args.conversion = time.perf_counter() - begun
    transform = transforms(args)
    data = (webdataset.WebDataset(shards, shardshuffle=len(shards), workersplitter=webdataset.split_by_worker)
            .shuffle(1000).decode("pilrgb").to_tuple("jpg", "cls").map_tuple(transform, lambda label: label)
            .batched(args.batch_size))
    loader = webdataset.WebLoader(data, batch_size=None, num_workers=args.workers, persistent_workers=True,
                                  multiprocessing_context="fork")
    return lambda: (len(images) for images, _ in loader)


def grain(args):
    # Its worker processes import this program anew, so what they run is at its top.
    import grain.python as grain
    from torchvision.datasets import ImageFolder

    samples = ImageFolder(args.root).samples
    # One iterator, since its worker processes end with it.
    data = grain.MapDataset.source(samples).shuffle(seed=0).repeat(args.epochs + 1).map(Load(args))
    data = data.batch(args.batch_size).to_iter_dataset()
    data = iter(data.mp_prefetch(grain.MultiprocessingOptions(num_workers=args.workers)))
    batches = len(samples) // args.batch_size
    return lambda: (len(images) for images, _ in itertools.islice(data, batches))


def ffcv(args):
    import numpy
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.rgb_image import CenterCropRGBImageDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.fields.basics import IntDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, ToTensor, ToTorchImage
    from ffcv.writer import DatasetWriter
    from torchvision.datasets import ImageFolder

    begun = time.perf_counter()
    file = os.path.join(args.scratch, "data.beton")
    # The files' pixels at their own sizes, as JPEG again.
    fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=90), "label": IntField()}
    DatasetWriter(file, fields, num_workers=args.workers).from_indexed_dataset(ImageFolder(args.root))
    args.conversion = time.perf_counter() - begun
    image = [CenterCropRGBImageDecoder((224, 224), ratio=224 / 256)]
    if args.task == "train":
        image = [RandomResizedCropRGBImageDecoder((224, 224)), RandomHorizontalFlip()]
    mean, std = (255 * numpy.array(of) for of in (MEAN, STD))
    image += [NormalizeImage(mean, std, numpy.float32), ToTensor(), ToTorchImage()]
    loader = Loader(file, args.batch_size, num_workers=args.workers, order=OrderOption.RANDOM,
                    pipelines={"image": image, "label": [IntDecoder(), ToTensor()]})
    return lambda: (len(images) for images, _ in loader)


class Load:
    """Reads and transforms a sample of grain's."""

    def __init__(self, args):
        self.args, self.transform = args, None

    def __call__(self, sample):
        from PIL import Image

        self.transform = self.transform or transforms(self.args)
        path, label = sample
        return self.transform(Image.open(path).convert("RGB")).numpy(), label


PEERS = {"dali": dali, "spdl": spdl, "pil": torchvision, "tensor": torchvision, "webdataset": webdataset,
         "grain": grain, "ffcv": ffcv}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", required=True)
    parser.add_argument("--task", choices=["train", "eval"], default="train")
    parser.add_argument("--peer", choices=PEERS, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    args.conversion = None
    with tempfile.TemporaryDirectory() as args.scratch:
        measure(args)


def measure(args):
    epoch = PEERS[args.peer](args)
    rates = []
    for _ in range(args.epochs + 1):
        begun = time.perf_counter()
        images = sum(epoch())
        rates.append(images / (time.perf_counter() - begun))
    print(json.dumps({"peer": args.peer, "task": args.task, "first": rates[0],
                      "images_per_second": rates[1:], "cpus": os.cpu_count(),
                      "conversion_seconds": args.conversion}))


if __name__ == "__main__":
    main()
