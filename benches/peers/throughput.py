"""How many images a second other loaders deliver: the same files, transforms and batches as
`throughput` (benches/src/bin/throughput.rs), by NVIDIA DALI's CPU pipeline or torchvision.

    throughput.py --root DIR --task train|eval --peer dali|pil|tensor|webdataset|grain [--workers 2]
        [--batch-size 128] [--epochs 3]

Prints the images a second of each epoch, as JSON. The first epoch includes the start of the workers
and is told apart. `pil` and `tensor` are torchvision's transforms on Pillow images and on tensors, in
PyTorch's DataLoader with forked workers; `webdataset` reads the images from tar files into the same, which
are made first, and how long that takes is told too; `grain` maps the transforms on Pillow images over
its own worker processes.
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


class Load:
    """Reads and transforms a sample of grain's."""

    def __init__(self, args):
        self.args, self.transform = args, None

    def __call__(self, sample):
        from PIL import Image

        self.transform = self.transform or transforms(self.args)
        path, label = sample
        return self.transform(Image.open(path).convert("RGB")).numpy(), label


PEERS = {"dali": dali, "pil": torchvision, "tensor": torchvision, "webdataset": webdataset, "grain": grain}


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
