"""Measures throughput of ours and of others on the same files, in turns, for `scripts/bench`.

    side_by_side.py --root DIR --program THROUGHPUT --rust-peers PROGRAM --out FILE [--rounds 3] [--epochs 3]

Each round runs every contender once, forwards and backwards in turns, so that all share the machine's
good and bad moments. Writes one object a contender, with the numbers of all its runs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

PEERS = {
    "dali": "NVIDIA DALI, CPU pipeline",
    "spdl": "SPDL, FFmpeg in threads",
    "tensor": "torchvision on tensors, PyTorch",
    "pil": "torchvision on Pillow images, PyTorch",
    "webdataset": "WebDataset, Pillow images",
    "grain": "Grain, Pillow images",
    "ffcv": "FFCV, its own file",
}
RUST_PEERS = {
    "burn": "burn's ImageFolderDataset and DataLoader",
    "dataloader-rs": "dataloader-rs",
    "ai-dataloader": "ai-dataloader",
    "tch": "tch's load_image_and_resize224, one thread",
}
OURS = ["threads:2", "processes:2", "subprocess:2"]


def ours(args, task, workers):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        subprocess.run([args.program, "--root", args.root, "--task", task, "--workers", workers, "--epochs",
                        str(args.epochs + 1), "--json", out.name], check=True, stdout=subprocess.DEVNULL)
        with open(out.name) as file:
            [told] = json.load(file)
    [run] = told.pop("runs")
    told["command"] = told["command"].removesuffix(f" --json {out.name}")
    # As the peers do, which tell the first epoch apart.
    run["first"], *run["images_per_second"] = run["images_per_second"]
    return told, run


def theirs(args, task, peer):
    program = [sys.executable, os.path.join(os.path.dirname(__file__), "peers", "throughput.py")]
    if peer in RUST_PEERS:
        program = [args.rust_peers]
    command = [*program, "--root", args.root, "--task", task, "--peer", peer, "--epochs",
               str(args.epochs)]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    run = json.loads(out.stdout.strip().splitlines()[-1])
    told = {"benchmark": "throughput", "name": f"{task} {peer}", "task": task, "command": " ".join(command)}
    return told, run


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", required=True)
    parser.add_argument("--program", required=True)
    parser.add_argument("--rust-peers", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    contenders = [(task, run, who) for task in ("train", "eval")
                  for run, all_of in ((ours, OURS), (theirs, PEERS), (theirs, RUST_PEERS)) for who in all_of
                  # tch has nothing random.
                  if (task, who) != ("train", "tch")]
    results = {}
    for round_ in range(args.rounds):
        for task, run, who in contenders if round_ % 2 == 0 else reversed(contenders):
            told, result = run(args, task, who)
            entry = results.setdefault((task, who), {**told, "who": (PEERS | RUST_PEERS).get(who, who), "runs": []})
            entry["runs"].append(result)
        print(f"round {round_ + 1} of {args.rounds}", file=sys.stderr)
    with open(args.out, "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(entry) for entry in results.values()) + "\n]\n")


if __name__ == "__main__":
    main()
