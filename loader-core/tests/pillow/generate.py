"""Writes what Pillow and torchvision make of known images, for the tests in src/image.

    python loader-core/tests/pillow/generate.py

Needs torch, torchvision, Pillow and numpy. The stored files were made with the versions that
`versions.json` names. Everything is seeded; only lossy images depend on the codec's version.
"""

import io
import json
import math
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import PIL
import torch
import torchvision
import torchvision.transforms as T
import torchvision.transforms.functional as F
from PIL import Image

HERE = Path(__file__).parent
MODES = {
    "nearest": T.InterpolationMode.NEAREST,
    "bilinear": T.InterpolationMode.BILINEAR,
    "bicubic": T.InterpolationMode.BICUBIC,
    "lanczos": T.InterpolationMode.LANCZOS,
}


def pattern(w, h):
    """The test image: integer formulas that the Rust tests repeat, rough enough to be hard."""
    y, x = np.mgrid[0:h, 0:w].astype(np.int64)
    r = x * x * 3 // 16 + y * 5
    g = ((x ^ y) * 9) + (x * y) // 7
    b = np.where((x // 5 + y // 3) % 2 == 0, x * 2 + y, 255 - y * 3)
    return Image.fromarray((np.stack([r, g, b], 2) & 255).astype(np.uint8))


def picks(n):
    """Which of n values are stored: all, or 64 spread ones and the last."""
    return list(range(n)) if n <= 64 else [i * 2654435761 % n for i in range(64)] + [n - 1]


def sampled(img):
    """Width, height and the picked pixels of an image as hex."""
    a = np.asarray(img.convert("RGB")).reshape(-1, 3)
    return {"w": img.width, "h": img.height, "pixels": a[picks(len(a))].tobytes().hex()}


def apply(img, step):
    (name, v), = step.items()
    if name == "crop":
        x, y, w, h = v
        return F.crop(img, y, x, h, w)
    if name == "resize":
        size = v["size"] if isinstance(v["size"], int) else list(v["size"])
        return F.resize(img, size, MODES[v["interpolation"]], v.get("max_size"))
    if name == "center_crop":
        return F.center_crop(img, v)
    if name == "pad":
        for p in v["padding"]:
            img = F.pad(img, p, tuple(v["fill"]), v["mode"])
        return img
    if name == "flip":
        img = F.hflip(img) if v[0] else img
        return F.vflip(img) if v[1] else img
    if name == "gray":
        return F.rgb_to_grayscale(img, 3)
    return getattr(F, "adjust_" + name)(img, v)


def pixel_cases():
    rng = np.random.default_rng(1)
    integer = lambda low, high: int(rng.integers(low, high + 1))
    cases = []

    def case(w, h, *steps):
        img = pattern(w, h)
        for step in steps:
            img = apply(img, step)
        cases.append({"image": [w, h], "steps": list(steps), **sampled(img)})

    # RandomResizedCrop with given parameters: a crop, then a resize.
    for i in range(320):
        w, h = integer(8, 400), integer(8, 400)
        cw, ch = integer(1, w), integer(1, h)
        size = [integer(1, 240), integer(1, 240)] if i % 2 else [224, 224]
        case(
            w,
            h,
            {"crop": [integer(0, w - cw), integer(0, h - ch), cw, ch]},
            {"resize": {"size": size, "interpolation": list(MODES)[i % 4]}},
        )
    # Resize, then CenterCrop, which here makes only the visible part.
    for i in range(120):
        edge = integer(8, 256)
        resize = {"size": edge, "interpolation": list(MODES)[i % 4]}
        if i % 5 == 0:
            resize["max_size"] = edge + integer(1, 60)
        crop = [integer(1, edge + 20), integer(1, edge + 20)]
        case(integer(20, 500), integer(20, 500), {"resize": resize}, {"center_crop": crop})
    for w, h in [(500, 375), (375, 500), (333, 500), (256, 256), (224, 300), (64, 48)]:
        for mode in MODES:
            case(
                w,
                h,
                {"resize": {"size": 256, "interpolation": mode}},
                {"center_crop": [224, 224]},
            )
    # Flips before other geometry.
    for i in range(40):
        w, h = integer(16, 200), integer(16, 200)
        case(
            w,
            h,
            {"flip": [bool(i & 1), bool(i & 2)]},
            {"crop": [integer(0, 7), integer(0, 7), w - 8, h - 8]},
            {"resize": {"size": integer(5, 99), "interpolation": list(MODES)[i // 4 % 4]}},
            {"center_crop": [integer(3, 99), integer(3, 99)]},
        )
    for w, h in [(5, 9), (9, 5), (40, 31), (3, 3)]:
        for size in [(4, 4), (7, 7), (8, 8), (33, 12)]:
            case(w, h, {"center_crop": list(size)})
            case(w, h, {"flip": [True, True]}, {"center_crop": list(size)})
    for mode in ["constant", "edge", "reflect", "symmetric"]:
        for padding in [[2], [1, 2], [4, 3, 2, 1]]:
            for flip in [False, True]:
                case(
                    11,
                    8,
                    {"flip": [flip, False]},
                    {
                        "pad": {
                            "padding": [padding, [3, 0]],
                            "fill": [10, 20, 30],
                            "mode": mode,
                        }
                    },
                    {"crop": [1, 1, 12, 7]},
                )
    # Colour, on sizes that are not a multiple of anything.
    factors = [0.0, 0.2, 0.6, 0.999, 1.0, 1.3, 1.7, 3.5]
    for name in ["brightness", "contrast", "saturation"]:
        for factor in factors:
            case(61, 47, {name: factor})
    for hue in [-0.5, -0.31, -0.1, -0.003, 0.0, 0.01, 0.1, 0.27, 0.5]:
        case(61, 47, {"hue": hue})
    case(61, 47, {"gray": None})
    for _ in range(24):
        steps = [
            {"brightness": float(np.float32(rng.uniform(0.4, 1.6)))},
            {"contrast": float(np.float32(rng.uniform(0.4, 1.6)))},
            {"saturation": float(np.float32(rng.uniform(0.4, 1.6)))},
            {"hue": float(rng.uniform(-0.2, 0.2))},
        ]
        rng.shuffle(steps)
        case(97, 83, {"crop": [10, 20, 71, 51]}, *steps)
    return cases


def colors():
    """A checksum of each adjustment of an image of a million colours."""
    i = np.arange(1 << 20)
    rgb = np.stack([i & 255, (i >> 8) & 255, (i >> 16) * 17], 1).astype(np.uint8)
    img = Image.fromarray(rgb.reshape(1024, 1024, 3))
    steps = [
        *({"hue": v} for v in [-0.4, -0.05, 0.0, 0.17, 0.5]),
        *({"saturation": v} for v in [0.0, 0.3, 0.77, 1.9]),
        *({name: v} for name in ["brightness", "contrast"] for v in [0.3, 0.77, 1.9]),
        {"gray": None},
    ]
    weights = np.arange(3 << 20, dtype=np.uint64) % np.uint64(65521) + np.uint64(1)
    out = []
    for step in steps:
        values = np.asarray(apply(img, step)).ravel().astype(np.uint64)
        out.append({"steps": [step], "checksum": int((values * weights).sum())})
    return out


def tensor_cases():
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    cases = []
    for w, h, rect, value in [
        (31, 23, None, None),
        (31, 23, [5, 3, 10, 12], [0.0]),
        (31, 23, [0, 0, 31, 1], [1.5]),
        (16, 40, [15, 39, 1, 1], [0.25, -0.5, 2.0]),
    ]:
        t = F.normalize(F.to_tensor(pattern(w, h)), mean, std)
        if rect:
            x, y, ew, eh = rect
            t = F.erase(t, y, x, eh, ew, torch.tensor(value)[:, None, None])
        flat = t.numpy().ravel()
        values = flat[picks(flat.size)].astype("<f4").tobytes().hex()
        cases.append({"w": w, "h": h, "rect": rect, "value": value, "values": values})
    return cases


def summary(values):
    a = np.asarray(values, dtype=np.float64)
    quantiles = np.quantile(a, [0.05, 0.25, 0.5, 0.75, 0.95])
    return {
        "mean": float(a.mean()),
        "std": float(a.std()),
        "quantiles": [float(q) for q in quantiles],
    }


def distributions():
    """Summaries of what get_params draws; each number of a case is a share of the image's."""
    torch.manual_seed(0)
    n = 20000
    out = {"draws": n, "random_resized_crop": [], "random_crop": [], "random_erasing": []}
    for h, w, scale, ratio in [
        (400, 500, (0.08, 1.0), (3 / 4, 4 / 3)),
        (500, 333, (0.08, 1.0), (3 / 4, 4 / 3)),
        (100, 1000, (0.08, 1.0), (3 / 4, 4 / 3)),
        (300, 300, (0.5, 0.9), (1.0, 2.0)),
        (32, 32, (0.3, 1.0), (0.5, 2.0)),
    ]:
        img = torch.zeros(3, h, w)
        p = np.array([T.RandomResizedCrop.get_params(img, scale, ratio) for _ in range(n)], float)
        i, j, ch, cw = p.T
        out["random_resized_crop"].append(
            {
                "image": [h, w],
                "scale": scale,
                "ratio": ratio,
                "area": summary(ch * cw / (h * w)),
                "log_aspect": summary(np.log(cw / ch)),
                "center_y": summary((i + ch / 2) / h),
                "center_x": summary((j + cw / 2) / w),
            }
        )
    for h, w, size in [(40, 40, (32, 32)), (300, 500, (224, 200))]:
        img = torch.zeros(3, h, w)
        p = np.array([T.RandomCrop.get_params(img, size) for _ in range(n)], float)
        out["random_crop"].append(
            {"image": [h, w], "size": size, "y": summary(p[:, 0]), "x": summary(p[:, 1])}
        )
    for h, w, scale, ratio in [
        (224, 224, (0.02, 0.33), (0.3, 3.3)),
        (64, 200, (0.1, 0.8), (0.3, 3.3)),
    ]:
        img = torch.zeros(3, h, w)
        erased = []
        for _ in range(n):
            i, j, eh, ew, v = T.RandomErasing.get_params(img, scale, ratio, [0.0])
            if v is not img:
                erased.append((i, j, eh, ew))
        i, j, eh, ew = np.array(erased, float).T
        out["random_erasing"].append(
            {
                "image": [h, w],
                "scale": scale,
                "ratio": ratio,
                "found": len(erased) / n,
                "area": summary(eh * ew / (h * w)),
                "log_aspect": summary(np.log(eh / ew)),
                "center_y": summary((i + eh / 2) / h),
                "center_x": summary((j + ew / 2) / w),
            }
        )
    jitter = T.ColorJitter(0.4, 0.3, 1.2, 0.1)
    drawn = [
        T.ColorJitter.get_params(jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue)
        for _ in range(n)
    ]
    out["color_jitter"] = {
        "factors": [0.4, 0.3, 1.2, 0.1],
        "place": [summary([int((d[0] == op).nonzero()) for d in drawn]) for op in range(4)],
        "drawn": [summary([d[1 + op] for d in drawn]) for op in range(4)],
    }
    return out


def png(color_type, depth, rows, width, extra=b""):
    """A PNG of raw rows, for the kinds that Pillow does not write."""

    def chunk(kind, data):
        crc = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + crc

    header = struct.pack(">IIBBBBB", width, len(rows), depth, color_type, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    chunks = chunk(b"IHDR", header) + extra + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks, chunk


def decode_files():
    """Files of all kinds with what `convert("RGB")` makes of them."""
    rng = np.random.default_rng(2)
    rgb = pattern(23, 17)
    files = {}

    def save(name, img, format, **options):
        buffer = io.BytesIO()
        img.save(buffer, format, **options)
        files[name] = buffer.getvalue()

    gray, rgba = rgb.convert("L"), rgb.copy()
    rgba.putalpha(gray)
    palette = rgb.quantize(37)
    la = Image.merge("LA", (gray, rgb.getchannel(2)))
    save("rgb.png", rgb, "PNG")
    save("gray.png", gray, "PNG")
    save("rgba.png", rgba, "PNG")
    save("gray_alpha.png", la, "PNG")
    save("bilevel.png", gray.convert("1"), "PNG")
    save("palette.png", palette, "PNG")
    save("palette_4bit.png", rgb.quantize(13), "PNG")
    save("palette_transparent.png", palette, "PNG", transparency=3)
    save("palette_translucent.png", palette, "PNG", transparency=bytes(range(0, 250, 10)))
    save("rgb_transparent.png", rgb, "PNG", transparency=rgb.getpixel((2, 2)))
    save("gray_transparent.png", gray, "PNG", transparency=gray.getpixel((2, 2)))
    a16 = rng.integers(0, 65536, (17, 23), dtype=np.uint16)
    a16[0, :6] = [0, 1, 127, 255, 256, 65535]
    save("gray_16bit.png", Image.fromarray(a16), "PNG")
    for kind, color_type, channels in [("rgb", 2, 3), ("gray_alpha", 4, 2), ("rgba", 6, 4)]:
        values = rng.integers(0, 65536, (9, 7 * channels), dtype=np.uint16)
        rows = [row.astype(">u2").tobytes() for row in values]
        files[f"{kind}_16bit.png"], chunk = png(color_type, 16, rows, 7)
    for depth in [2, 4]:
        rows = [rng.bytes(math.ceil(11 * depth / 8)) for _ in range(5)]
        files[f"gray_{depth}bit.png"], _ = png(0, depth, rows, 11)
    save("palette.gif", palette, "GIF")
    save("transparent.gif", palette, "GIF", transparency=3)
    frames = [rgb.quantize(16), gray.quantize(16)]
    save("animated.gif", frames[0], "GIF", save_all=True, append_images=frames[1:])
    save("interlaced.gif", gray, "GIF", interlace=1)
    save("rgb.bmp", rgb, "BMP")
    save("gray.bmp", gray, "BMP")
    save("palette.bmp", palette, "BMP")
    save("bilevel.bmp", gray.convert("1"), "BMP")
    save("rgba.bmp", rgba, "BMP")
    for name, img in [("rgb", rgb), ("gray", gray), ("rgba", rgba), ("cmyk", rgb.convert("CMYK"))]:
        save(f"{name}.tif", img, "TIFF")
    save("rgb_lzw.tif", rgb, "TIFF", compression="tiff_lzw")
    save("rgb_deflate.tif", rgb, "TIFF", compression="tiff_adobe_deflate")
    save("bilevel.tif", gray.convert("1"), "TIFF")
    save("gray_16bit.tif", Image.fromarray(a16), "TIFF")
    save("rgb.webp", rgb, "WEBP", lossless=True)
    save("rgba.webp", rgba, "WEBP", lossless=True, exact=True)
    save("lossy.webp", rgb, "WEBP", quality=80)
    save("rgb.ppm", rgb, "PPM")
    save("gray.pgm", gray, "PPM")
    save("bilevel.pbm", gray.convert("1"), "PPM")
    samples = [0, 1, 50, 99, 100, 7]
    files["ascii_maxval_100.pgm"] = b"P2\n# text\n3 2\n100\n" + " ".join(map(str, samples)).encode()
    files["maxval_100.pgm"] = b"P5 3 2 100\n" + bytes(samples)
    wide = np.array([0, 127, 128, 255, 256, 385, 386, 65534, 65535], ">u2")
    files["gray_16bit.pgm"] = b"P5 3 3 65535\n" + wide.tobytes()
    files["rgb_16bit.ppm"] = b"P6 3 1 65535\n" + wide.tobytes()

    # Smooth, so that what differs is the rule and not the rounding of the codec.
    y, x = np.mgrid[0:29, 0:37]
    smooth = Image.fromarray(
        np.stack([x * 6, y * 8, 255 - (x * 3 + y * 4)], 2).clip(0, 255).astype(np.uint8)
    )
    cmyk = Image.merge("CMYK", [*smooth.split(), smooth.convert("L").point(lambda v: v // 2)])
    save("420.jpg", smooth, "JPEG", quality=95, subsampling="4:2:0")
    save("422.jpg", smooth, "JPEG", quality=95, subsampling="4:2:2")
    save("444.jpg", smooth, "JPEG", quality=95, subsampling="4:4:4")
    save("progressive.jpg", smooth, "JPEG", quality=95, progressive=True)
    save("restart.jpg", smooth, "JPEG", quality=95, restart_marker_blocks=2)
    save("gray.jpg", smooth.convert("L"), "JPEG", quality=95)
    save("rgb.jpg", smooth, "JPEG", quality=95, keep_rgb=True)
    save("cmyk.jpg", cmyk, "JPEG", quality=95)
    # The same file with another Adobe transform, and without the marker.
    adobe = files["cmyk.jpg"].index(b"Adobe")
    ycck = bytearray(files["cmyk.jpg"])
    ycck[adobe + 11] = 2
    files["ycck.jpg"] = bytes(ycck)
    plain = files["cmyk.jpg"]
    files["cmyk_without_adobe.jpg"] = plain[: adobe - 4] + plain[adobe + 12 :]
    files["png_named.jpg"] = files["rgb.png"]

    out = {}
    for name, data in files.items():
        (HERE / "images" / name).write_bytes(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            img = Image.open(io.BytesIO(data)).convert("RGB")
        out[name] = sampled(img)
    return out


def orientations():
    """The eight EXIF orientations of an image, in each format that holds them."""
    out = {}
    from PIL import ImageOps

    y, x = np.mgrid[0:12, 0:20]
    img = Image.fromarray(np.stack([x * 12, y * 20, x * 0 + 99], 2).astype(np.uint8))
    for format, options in [
        ("JPEG", {"quality": 100, "subsampling": "4:4:4"}),
        ("PNG", {}),
        ("WEBP", {"lossless": True}),
        ("TIFF", {}),
    ]:
        for value in range(1, 9):
            exif = Image.Exif()
            exif[0x112] = value
            buffer = io.BytesIO()
            img.save(buffer, format, exif=exif, **options)
            name = f"{format.lower()}_{value}"
            turned = ImageOps.exif_transpose(Image.open(io.BytesIO(buffer.getvalue())))
            out[name] = {"file": buffer.getvalue().hex(), **sampled(turned)}
    return out


def write(name, value):
    if isinstance(value, list):
        text = "[\n" + ",\n".join(json.dumps(v) for v in value) + "\n]\n"
    else:
        lines = (f"{json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
        text = "{\n" + ",\n".join(lines) + "\n}\n"
    (HERE / name).write_text(text)


if __name__ == "__main__":
    (HERE / "images").mkdir(exist_ok=True)
    write("pixels.json", pixel_cases())
    write("colors.json", colors())
    write("tensors.json", tensor_cases())
    write("distributions.json", distributions())
    write("images.json", decode_files())
    write("orientations.json", orientations())
    versions = {
        "Pillow": PIL.__version__,
        "torch": torch.__version__.split("+")[0],
        "torchvision": torchvision.__version__.split("+")[0],
        "numpy": np.__version__,
    }
    write("versions.json", versions)
