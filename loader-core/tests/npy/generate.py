"""Writes arrays.json: .npy files as NumPy writes them, and what is in them.

    python generate.py        (needs numpy and ml_dtypes; written with 2.4.6 and 0.6.0)

Each entry has the bytes of a file in hexadecimal. Where it can be used in place, it has the element
type, the shape and the elements' bytes in C order, little-endian; else the kind of error.
"""

import io
import json
import pathlib
import warnings

import ml_dtypes
import numpy as np
from numpy.lib import format as npy

HERE = pathlib.Path(__file__).parent
NAMES = {"float16": "f16", "float32": "f32", "float64": "f64", "bool": "u8", "bfloat16": "bf16"}


def dtype(array):
    name = array.dtype.name
    return NAMES.get(name, name.replace("uint", "u").replace("int", "i"))


def written(array, version=None):
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        npy.write_array(out, array, version=version)
    return out.getvalue()


def good(name, array, file=None):
    file = written(array) if file is None else file
    data = np.ascontiguousarray(array).tobytes()
    return {
        "name": name,
        "file": file.hex(),
        "dtype": dtype(array),
        "shape": list(array.shape),
        "data": data.hex(),
    }


def bad(name, array, error):
    return {"name": name, "file": written(array).hex(), "error": error}


def python2(array):
    """The header as Python 2 wrote it: numbers of the type long, padded to 16 bytes."""
    shape = "(" + ", ".join(f"{dim}L" for dim in array.shape) + ")"
    text = f"{{'descr': '{array.dtype.str}', 'fortran_order': False, 'shape': {shape}, }}"
    text += " " * (-(10 + len(text) + 1) % 16) + "\n"
    head = npy.MAGIC_PREFIX + bytes([1, 0]) + len(text).to_bytes(2, "little")
    file = head + text.encode() + array.tobytes()
    assert np.array_equal(np.load(io.BytesIO(file)), array)
    return file


def main():
    grid = np.arange(-6, 6).reshape(3, 4)
    files = []
    for code in ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]:
        files.append(good(code, (grid * 3).astype("<" + code)))
    files += [
        good("bool", grid % 3 == 0),
        good("not numbers", np.array([np.nan, np.inf, -np.inf, -0.0])),
        good("scalar", np.array(1.5)),
        good("one", np.arange(5, dtype="<i4")),
        good("empty", np.zeros((0, 3), "<f4")),
        good("empty inside", np.zeros((2, 0, 3), "<f4")),
        good("six dimensions", np.arange(24, dtype="<u2").reshape(1, 2, 1, 3, 4, 1)),
        good("both orders", np.asfortranarray(np.arange(4, dtype="<i2").reshape(4, 1))),
        good("version 2", grid.astype("<i4"), written(grid.astype("<i4"), (2, 0))),
        good("version 3", grid.astype("<i4"), written(grid.astype("<i4"), (3, 0))),
        good("python 2", grid.astype("<i8"), python2(grid.astype("<i8"))),
        good("two in a file", np.arange(3.0), written(np.arange(3.0)) + written(np.arange(2.0))),
        bad("fortran", np.asfortranarray(grid), "FortranOrder"),
        bad("transposed", grid.T, "FortranOrder"),
        bad("big-endian", grid.astype(">f4"), "ByteOrder"),
        bad("complex", grid.astype("<c8"), "Elements"),
        bad("text", np.array(["a", "bc"]), "Elements"),
        bad("bytes", np.array([b"a", b"bc"]), "Elements"),
        bad("objects", np.array([None, 1], object), "Elements"),
        bad("times", np.array(["2024-01-01"], "<M8[D]"), "Elements"),
        bad("a structure", np.zeros(2, [("x", "<f4"), ("y", "<i4")]), "Elements"),
        bad("a structure in unicode", np.zeros(2, [("é", "<f4"), ("日", "<i4")]), "Elements"),
        bad("bfloat16 as bytes", grid.astype(ml_dtypes.bfloat16), "Elements"),
    ]
    # What this project writes for bfloat16, since ml_dtypes writes bytes without a meaning.
    brain = np.array([1.0, -2.5, 3.0e38], ml_dtypes.bfloat16)
    named = npy.MAGIC_PREFIX + bytes([1, 0])
    text = "{'descr': 'bfloat16', 'fortran_order': False, 'shape': (3,), }".ljust(117) + "\n"
    named += len(text).to_bytes(2, "little") + text.encode() + brain.tobytes()
    assert np.load(io.BytesIO(named)).dtype == ml_dtypes.bfloat16
    files.append(good("bfloat16", brain, named))
    lines = ",\n".join(json.dumps(file) for file in files)
    (HERE / "arrays.json").write_text(f"[\n{lines}\n]\n")


main()
