"""How many images a second one core shrinks to an eighth with libjpeg-turbo's scaled decoding, by Pillow:
the cost of entropy decoding and little else.

    entropy_floor.py --root DIR [--images 500] [--rounds 5]
"""

import argparse
import io
import json
import pathlib
import time

from PIL import Image


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    paths = sorted(path for path in args.root.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    files = [path.read_bytes() for path in paths[:args.images]]
    rates = []
    for _ in range(args.rounds):
        begun = time.perf_counter()
        for file in files:
            image = Image.open(io.BytesIO(file))
            image.draft("RGB", (image.size[0] // 8, image.size[1] // 8))
            image.load()
        rates.append(len(files) / (time.perf_counter() - begun))
    print(json.dumps([{"benchmark": "floor", "name": "libjpeg-turbo at 1/8", "images_per_second": rates}]))


if __name__ == "__main__":
    main()
