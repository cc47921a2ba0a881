"""What people do today with a table that every worker needs, and with its rows as batches: the same work as
`table` (benches/src/bin/table.rs), by Python's process pool and PyTorch's DataLoader.

    table.py --how argument|global|dataset --table FILE [--tasks 32] [--processes 8] [--batch-size 4096]
        [--batches 20]

FILE is an Arrow file of f64 columns. A task is the sum of the first column over its part of the rows.
`argument` passes the frame to every task of a pool, which pickles it each time; `global` leaves it in a global
that forked workers inherit. `dataset` reads shuffled batches of all columns, as f32, from a TensorDataset by a
DataLoader without workers, so on one core. Prints one line of JSON.
"""

import argparse
import json
import multiprocessing
import os
import resource
import time

FRAME = None


def rows(frame, task, tasks):
    return slice(len(frame) * task // tasks, len(frame) * (task + 1) // tasks)


def of_argument(frame, task, tasks):
    return float(frame.iloc[rows(frame, task, tasks), 0].sum())


def of_global(task, tasks):
    return of_argument(FRAME, task, tasks)


def private(pid):
    """Memory that no other process maps (USS), in kB."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Private_"))


def pool(args):
    global FRAME
    import pandas

    frame = pandas.read_feather(args.table)
    if args.how == "global":
        FRAME = frame
    begun = time.perf_counter()
    with multiprocessing.get_context("fork").Pool(args.processes) as workers:
        if args.how == "global":
            sums = workers.starmap(of_global, [(task, args.tasks) for task in range(args.tasks)], chunksize=1)
        else:
            calls = [(frame, task, args.tasks) for task in range(args.tasks)]
            sums = workers.starmap(of_argument, calls, chunksize=1)
        ended = time.perf_counter()
        uss = max(private(worker.pid) for worker in workers._pool)
    return {"seconds": ended - begun, "sum": sum(sums), "worker_uss_kb": uss}


def dataset(args):
    import pandas
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    frame = pandas.read_feather(args.table)
    values = torch.from_numpy(frame.to_numpy(dtype="float32", copy=True))
    loader = iter(DataLoader(TensorDataset(values[:, :-1], values[:, -1]), args.batch_size, shuffle=True))
    next(loader)
    begun = time.perf_counter()
    count = sum(len(features) for _, (features, _) in zip(range(args.batches), loader))
    return {"rows_per_second": count / (time.perf_counter() - begun)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", choices=["argument", "global", "dataset"], required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--tasks", type=int, default=32)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--batches", type=int, default=20)
    args = parser.parse_args()
    told = dataset(args) if args.how == "dataset" else pool(args)
    told["peak_rss_kb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"how": args.how, "cpus": os.cpu_count(), **told}))


if __name__ == "__main__":
    main()
