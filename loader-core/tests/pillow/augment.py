"""Writes what Pillow and torchvision make of known images by augmentation, for the tests in src.

    python loader-core/tests/pillow/augment.py

Needs what `generate.py` beside it needs; the versions are those of `versions.json`.
"""

import math

import numpy as np
import torch
import torchvision.transforms as T
import torchvision.transforms.functional as F
from PIL import Image
from torchvision.transforms import autoaugment
from torchvision.transforms.v2 import CutMix, MixUp

from generate import MODES, pattern, sampled, summary, write

KINDS = [
    "Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color",
    "Contrast", "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize",
]  # fmt: skip


def apply(img, step):
    (name, v), = step.items()
    if name == "flip":
        img = F.hflip(img) if v[0] else img
        return F.vflip(img) if v[1] else img
    if name == "crop":
        x, y, w, h = v
        return F.crop(img, y, x, h, w)
    if name == "rotate":
        mode, fill = MODES[v["interpolation"]], tuple(v["fill"])
        return F.rotate(img, v["angle"], mode, v["expand"], v["center"], fill)
    if name == "affine":
        mode, fill = MODES[v["interpolation"]], tuple(v["fill"])
        return F.affine(
            img, v["angle"], v["translate"], v["scale"], v["shear"], mode, fill, v["center"]
        )
    if name == "blur":
        return F.gaussian_blur(img, v["kernel_size"], [v["sigma"], v["sigma"]])
    if name == "sharpness":
        return F.adjust_sharpness(img, v)
    if name == "augment":
        kind, magnitude, mode = v
        return autoaugment._apply_op(img, kind, magnitude, MODES[mode], None)
    if name in ["posterize", "solarize"]:
        return getattr(F, name)(img, v)
    return getattr(F, name)(img)


def squeezed(img, low, high):
    """The image with its values between these, so that there is something to stretch."""
    a = np.asarray(img).astype(np.int64)
    return Image.fromarray((low + a * (high - low) // 255).astype(np.uint8))


def pixel_cases():
    rng = np.random.default_rng(3)
    integer = lambda low, high: int(rng.integers(low, high + 1))
    real = lambda low, high: float(np.float32(rng.uniform(low, high)))
    modes = ["nearest", "bilinear", "bicubic"]
    cases = []

    def case(w, h, *steps, levels=(0, 255)):
        img = squeezed(pattern(w, h), *levels)
        for step in steps:
            img = apply(img, step)
        cases.append({"image": [w, h], "levels": levels, "steps": list(steps), **sampled(img)})

    def rotate(angle, mode, expand=False, center=None, fill=(0, 0, 0)):
        v = {"angle": angle, "interpolation": mode, "expand": expand}
        return {"rotate": {**v, "center": center, "fill": list(fill)}}

    for i in range(90):
        center = [integer(-5, 60), integer(0, 40)] if i % 4 == 3 else None
        angle = real(-190, 190)
        step = rotate(angle, modes[i % 3], i % 5 == 2, center, (i, 9, 250 - i))
        case(integer(1, 120), integer(1, 120), step)
    for angle in [0.0, 90.0, 180.0, 270.0, -90.0, 45.0, 360.0, -180.0]:
        for w, h in [(20, 20), (31, 18), (18, 31)]:
            for mode in modes:
                case(w, h, rotate(angle, mode))
                case(w, h, rotate(angle, mode, expand=True))
            case(w, h, rotate(angle, "nearest", center=[3, 4]))
    for i in range(90):
        w, h = integer(1, 130), integer(1, 130)
        v = {
            "angle": real(-200, 200) if i % 3 else 0.0,
            "translate": [integer(-30, 30), integer(-30, 30)],
            "scale": real(0.3, 2.5) if i % 4 else 1.0,
            "shear": [real(-60, 60) if i % 5 else 0.0, real(-60, 60) if i % 2 else 0.0],
            "interpolation": modes[i // 2 % 3],
            "center": [integer(0, 50), integer(0, 50)] if i % 6 == 5 else None,
            "fill": [i, 200, 7],
        }
        case(w, h, {"affine": v})
    # Beyond the range of fixed point.
    for shear in [89.9, 89.99, -89.97]:
        v = {"angle": 10.0, "translate": [0, 0], "scale": 0.01, "shear": [shear, 0.0]}
        case(90, 70, {"affine": {**v, "interpolation": "nearest", "center": None, "fill": [1, 2, 3]}})
    # Mirrored first, and of part of an image.
    for i in range(24):
        flip = {"flip": [bool(i & 1), bool(i & 2)]}
        crop = {"crop": [integer(0, 9), integer(0, 9), integer(12, 60), integer(12, 60)]}
        kind = [
            rotate(real(-90, 90), modes[i % 3], fill=(5, 6, 7)),
            {"augment": ["ShearX", real(-0.9, 0.9), modes[i % 3]]},
            {"blur": {"kernel_size": [5, 3], "sigma": real(0.1, 2)}},
            {"sharpness": real(0, 3)},
            {"equalize": None},
            {"autocontrast": None},
        ][i % 6]
        case(80, 75, flip, crop, kind, levels=(20, 180))
    for i in range(50):
        kernel = [integer(0, 6) * 2 + 1, integer(0, 6) * 2 + 1]
        sigma = real(0.1, 2) if i % 2 else real(0.05, 9)
        case(integer(13, 90), integer(13, 90), {"blur": {"kernel_size": kernel, "sigma": sigma}})
    for factor in [0.0, 0.1, 0.5, 1.0, 1.9, 2.0, 7.5]:
        for w, h in [(40, 31), (2, 9), (9, 2), (3, 3), (1, 1)]:
            case(w, h, {"sharpness": factor})
    for low, high in [(0, 255), (30, 220), (100, 103), (0, 40), (200, 255), (77, 77)]:
        for w, h in [(64, 48), (5, 3), (16, 16), (300, 200)]:
            for name in ["autocontrast", "equalize", "invert"]:
                case(w, h, {name: None}, levels=(low, high))
    for bits in range(1, 9):
        case(33, 21, {"posterize": bits})
    for threshold in [-1.0, 0.0, 0.5, 127.5, 128.0, 255.0, 256.0]:
        case(33, 21, {"solarize": threshold})
    rand = T.RandAugment()._augmentation_space(31, (61, 97))
    wide = T.TrivialAugmentWide()._augmentation_space(31)
    for space in [rand, wide]:
        for kind, (magnitudes, signed) in space.items():
            for bin in [0, 9, 30] if magnitudes.ndim else [0]:
                m = float(magnitudes[bin]) if magnitudes.ndim else 0.0
                for sign in [1.0, -1.0] if signed else [1.0]:
                    case(97, 61, {"augment": [kind, sign * m, modes[bin % 3]]}, levels=(9, 240))
    return cases


def magnitudes():
    """Every magnitude of every operation, in the order of KINDS."""
    out = []
    spaces = [(T.RandAugment(), (h, w)) for h, w in [(224, 224), (61, 97), (500, 333)]]
    for bins in [2, 3, 10, 11, 31, 100]:
        for op, size in [*spaces, (T.TrivialAugmentWide(), None)]:
            space = op._augmentation_space(bins, size) if size else op._augmentation_space(bins)
            assert list(space) == KINDS
            values = [m.double().reshape(-1).tolist() for m, _ in space.values()]
            signs = [signed for _, signed in space.values()]
            out.append({"size": size, "bins": bins, "magnitudes": values, "signed": signs})
    return out


def distributions():
    torch.manual_seed(1)
    n = 20000
    rotation = T.RandomRotation((-30, 50))
    out = {"draws": n, "rotation": summary([rotation.get_params([-30, 50]) for _ in range(n)])}
    drawn = [
        T.RandomAffine.get_params([-20, 70], [0.1, 0.4], [0.5, 1.7], [-10, 5, 2, 30], [100, 60])
        for _ in range(n)
    ]
    flat = np.array([[a, *t, s, *sh] for a, t, s, sh in drawn], float)
    out["affine"] = [summary(column) for column in flat.T]
    out["sigma"] = summary([T.GaussianBlur.get_params(0.1, 2.0) for _ in range(n)])
    chosen, apply_op = [], autoaugment._apply_op
    autoaugment._apply_op = lambda img, kind, m, **_: chosen.append((KINDS.index(kind), m)) or img
    img = pattern(97, 61)
    for name, op in [("rand_augment", T.RandAugment(1)), ("trivial_augment_wide", T.TrivialAugmentWide())]:
        chosen.clear()
        for _ in range(n):
            op(img)
        kinds, values = map(np.array, zip(*chosen))
        out[name] = {
            "choice": summary(kinds),
            "magnitudes": [summary(values[kinds == k]) for k in range(len(KINDS))],
        }
    autoaugment._apply_op = apply_op
    out["mixup"] = []
    for alpha in [0.2, 0.4, 0.8, 1.0, 3.0]:
        mixup = MixUp(alpha=alpha, num_classes=2)
        drawn = [mixup.make_params([])["lam"] for _ in range(n)]
        out["mixup"].append({"alpha": alpha, "lambda": summary(drawn)})
    out["cutmix"] = []
    for alpha, h, w in [(1.0, 32, 48), (0.5, 224, 224)]:
        cutmix, image = CutMix(alpha=alpha, num_classes=2), torch.zeros(2, 3, h, w)
        drawn = [cutmix.make_params([image]) for _ in range(n)]
        box = np.array([p["box"] for p in drawn], float).T
        out["cutmix"].append(
            {
                "alpha": alpha,
                "size": [h, w],
                "box": [summary(column) for column in box],
                "lambda": summary([p["lam_adjusted"] for p in drawn]),
            }
        )
    return out


def mixed():
    """Batches of small images, mixed; floats as the bits of their little-endian bytes."""
    out = []
    for kind, dtype in [("f32", torch.float32), ("f16", torch.float16), ("bf16", torch.bfloat16)]:
        for n, lam, box in [(4, 0.3, (1, 0, 4, 2)), (1, 0.9, (0, 0, 5, 3)), (3, 0.123456789, (2, 1, 2, 3))]:
            i = torch.arange(n * 2 * 3 * 5)
            images = (((i * 7919 % 1009).float() - 500) / 250).to(dtype).reshape(n, 2, 3, 5)
            labels = torch.tensor([2, 0, 2, 3][:n])
            x1, y1, x2, y2 = box
            adjusted = float(1.0 - (x2 - x1) * (y2 - y1) / (5 * 3))
            mixup, cutmix = MixUp(num_classes=4), CutMix(num_classes=4)
            mixup.make_params = lambda _: {"lam": lam}
            cutmix.make_params = lambda _: {"box": box, "lam_adjusted": adjusted}
            case = {"dtype": kind, "len": n, "lambda": lam, "box": box}
            for name, op in [("mixup", mixup), ("cutmix", cutmix)]:
                x, y = op(images, labels)
                assert y.dtype == torch.float32
                raw = x.contiguous().view(torch.uint8).numpy().tobytes().hex()
                case[name] = {"images": raw, "labels": y.numpy().astype("<f4").tobytes().hex()}
            out.append(case)
    return out


if __name__ == "__main__":
    write("augmented.json", pixel_cases())
    write("magnitudes.json", magnitudes())
    write("augment_distributions.json", distributions())
    write("mixed.json", mixed())
