"""Makes docs/benchmarks.md and its plots from the raw results that `scripts/bench` has written.

    report.py RAW_FOLDER DOCS_FOLDER

Every figure is the median of the runs in RAW_FOLDER; nothing is left out that is there.
"""

import json
import os
import statistics
import sys
import textwrap

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

OURS, OTHERS = "#c0392b", ["#34495e", "#7f8c8d", "#95a5a6", "#bdc3c7", "#dfe4e6"]


def load(folder, name):
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return json.load(file)


def median(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def spread(values):
    values = [value for value in values if value is not None]
    return f"{number(min(values))} to {number(max(values))}" if len(values) > 1 else ""


def number(value):
    if value is None:
        return ""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 10 else f"{value:.1f}"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def save(figure, docs, name):
    figure.tight_layout()
    for kind in ("png", "svg"):
        # Without dates and random ids, the same results are the same files.
        matplotlib.rcParams["svg.hashsalt"] = "loader"
        metadata = {"Date": None} if kind == "svg" else {}
        figure.savefig(os.path.join(docs, "benchmarks", f"{name}.{kind}"), dpi=110, metadata=metadata)
    pyplot.close(figure)


def worker_memory(run, part):
    workers = run.get("workers") or []
    return max((worker[part] for worker in workers), default=None)


def starts(entries):
    rows = []
    for entry in entries:
        runs = entry["runs"]
        times = [run["seconds"].get("start") for run in runs]
        if median(times) is None:
            continue
        ms = [value * 1e3 for value in times if value is not None]
        memory = [median([worker_memory(run, part) for run in runs]) for part in ("rss", "pss", "uss")]
        memory = [number(kb / 1024) if kb is not None else "" for kb in memory]
        rows.append([entry["name"], number(median(ms)), spread(ms), str(len(ms)), *memory])
    return rows


START_HEAD = ["", "start, ms", "all runs", "runs", "a worker's RSS, MB", "PSS", "USS"]


def start_of(entries, name):
    for entry in entries:
        if entry["name"] == name:
            return median([run["seconds"].get("start") for run in entry["runs"]])
    return None


def factors(entries):
    rows = []
    for entry in entries:
        label, found, method = entry["name"].partition("PyTorch ")
        if not found:
            continue
        how, _, count = method.partition(":")
        ours = start_of(entries, f"{label}processes:{count}")
        theirs = start_of(entries, entry["name"])
        if ours and theirs:
            rows.append([f"{label}{count} processes", f"PyTorch, {how}", f"{theirs / ours:,.0f} times"])
    return rows


def plot_starts(entries, docs):
    """Start against payload, one line a number of workers."""
    points = {}
    for entry in entries:
        size, found, who = entry["name"].partition(" MiB ")
        if found and ("processes:" in who or "PyTorch" in who):
            points.setdefault(who, []).append((int(size), 1e3 * start_of(entries, entry["name"])))
    if not points:
        return
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for who, line in sorted(points.items()):
        ours = who.startswith("processes")
        color = OURS if ours else OTHERS[0] if "fork" in who and "server" not in who else OTHERS[1]
        count = int(who.rpartition(":")[2])
        axes.plot(*zip(*sorted(line)), color=color, alpha=0.4 + 0.075 * count, marker="o", label=who)
    axes.set(xlabel="index, MiB of paths", ylabel="start to first sample, ms", yscale="log", xscale="log")
    ticks = sorted({size for line in points.values() for size, _ in line})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, ncols=2)
    save(figure, docs, "startup")


def rate(entry):
    return median([value for run in entry["runs"] for value in run["images_per_second"]])


def plot_throughput(entries, floor, docs):
    figure, plots = pyplot.subplots(1, 2, figsize=(10, 4), sharex=True)
    for axes, task in zip(plots, ("train", "eval")):
        rows = [(entry["who"], rate(entry), "decoder" in entry) for entry in entries if entry["task"] == task]
        names, rates, mine = zip(*reversed(rows))
        axes.barh(names, rates, color=[OURS if own else OTHERS[1] for own in mine])
        if floor:
            axes.axvline(floor, color="black", linestyle=":")
        axes.set(title=task, xlabel="images a second")
    save(figure, docs, "throughput")


def conversions(entries):
    rows = []
    for entry in entries:
        seconds = median([run.get("conversion_seconds") for run in entry["runs"]])
        if seconds is not None and entry["task"] == "train":
            rows.append([entry["who"], f"{seconds:.2f} s"])
    return table(["made before the first image can be read", "takes"], rows) if rows else ""


def transport_rate(entry):
    task = entry["task"]
    return median([task["bytes"] * task["count"] / run["seconds"] / 1e6 for run in entry["runs"]])


def plot_transport(entries, docs):
    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    movers = list(dict.fromkeys(entry["task"]["mover"] for entry in entries))
    greys = iter(OTHERS)
    for mover in movers:
        line = [(e["task"]["bytes"] / 2**20, transport_rate(e)) for e in entries if e["task"]["mover"] == mover]
        style = {"color": OURS} if mover == "loader" else {"color": "black", "linestyle": ":"}
        if mover not in ("loader", "memcpy"):
            style = {"color": next(greys)}
        axes.plot(*zip(*sorted(line)), marker="o", label=mover, **style)
    axes.set(xlabel="payload, MiB", ylabel="MB/s", xscale="log", yscale="log")
    axes.grid(alpha=0.3)
    axes.legend()
    save(figure, docs, "transport")


def plot_memory(entries, docs):
    figure, axes = pyplot.subplots(figsize=(8, 4))
    lines = {}
    for entry in entries:
        workers = entry["name"].partition(", ")[2]
        _, last = entry["runs"][0]["epochs"][-1]
        most = max(worker["uss"] for worker in last) / 1024
        lines.setdefault(workers, []).append((entry["entries"] / 1e6, most))
    for workers, line in lines.items():
        axes.plot(*zip(*sorted(line)), marker="o", label=workers)
    axes.set(xlabel="entries, millions", ylabel="a worker's own memory (USS), MB", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    save(figure, docs, "memory")


def section(*parts):
    fill = lambda part: part if part.startswith(("|", "#", "!")) else textwrap.fill(part, 116)
    return "\n\n".join(fill(part) for part in parts if part)


def main():
    raw, docs = sys.argv[1:]
    os.makedirs(os.path.join(docs, "benchmarks"), exist_ok=True)
    names = ("strings", "tree", "throughput", "transport", "memory", "floor", "table")
    strings, tree, throughput, transport, memory, floor, tables = (load(raw, f"{name}.json") for name in names)
    first = next(entry for entry in (strings or tree or transport) if "machine" in entry)
    machine, versions = first["machine"], first["versions"]
    out = [section(
        "# Benchmarks",
        "Made by `scripts/bench` from the raw results in [benchmarks/raw](benchmarks/raw); figures are medians.",
        f"{machine['processor']}, {machine['cpus']} CPUs, {machine['memory']}, Linux {machine['kernel']}; "
        f"commit {versions['commit']}, {versions['rustc']}. Beside it: "
        + ", ".join(package.replace("==", " ") for package in peers()) + ".",
    )]
    if strings or tree:
        plot_starts(strings, docs)
        out.append(section(
            "## Start-up",
            "From before the loader is built to its first batch, of one sample that is looked up and not read.",
            "![Start against the size of the index](benchmarks/startup.png)" if strings else "",
            "A tree of files:" if tree else "", table(START_HEAD, starts(tree)) if tree else "",
            "Strings of 64 bytes:" if strings else "", table(START_HEAD, starts(strings)) if strings else "",
            table(["ours", "beside", "ours starts faster by"], factors(tree + strings)),
            "Unfair to PyTorch: its list of samples is made once and not measured, but its workers import nothing "
            "here either, and each start of ours is a new program that opens its table. Its `fork` is what Linux "
            "had by default up to Python 3.13; it shares the list until its reference counts are touched. "
            "Unfair to us: the fork server's start, `init`, is in a program's first line and costs it once what "
            "the raw results tell.",
        ))
    if throughput:
        bound = median(floor[0]["images_per_second"]) * 2 if floor else None
        plot_throughput(throughput, bound, docs)
        rows = [[e["task"], e["who"], number(rate(e)),
                 spread([v for run in e["runs"] for v in run["images_per_second"]])] for e in throughput]
        out.append(section(
            "## Throughput",
            "Images a second of ImageNet-like JPEGs, two workers, batches of 128, normalised `f32`. The first epoch "
            "of each run, with its start, is left out.",
            "![Images a second](benchmarks/throughput.png)",
            table(["", "", "images/s", "all epochs"], rows),
            conversions(throughput),
            f"The dotted line, {number(bound)}, is twice what one core shrinks to an eighth with libjpeg-turbo's "
            "scaled decoding by Pillow: its entropy decoding and little else." if bound else "",
            "Unfair to the others: DALI is made for GPUs, and its CPU pipeline decodes the crop with its own "
            "rounding; SPDL's users normalise on a GPU, and FFmpeg, which it decodes with, is built for video; Grain's batches are copied between its processes, and PyTorch's are sent one descriptor at a "
            "time, which costs little at this size. Unfair to us: none of them checks a file as strictly, "
            "DALI and WebDataset shuffle only what they hold, WebDataset's and FFCV's files were made before, and FFCV "
            "decodes whole images that it has made smaller files of. Rust's other loaders come without transforms: "
            "what is measured is their users' usual way, the crate image, which is most of the difference; tch's "
            "helper has neither workers nor the same resize.",
        ))
    if transport:
        plot_transport(transport, docs)
        rows = [[f"{e['task']['bytes'] >> 10:,} KiB", e["task"]["mover"], number(transport_rate(e)),
                 number(median([r["cpu_seconds"] * 1e9 / e["task"]["bytes"] / e["task"]["count"]
                                for r in e["runs"]])),
                 number(median([r["pss"] / 1024 for r in e["runs"]]))] for e in transport]
        out.append(section(
            "## Transport",
            "Payloads from one worker process to the program, which looks at the first and last byte. `memcpy` is one "
            "thread that copies the same, to four places in turn.",
            "![MB/s against the payload](benchmarks/transport.png)",
            table(["payload", "", "MB/s", "CPU s a GB", "PSS of all, MB"], rows),
            "SPDL's pool copies once as we do, so large payloads take both as long as the copy does; what differs is "
            "the cost of each hand-over. PyTorch's worker clones a tensor, which it then moves to shared memory, "
            "where ours writes in place: that second copy is what its way of working asks for.",
        ))
    if memory:
        plot_memory(memory, docs)
        rows = []
        for entry in memory:
            for epoch, (program, workers) in enumerate(entry["runs"][0]["epochs"]):
                most = [max(worker[part] for worker in workers) / 1024 for part in ("rss", "pss", "uss")]
                rows.append([entry["name"], str(epoch), number(program["pss"] / 1024), *map(number, most)])
        out.append(section(
            "## Memory",
            "All entries of a table of 64-byte paths looked up in each of several epochs, in batches of 4096. A page "
            "that several processes map counts in the RSS of each, in parts in PSS, not at all in USS: a single worker, "
            "which alone reads the table's pages, has them as its own in this count, two or more have none.",
            "![A worker's own memory against the index](benchmarks/memory.png)",
            table(["", "epoch", "program's PSS, MB", "a worker's RSS", "PSS", "USS"], rows),
        ))
    if tables:
        first = tables[0]
        rows = []
        for entry in tables:
            of = lambda what: [run.get(what) for run in entry["runs"]]
            seconds = [value * 1e3 for value in of("seconds") if value is not None]
            uss = median(of("worker_uss_kb"))
            rows.append([entry["name"], number(median(seconds)), spread(seconds),
                         number(median(of("rows_per_second"))), number(uss / 1024) if uss else ""])
        out.append(section(
            "## One table for all workers",
            f"A table of {first['rows']:,} rows and {first['columns']} columns of `f64`. `argument` and `global`: a "
            f"pool of {first['processes']} processes is started and sums a column in {first['tasks']} tasks, with "
            "the table as an argument of each or as something that all have. `random rows`: each process, or "
            "thread, reads rows at random places. `batches`: 4096 shuffled rows at a time as `f32`, on one core.",
            table(["", "ms", "all runs", "rows/s", "a worker's own memory, MB"], rows),
            table(["ours", "beside", "ours is faster by"], table_factors(tables)),
            "Unfair to Python: whoever knows that a frame which is passed is pickled for every task puts it into a "
            "global, as `global Python` does; and a task of ours reads its part by plain loops, where pandas has "
            "some work to find it. Unfair to us: `global Python` does not measure how the frame got into the "
            "program's memory, which ours does not need.",
        ))
    with open(os.path.join(docs, "benchmarks.md"), "w") as file:
        file.write("\n\n".join(out) + "\n")


def table_factors(entries):
    def of(name, what):
        runs = next((entry["runs"] for entry in entries if entry["name"] == name), [])
        return median([run.get(what) for run in runs])

    rows = []
    for ours, theirs, what in (("argument", "argument Python", "seconds"), ("argument", "global Python", "seconds"),
                               ("global", "global Python", "seconds"),
                               ("random rows, processes", "random rows, Vec and threads", "rows_per_second"),
                               ("batches", "batches PyTorch", "rows_per_second")):
        mine, other = of(ours, what), of(theirs, what)
        if mine and other:
            factor = other / mine if what == "seconds" else mine / other
            rows.append([ours, theirs, f"{number(factor)} times"])
    return rows


def peers():
    with open(os.path.join(os.path.dirname(__file__), "peers", "requirements.txt")) as file:
        lines = [line.strip() for line in file]
    return [line for line in lines if "==" in line and not line.startswith("matplotlib")]


if __name__ == "__main__":
    main()
