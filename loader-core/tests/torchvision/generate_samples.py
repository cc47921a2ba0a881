"""Writes samples.json: folder trees and what torchvision's ImageFolder makes of them.

    python generate_samples.py        (needs torchvision; written with 0.29)

Paths are percent-encoded bytes, so that every name survives JSON. `left_out` lists what this
project leaves out on purpose although torchvision takes it: names that begin with a dot, and broken
links. The test rebuilds each tree from its description and compares.
"""

import json
import os
import pathlib
import random
import tempfile
from urllib.parse import quote_from_bytes

from torchvision.datasets import DatasetFolder, ImageFolder
from torchvision.datasets.folder import IMG_EXTENSIONS

HERE = pathlib.Path(__file__).parent


def text(path):
    return quote_from_bytes(os.fsencode(path), safe="/.-_ ")


def files(*paths):
    return [("file", p) for p in paths]


def build(root, tree):
    for kind, path, *target in tree:
        full = os.path.join(os.fsencode(root), os.fsencode(path))
        if kind == "dir":
            os.makedirs(full, exist_ok=True)
            continue
        os.makedirs(os.path.dirname(full), exist_ok=True)
        if kind == "file":
            open(full, "wb").close()
        else:
            os.symlink(os.fsencode(target[0]), full)


def with_classes(names):
    class Given(DatasetFolder):
        def find_classes(self, directory):
            return list(names), {name: i for i, name in enumerate(names)}

    return Given


def run(root, options):
    extensions = tuple(options["extensions"]) if "extensions" in options else None
    ends = options.get("predicate_ends")
    is_valid = (lambda p: p.endswith(ends)) if ends else None
    kind = with_classes(options["classes"]) if "classes" in options else DatasetFolder
    allow_empty = options.get("allow_empty", False)
    if extensions or ends or "classes" in options:
        extensions = extensions or (None if ends else IMG_EXTENSIONS)
        return kind(root, loader=None, extensions=extensions, is_valid_file=is_valid,
                    allow_empty=allow_empty)
    return ImageFolder(root, allow_empty=allow_empty)


def hidden(path):
    return any(os.fsencode(part).startswith(b".") for part in path.split("/"))


def case(name, tree, **options):
    with tempfile.TemporaryDirectory() as top:
        root = os.path.join(top, "root")
        os.mkdir(root)
        build(root, tree)
        data = run(root, options)
        samples = [(os.path.relpath(p, root), label) for p, label in data.samples]
        left = [p for p, _ in samples if hidden(p) or not os.path.exists(os.path.join(root, p))]
        return {
            "name": name,
            "tree": [[kind, *map(text, rest)] for kind, *rest in tree],
            "options": {
                key: [text(v) for v in value] if key == "classes" else value
                for key, value in options.items()
            },
            "classes": [text(c) for c in data.classes],
            "samples": [[text(p), label] for p, label in samples],
            "left_out": [text(p) for p in left],
        }


def random_tree(seed):
    rng = random.Random(seed)
    parts = ["a", "b", "A", "a-b", "a.b", "a b", "ab", "a0", "a_", "b-", "10", "9", "é", "~"]
    ends = [".jpg", ".JPG", ".png", ".PnG", ".txt", "", ".jpeg.bak", ".webp"]
    tree = [("dir", c) for c in rng.sample(parts, rng.randint(1, 6))]
    for _ in range(rng.randint(10, 60)):
        depth = rng.randint(1, 4)
        folder = "/".join(rng.choice(parts) for _ in range(depth))
        tree.append(("file", f"{folder}/{rng.choice(parts)}{rng.choice(ends) or '='}"))
    # No name is both a file and a folder: each file ends as no folder does.
    return list(dict.fromkeys(tree))


def cases():
    yield case("plain", files("cat/1.jpg", "cat/2.jpg", "dog/1.png", "dog/0.webp"))
    yield case("nested", files("a/z.jpg", "a/b/y.jpg", "a/b/c/x.jpg", "a/a/w.jpg", "b/v.jpg"))
    yield case(
        "names that sort differently as paths",
        files(
            "a/1.jpg", "a-b/1.jpg", "a.b/1.jpg", "a b/1.jpg", "a0/1.jpg", "ab/1.jpg", "A/1.jpg",
            "c/a/1.jpg", "c/a-b/1.jpg", "c/a/b/1.jpg", "c/a.b/1.jpg", "c/a!/1.jpg", "c/a/!/1.jpg",
            "c/1.jpg", "c/z.jpg", "c/a.jpg", "c/a-1.jpg", "c/a/1-.jpg", "c/a/1/.x/2.jpg",
        ),
    )
    yield case(
        "mixed case extensions",
        files("a/A.JPEG", "a/b.Jpg", "a/c.PNG", "a/d.tIfF", "a/e.PPM", "a/f.Bmp", "a/g.pGm",
              "a/h.TIF", "a/i.WEBP", "a/j.jpe", "a/k.GIF"),
    )
    yield case(
        "junk files",
        files("a/1.jpg", "a/Thumbs.db", "a/.DS_Store", "a/._1.jpg", "a/notes.txt", "a/jpg",
              "a/2.jpg.bak", "a/3.jpg~", "a/.jpg", "b/1.jpg", "b/.hidden/1.jpg", "top.jpg",
              ".top.jpg", "b/desktop.ini", "b/x.jpg.png", "b/..jpg"),
    )
    yield case("a hidden class", files(".ipynb_checkpoints/1.jpg", "a/1.jpg", "b/2.jpg"))
    yield case(
        "empty classes",
        [("dir", "a"), ("dir", "c/deep/er"), *files("b/1.jpg", "d/1.txt", "e/f/2.jpg")],
        allow_empty=True,
    )
    yield case("deep nesting", files(*("c/" + "d/" * n + "1.jpg" for n in (0, 1, 5, 40, 41))))
    yield case(
        "links",
        [
            *files("a/1.jpg", "b/2.jpg", "b/sub/3.jpg", "z/4.jpg"),
            ("link", "a/link.jpg", "../b/2.jpg"),
            ("link", "a/text.txt", "../b/2.jpg"),
            ("link", "a/folder", "../b/sub"),
            ("link", "a/again", "../b/sub"),
            ("link", "a/to.jpg.folder.jpg", "../z"),
            ("link", "class-by-link", "b"),
            ("link", "y", "z"),
            ("link", "a/broken.jpg", "nowhere.jpg"),
            ("link", "gone", "nowhere"),
        ],
    )
    yield case(
        "odd names",
        [
            ("file", os.fsdecode(b"new\nline/a\nb.jpg")),
            ("file", os.fsdecode(b"\xff\xfe/\xff.jpg")),
            ("file", os.fsdecode(b"\xff\xfe/a\xff.jpg")),
            ("file", os.fsdecode(b"\xff\xfe/a.jpg")),
            ("file", "x" * 255 + "/" + "y" * 251 + ".jpg"),
            ("file", "x" * 254 + "/" + "y" * 250 + ".jpg"),
            ("file", "caf\u00e9/1.jpg"),
            ("file", "cafe\u0301/1.jpg"),
            ("file", "caf\u00e9/\u00e9.jpg"),
            ("file", "caf\u00e9/e\u0301.jpg"),
            ("file", " /  .jpg"),
            ("file", "quote\"'`$\\/\\.jpg"),
            ("file", "\u732b/\U0001f408.jpg"),
            ("file", "\u732b/\u72ac.jpg"),
            ("file", "-rf/--.jpg"),
            ("file", "%41/%00.jpg"),
        ],
    )
    yield case("numeric classes", files(*(f"{n}/{n * 7 % 13}.jpg" for n in range(13))))
    yield case(
        "given classes in another order",
        files("c/1.jpg", "a/1.jpg", "b/1.jpg", "b/0.jpg"),
        classes=["b", "a", "missing", "c"],
        allow_empty=True,
    )
    yield case(
        "given extensions",
        files("a/1.jpg", "a/2.avif", "a/3.JXL", "b/4.avif.txt", "b/5.avif"),
        extensions=[".avif", ".jxl"],
    )
    yield case(
        "a predicate",
        files("a/1_ok", "a/2_no", "a/3.jpg", "b/sub/4_ok"),
        predicate_ends="_ok",
    )
    for seed in range(20):
        yield case(f"random tree {seed}", random_tree(seed), allow_empty=True)


out = list(cases())
lines = ",\n".join(json.dumps(c) for c in out)
(HERE / "samples.json").write_text(f"[\n{lines}\n]\n")
print(len(out), "trees,", sum(len(c["samples"]) for c in out), "samples")
