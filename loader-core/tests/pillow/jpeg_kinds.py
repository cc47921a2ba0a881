"""Writes JPEG files of every kind that decoders meet, with what Pillow makes of them.

    python loader-core/tests/pillow/jpeg_kinds.py

Needs Pillow and numpy, and for the kinds that Pillow does not write, libjpeg-turbo's `cjpeg`, version 3.1 or
newer: CJPEG is its path. (The one that a build with the feature `libjpeg-turbo` leaves in
`build/turbojpeg-sys-*/out/bin` will do.) The stored files were made with Pillow 13.0.0 and cjpeg 3.1.0. Nothing
is random.

`jpegs/NAME.jpg` are the files; `jpegs.json` holds size and picked pixels of each. Two pictures are used:
a smooth one, on which decoders may differ only in rounding, and a texture with hard edges in colour,
which shows how colour is upsampled.
"""

import io
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from generate import HERE, sampled, write

y, x = np.mgrid[0:45, 0:59].astype(np.float64)
SMOOTH = Image.fromarray(
    np.stack([x * 4.2, y * 5.4, 255 - (x * 2 + y * 3)], 2).clip(0, 255).astype(np.uint8)
)
y, x = np.mgrid[0:141, 0:163].astype(np.int64)
TEXTURE = Image.fromarray(
    np.stack(
        [
            (x * 7 + y * 3) % 256,
            np.where((x // 6 + y // 9) % 2 == 0, 220, 40),
            (x * y // 11 + np.where((x + y) // 8 % 2 == 0, 0, 128)) % 256,
        ],
        2,
    ).astype(np.uint8)
)

SAMPLINGS = {
    "411": "4x1,1x1,1x1",
    "410": "4x2,1x1,1x1",
    "420": "2x2,1x1,1x1",
    "422": "2x1,1x1,1x1",
    "440": "1x2,1x1,1x1",
    "441": "1x4,1x1,1x1",
    "444": "1x1,1x1,1x1",
    "odd": "2x2,1x2,2x1",
    "three": "3x1,1x1,1x1",
    "larger_colour": "1x1,2x2,1x2",
}


CJPEG = os.environ.get("CJPEG", "cjpeg")


def cjpeg(img, *options, scans=None):
    if isinstance(img, bytes):
        ppm = io.BytesIO(img)
    else:
        ppm = io.BytesIO()
        img.save(ppm, "PPM")
    with tempfile.NamedTemporaryFile("w") as script:
        if scans:
            script.write(scans)
            script.flush()
            options = (*options, "-scans", script.name)
        return subprocess.run(
            [CJPEG, *options], input=ppm.getvalue(), stdout=subprocess.PIPE, check=True
        ).stdout


def segments(data):
    """The (marker, start, end) of each segment up to the first scan's header."""
    at, out = 2, []
    while True:
        marker = data[at + 1]
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        out.append((marker, at, end))
        if marker == 0xDA:
            return out
        at = end


def find(data, *markers):
    return next((start, end) for marker, start, end in segments(data) if marker in markers)


def without(data, marker):
    start, end = find(data, marker)
    return data[:start] + data[end:]


def inserted(data, at, extra):
    return data[:at] + extra + data[at:]


def with_ids(data, ids):
    """Other component identifiers, in the frame and in its one scan."""
    data = bytearray(data)
    frame, _ = find(data, 0xC0, 0xC1, 0xC2)
    scan, _ = find(data, 0xDA)
    for i, value in enumerate(ids):
        data[frame + 10 + 3 * i] = value
        data[scan + 5 + 2 * i] = value
    return bytes(data)


def adobe(transform):
    return b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0" + bytes([transform])


def files():
    out = {}
    for name, sampling in SAMPLINGS.items():
        for kind, img in [("smooth", SMOOTH), ("texture", TEXTURE)]:
            for coding in ["", "-progressive"]:
                options = ["-quality", "80", "-sample", sampling, *([coding] if coding else [])]
                out[f"{kind}_{name}{coding.replace('-', '_')}"] = cjpeg(img, *options)
    plain = cjpeg(SMOOTH, "-quality", "90", "-sample", "2x2")
    full = cjpeg(SMOOTH, "-quality", "90", "-sample", "1x1")

    gray = SMOOTH.convert("L")
    out["gray"] = cjpeg(gray, "-quality", "90")
    out["gray_progressive"] = cjpeg(gray, "-quality", "90", "-progressive")
    # A single component's factors mean nothing, but are often 2x2.
    out["gray_2x2"] = cjpeg(gray, "-quality", "90", "-sample", "2x2")
    out["rgb_adobe"] = cjpeg(SMOOTH, "-quality", "90", "-rgb")
    out["rgb_ids"] = with_ids(without(out["rgb_adobe"], 0xEE), b"RGB")
    start = find(plain, 0xDB)[0]
    bare = without(plain, 0xE0)
    out["ycc_without_markers"] = bare
    out["ycc_ids_from_0"] = with_ids(bare, [0, 1, 2])
    out["ycc_adobe"] = inserted(bare, 2, adobe(1))
    # Both markers, which contradict each other: JFIF counts.
    out["jfif_and_adobe_rgb"] = inserted(plain, start, adobe(0))
    # Color space "uncalibrated" and "sRGB" in EXIF mean nothing to a decoder.
    exif = Image.Exif()
    exif.get_ifd(0x8769)[0xA001] = 65535
    exif_bytes = exif.tobytes()
    exif_segment = b"\xff\xe1" + (len(exif_bytes) + 2).to_bytes(2, "big") + exif_bytes
    out["exif_uncalibrated"] = inserted(plain, 2, exif_segment)

    ink = Image.merge("CMYK", [*SMOOTH.split(), gray.point(lambda v: v // 2 + 40)])
    buffer = io.BytesIO()
    ink.save(buffer, "JPEG", quality=90)
    cmyk = buffer.getvalue()
    at = find(cmyk, 0xEE)
    out["cmyk"] = cmyk
    ycck = bytearray(cmyk)
    ycck[at[0] + 15] = 2
    out["ycck"] = bytes(ycck)
    out["cmyk_without_adobe"] = without(cmyk, 0xEE)
    buffer = io.BytesIO()
    ink.save(buffer, "JPEG", quality=90, progressive=True)
    out["cmyk_progressive"] = buffer.getvalue()

    out["restart_blocks"] = cjpeg(TEXTURE, "-quality", "70", "-restart", "3B")
    out["restart_rows"] = cjpeg(TEXTURE, "-quality", "70", "-restart", "1", "-progressive")
    separate = "0;\n1;\n2;\n"
    out["scan_for_each_component"] = cjpeg(SMOOTH, "-quality", "90", "-sample", "1x1", scans=separate)
    out["scan_for_each_component_420"] = cjpeg(SMOOTH, "-quality", "90", scans=separate)
    spectral = "0,1,2: 0-0, 0, 0;\n0: 1-63, 0, 0;\n2: 1-63, 0, 0;\n1: 1-63, 0, 0;\n"
    out["progressive_spectral"] = cjpeg(SMOOTH, "-quality", "90", "-sample", "1x1", scans=spectral)
    out["wide_quantisation"] = cjpeg(SMOOTH, "-quality", "3", "-sample", "1x1")
    out["optimised"] = cjpeg(TEXTURE, "-quality", "70", "-optimize")
    out["arithmetic"] = cjpeg(TEXTURE, "-quality", "70", "-arithmetic")
    out["arithmetic_progressive"] = cjpeg(SMOOTH, "-quality", "90", "-arithmetic", "-progressive")

    out["lossless"] = cjpeg(SMOOTH, "-lossless", "4,0")

    out["fill_bytes"] = inserted(plain, start, b"\xff\xff\xff")
    out["garbage_between_segments"] = inserted(plain, start, b"\0\0gar\xff\0bage")
    out["comments"] = inserted(plain, start, b"\xff\xfe\0\x07hello" * 5)
    # A thumbnail's own markers are no markers of the file.
    thumbnail = b"Exif\0\0MM\0*\0\0\0\x08\0\0" + full
    header = b"\xff\xe1" + (len(thumbnail) + 2).to_bytes(2, "big")
    out["thumbnail"] = inserted(plain, 2, header + thumbnail)
    for w, h in [(1, 1), (2, 1), (1, 9), (3, 5), (8, 8), (17, 16), (16, 17), (5, 40)]:
        out[f"size_{w}x{h}"] = cjpeg(SMOOTH.crop((0, 0, w, h)), "-quality", "95")

    # Those that can't be decoded.
    bad = {}
    wide = np.asarray(SMOOTH).astype(np.uint16) * 16
    wide = b"P6 59 45 4095\n" + wide.astype(">u2").tobytes()
    bad["twelve_bits"] = cjpeg(wide, "-precision", "12", "-sample", "1x1")
    two = bytearray(cjpeg(gray, "-quality", "90"))
    frame, end = find(two, 0xC0)
    two[frame + 3] += 3
    two[frame + 9] = 2
    bad["two_components"] = bytes(two[:end]) + b"\x02\x11\0" + bytes(two[end:])
    dnl = bytearray(plain)
    frame, _ = find(dnl, 0xC0)
    dnl[frame + 5 : frame + 7] = b"\0\0"
    bad["no_height"] = bytes(dnl)
    bad["no_end"] = plain[:-2]
    bad["half"] = plain[: len(plain) // 2]
    # Two bytes a scan, and each would go over all the image.
    scan, scan_end = find(out["gray_progressive"], 0xDA)
    one = out["gray_progressive"][scan:scan_end] + b"\xff\0"
    bad["many_scans"] = out["gray_progressive"][:scan] + one * 400 + b"\xff\xd9"
    return out, bad


def main():
    folder = HERE / "jpegs"
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    expected = {}
    good, bad = files()
    for name, data in sorted(good.items()):
        (folder / f"{name}.jpg").write_bytes(data)
        clean = data
        if name == "garbage_between_segments":  # libjpeg skips it, Pillow's own parser does not
            clean = data.replace(b"\0\0gar\xff\0bage", b"")
        expected[name] = sampled(Image.open(io.BytesIO(clean)).convert("RGB"))
    for name, data in sorted(bad.items()):
        (folder / f"bad_{name}.jpg").write_bytes(data)
    write("jpegs.json", expected)


if __name__ == "__main__":
    main()
