"""Makes the expectations that the image tests compare with, by Pillow and torchvision.

    python generate.py

writes cases.json, cases.bin, draws.json and files/ beside itself. Inputs come from `level`, an
integer formula that the tests compute too, or are the small files in files/.
"""

import io
import json
import math
import pathlib
import random

import numpy as np
import PIL
import torch
import torchvision
from PIL import Image, ImageEnhance
from torchvision import transforms as T
from torchvision.transforms import functional as F

HERE = pathlib.Path(__file__).parent
FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
MODES = {name: T.InterpolationMode(name) for name in FILTERS}


def level(x, y, c, seed):
    h = (x * 73856093) ^ (y * 19349663) ^ (c * 83492791) ^ (seed * 2654435761)
    h &= 0xFFFFFFFF
    h ^= h >> 13
    h = h * 0x5BD1E995 & 0xFFFFFFFF
    h ^= h >> 15
    return (x * 5 + y * 3 + c * 40) % 192 + (h & 63)


def picture(width, height, seed):
    data = bytes(level(x, y, c, seed) for y in range(height) for x in range(width) for c in range(3))
    return Image.frombytes("RGB", (width, height), data)


blob = bytearray()
cases = []


def case(kind, name, size, seed, what, result):
    """`what` is a list of steps or operations; `result` an image or an array of float32."""
    data = result.tobytes()
    shape = [result.height, result.width] if isinstance(result, Image.Image) else list(result.shape)
    cases.append(
        dict(kind=kind, name=name, size=size, seed=seed, what=what, shape=shape, at=len(blob), bytes=len(data))
    )
    blob.extend(data)


def steps():
    rng = random.Random(5)
    for number in range(160):
        name = list(FILTERS)[number % 4]
        w, h = rng.randint(1, 90), rng.randint(1, 90)
        seed = number
        image = picture(w, h, seed)
        what = []
        if number % 3:
            cw, ch = rng.randint(1, w), rng.randint(1, h)
            x, y = rng.randint(0, w - cw), rng.randint(0, h - ch)
            what.append({"Crop": dict(x=x, y=y, width=cw, height=ch)})
            image = image.crop((x, y, x + cw, y + ch))
        to = rng.randint(1, 20), rng.randint(1, 20)
        what.append({"Resize": [*to, name]})
        image = image.resize(to, FILTERS[name])
        if number % 5 == 0:
            # A crop behind a resize: only the window is computed.
            cw, ch = rng.randint(1, to[0]), rng.randint(1, to[1])
            x, y = rng.randint(0, to[0] - cw), rng.randint(0, to[1] - ch)
            what.append({"Crop": dict(x=x, y=y, width=cw, height=ch)})
            image = image.crop((x, y, x + cw, y + ch))
        case("steps", f"resize {name}", [w, h], seed, what, image)
    # As large as in training, few.
    for number, name in enumerate(["bilinear", "bicubic", "lanczos"]):
        w, h = [(500, 375), (333, 500), (300, 300)][number]
        box = [(37, 11, 410, 300), (0, 120, 200, 380), (10, 20, 60, 70)][number]
        image = picture(w, h, number).crop(box).resize((56, 56), FILTERS[name])
        crop = dict(x=box[0], y=box[1], width=box[2] - box[0], height=box[3] - box[1])
        case("steps", f"resize {name}", [w, h], number, [{"Crop": crop}, {"Resize": [56, 56, name]}], image)
    # Flips before a crop, a resize and padding.
    image = picture(40, 31, 7)
    mirrored = F.vflip(F.hflip(image))
    crop = dict(x=3, y=5, width=20, height=17)
    part = mirrored.crop((3, 5, 23, 22))
    flips = ["FlipHorizontal", "FlipVertical", {"Crop": crop}]
    case("steps", "flips", [40, 31], 7, flips, part)
    case("steps", "flips", [40, 31], 7, flips + ["FlipHorizontal"], F.hflip(part))
    padded = F.pad(F.hflip(image), [1, 2, 3, 4], fill=(9, 8, 7))
    case("steps", "pad", [40, 31], 7, ["FlipHorizontal", {"Pad": [[1, 2, 3, 4], [9, 8, 7]]}], padded)


def colors():
    image = picture(24, 20, 3)
    for factor in [0.0, 0.3, 0.77, 1.0, 1.4, 2.5]:
        for step, change in [
            ("Brightness", F.adjust_brightness),
            ("Contrast", F.adjust_contrast),
            ("Saturation", F.adjust_saturation),
        ]:
            case("steps", step, [24, 20], 3, [{step: factor}], change(image, factor))
    for factor in [-0.5, -0.31, -0.02, 0.0, 0.1, 0.25, 0.5]:
        case("steps", "Hue", [24, 20], 3, [{"Hue": factor}], F.adjust_hue(image, factor))
    both = F.adjust_hue(F.adjust_contrast(F.adjust_brightness(image, 1.3), 0.6), 0.07)
    case("steps", "jitter", [24, 20], 3, [{"Brightness": 1.3}, {"Contrast": 0.6}, {"Hue": 0.07}], both)
    case("steps", "Grayscale", [24, 20], 3, ["Grayscale"], F.to_grayscale(image, 3))


def operations():
    def op(name, size, what, transform):
        case("ops", name, size, 11, what, transform(picture(*size, 11)))

    def smaller(size, max_size, name):
        to = {"SmallerEdge": dict(size=size, max_size=max_size)}
        return {"Resize": dict(to=to, interpolation=name)}

    for size in [[40, 31], [17, 50], [5, 3]]:
        for edge, most in [(15, None), (15, 22), (7, 8)]:
            # The tests fix the size by a crop of the same size, as the result must have one.
            resize = T.Resize(edge, max_size=most)
            w, h = resize(picture(*size, 11)).size
            what = [smaller(edge, most, "bilinear"), {"CenterCrop": dict(height=h, width=w)}]
            op("Resize", size, what, resize)
        for h, w in [(9, 12), (12, 9), (24, 33)]:
            op("CenterCrop", size, [{"CenterCrop": dict(height=h, width=w)}], T.CenterCrop((h, w)))
    for size in [[60, 45]]:
        for name in FILTERS:
            what = [smaller(32, None, name), {"CenterCrop": dict(height=28, width=28)}]
            op("eval", size, what, T.Compose([T.Resize(32, interpolation=MODES[name]), T.CenterCrop(28)]))
    # Cropping to the padded size leaves nothing to chance.
    crop = dict(height=26, width=34, padding=[3, 1, 2, 4], pad_if_needed=False, fill=[200, 100, 50])
    op("RandomCrop", [29, 21], [{"RandomCrop": crop}], T.RandomCrop((26, 34), padding=(3, 1, 2, 4), fill=(200, 100, 50)))


def values():
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    image = picture(13, 9, 2)
    tensor = T.ToTensor()(image)
    case("values", "ToTensor", [13, 9], 2, [], tensor.numpy())
    normal = T.Normalize(mean, std)(tensor)
    case("values", "Normalize", [13, 9], 2, [{"Normalize": dict(mean=mean, std=std)}], normal.numpy())
    gray = T.Normalize([0.4], [0.3])(T.ToTensor()(F.to_grayscale(image, 1)))
    what = [{"Grayscale": dict(channels=1)}, {"Normalize": dict(mean=[0.4], std=[0.3])}]
    case("values", "Grayscale", [13, 9], 2, what, gray.numpy())
    erased = F.erase(normal, 2, 3, 4, 6, torch.tensor([0.5, -1.0, 2.0])[:, None, None])
    case("erase", "erase", [13, 9], 2, [2, 3, 4, 6], erased.numpy())


def files():
    folder = HERE / "files"
    folder.mkdir(exist_ok=True)
    w, h = 25, 19
    rgb = picture(w, h, 21)
    smooth = rgb.resize((9, 7), Image.Resampling.BOX).resize((w, h), Image.Resampling.BICUBIC)
    gray = rgb.convert("L")
    alpha = rgb.copy()
    alpha.putalpha(gray)
    deep = np.array(gray).astype(np.uint16) * 256 + 77

    def save(name, image, **options):
        out = io.BytesIO()
        image.save(out, **options)
        store(name, out.getvalue())

    def store(name, data, result=None):
        (folder / name).write_bytes(data)
        if result is None:
            image = Image.open(io.BytesIO(data))
            result = image.convert("RGB")
        case("file", name, [w, h], 0, [], result)

    save("gray.jpg", smooth.convert("L"), format="JPEG", quality=90)
    for name, sampling in [("444", 0), ("422", 1), ("420", 2)]:
        save(f"ycc{name}.jpg", smooth, format="JPEG", quality=90, subsampling=sampling)
    save("progressive.jpg", smooth, format="JPEG", quality=85, progressive=True)
    save("restart.jpg", smooth, format="JPEG", quality=85, restart_marker_blocks=2)
    save("rgb.jpg", smooth, format="JPEG", quality=92, keep_rgb=True)
    save("cmyk.jpg", smooth.convert("CMYK"), format="JPEG", quality=92)
    save("rgb.png", rgb, format="PNG")
    save("rgba.png", alpha, format="PNG")
    save("gray.png", gray, format="PNG")
    save("gray_alpha.png", alpha.convert("LA"), format="PNG")
    save("gray1.png", gray.convert("1"), format="PNG")
    palette = smooth.quantize(13)
    save("palette4.png", palette, format="PNG", bits=4)
    save("palette8.png", smooth.quantize(200), format="PNG")
    save("palette_transparent.png", palette, format="PNG", transparency=bytes(range(0, 260, 20)))
    # Pillow clips or shifts 16-bit gray depending on its version; the rule here is the upper byte.
    out = io.BytesIO()
    Image.fromarray(deep).save(out, format="PNG")
    store("gray16.png", out.getvalue(), gray.convert("RGB"))
    save("palette.gif", palette, format="GIF")
    save("rgb.bmp", rgb, format="BMP")
    save("palette.bmp", palette, format="BMP")
    save("rgb.tif", rgb, format="TIFF", compression="tiff_lzw")
    save("gray.tif", gray, format="TIFF")
    save("lossless.webp", rgb, format="WEBP", lossless=True)
    save("lossy.webp", smooth, format="WEBP", quality=90)
    save("rgb.ppm", rgb, format="PPM")
    save("gray.pgm", gray, format="PPM")


def draws():
    """Empirical distribution functions, as pairs of a value and the share of draws up to it."""
    torch.manual_seed(1)
    n = 60_000
    out = {}

    def add(name, values):
        values = np.sort(np.array(values, dtype=np.float64))
        points = sorted({float(values[int(q * n)]) for q in np.linspace(0.05, 0.95, 19)})
        out[name] = [[p, float((values <= p).mean())] for p in points]

    for w, h in [(500, 375), (90, 400), (1000, 100)]:
        image = torch.zeros(1).expand(3, h, w)
        rows = [T.RandomResizedCrop.get_params(image, (0.08, 1.0), (3 / 4, 4 / 3)) for _ in range(n)]
        i, j, ch, cw = np.array(rows, dtype=np.float64).T
        for name, values in dict(area=ch * cw / (h * w), ratio=cw / ch, x=j, y=i, width=cw).items():
            add(f"RandomResizedCrop {w}x{h} {name}", values)
    image = torch.zeros(1).expand(3, 64, 96)
    rows = [T.RandomErasing.get_params(image, (0.02, 0.33), (0.3, 3.3), [0.0])[:4] for _ in range(n)]
    i, j, ch, cw = np.array(rows, dtype=np.float64).T
    for name, values in dict(area=ch * cw / (64 * 96), ratio=ch / cw, x=j, y=i).items():
        add(f"RandomErasing 96x64 {name}", values)
    rows = [T.RandomCrop.get_params(torch.zeros(1).expand(3, 40, 48), (32, 32)) for _ in range(n)]
    i, j, _, _ = np.array(rows, dtype=np.float64).T
    add("RandomCrop 48x40 x", j)
    add("RandomCrop 48x40 y", i)
    jitter = T.ColorJitter(0.4, 0.3, 0.2, 0.1)
    rows = [
        T.ColorJitter.get_params(jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue) for _ in range(n)
    ]
    for at, name in enumerate(["brightness", "contrast", "saturation", "hue"], 1):
        add(f"ColorJitter {name}", [row[at] for row in rows])
        add(f"ColorJitter {name} place", [row[0].tolist().index(at - 1) for row in rows])
    return out


if __name__ == "__main__":
    steps()
    colors()
    operations()
    values()
    files()
    made_by = f"Pillow {PIL.__version__}, torchvision {torchvision.__version__}"
    (HERE / "cases.bin").write_bytes(blob)
    lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
    (HERE / "cases.json").write_text(f'{{"made_by":"{made_by}","cases":[\n{lines}\n]}}\n')
    lines = ",\n".join(f"{json.dumps(k)}:{json.dumps(v, separators=(',', ':'))}" for k, v in draws().items())
    (HERE / "draws.json").write_text(f"{{\n{lines}\n}}\n")
