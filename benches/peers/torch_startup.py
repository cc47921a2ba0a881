"""Measures how PyTorch's DataLoader starts, for `startup`.

    torch_startup.py --root FOLDER | --strings BYTES

Reads lines such as `fork 8` (how workers are started, and how many) and answers each with one line of
JSON in the form of the Rust program's own runs. A sample looks up its path and gives its label; no file
is read. The list of samples is made as torchvision's ImageFolder makes it.
"""

import argparse
import json
import os
import sys
import time

import torch
import torch.utils.data

STRING_BYTES = 64
CLASSES = 1000
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


class Samples(torch.utils.data.Dataset):
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, label = self.samples[index]
        return label


def list_tree(root):
    samples = []
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    for label, name in enumerate(classes):
        for folder, _, files in sorted(os.walk(os.path.join(root, name), followlinks=True)):
            for file in sorted(files):
                path = os.path.join(folder, file)
                if path.lower().endswith(EXTENSIONS):
                    samples.append((path, label))
    return samples


def make_strings(total):
    count = total // STRING_BYTES
    # Any odd factor gives names without a pattern that are all different.
    factor = 0x9E3779B97F4A7C15F39CC0605CEDC8341082276BF3A27 | 1
    samples = []
    for i in range(count):
        label = i * CLASSES // count
        name = (i * factor) % (1 << 172)
        samples.append((f"train/n{label:08}/{name:043x}.JPEG", label))
    return samples


def memory(pid):
    sums = {"Rss": 0, "Pss": 0, "Private": 0}
    with open(f"/proc/{pid}/smaps_rollup") as lines:
        for line in lines:
            name = line.split(":")[0].split("_")[0]
            if name in sums and line.split(":")[0] in ("Rss", "Pss", "Private_Clean", "Private_Dirty"):
                sums[name] += int(line.split()[1])
    return {"rss": sums["Rss"], "pss": sums["Pss"], "uss": sums["Private"]}


def measure(samples, method, workers):
    begin = time.perf_counter()
    loader = torch.utils.data.DataLoader(
        Samples(samples), batch_size=1, num_workers=workers, multiprocessing_context=method
    )
    built = time.perf_counter()
    batches = iter(loader)
    next(batches)
    first = time.perf_counter()
    # The batches come from the workers in turn.
    for _ in range(workers - 1):
        next(batches)
    every = time.perf_counter()
    time.sleep(0.15)
    run = {
        "seconds": {
            "build": built - begin,
            "first": first - built,
            "start": first - begin,
            "every": every - begin,
        },
        "program": memory(os.getpid()),
        "workers": [memory(worker.pid) for worker in batches._workers],
        "load": os.getloadavg()[0],
    }
    batches._shutdown_workers()
    return run


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root")
    parser.add_argument("--strings", type=int)
    args = parser.parse_args()
    begin = time.perf_counter()
    samples = list_tree(args.root) if args.root else make_strings(args.strings)
    listed = time.perf_counter() - begin
    hello = {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "entries": len(samples),
        "seconds_for_the_list": listed,
    }
    print(json.dumps(hello), flush=True)
    for line in sys.stdin:
        method, workers = line.split()
        print(json.dumps(measure(samples, method, int(workers))), flush=True)


if __name__ == "__main__":
    main()
