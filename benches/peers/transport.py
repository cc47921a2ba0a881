"""Moves payloads from a subprocess to the program, for `transport`, in one of the ways of Python.

The environment variable LOADER_TRANSPORT holds a task as JSON: `mover`, `bytes` of a payload and their
`count`. Prints one line of JSON in the form of the Rust program's own runs. The worker copies each
payload from memory of its own, and the program looks at its first and last byte.
"""

import contextlib
import json
import multiprocessing
import os
import signal
import time

import numpy

FIRST = 8


class Payloads:
    def __init__(self, size, count, place):
        self.size, self.count, self.place = size, count, place

    def __iter__(self):
        source = numpy.arange(self.size, dtype=numpy.uint8)
        for _ in range(self.count):
            yield self.place(source)


def with_spdl(size, count):
    # Its threads and a fork do not go together, and the pool's locks are of the default kind.
    multiprocessing.set_start_method("forkserver")
    from spdl.pipeline import SharedMemorySegmentPool, iterate_in_subprocess

    pool = SharedMemorySegmentPool(size + (1 << 16), 4)
    # The pool copies into its segment, which is the worker's one copy.
    make = Maker(size, count, same)
    return iterate_in_subprocess(make, buffer_size=4, arena=pool)


def same(array):
    return array


class Maker:
    """Makes the payloads in the worker; a class, so that it can be pickled."""

    def __init__(self, *args):
        self.args = args

    def __call__(self):
        return Payloads(*self.args)


def with_torch(size, count):
    import torch
    import torch.utils.data

    torch.set_num_threads(1)

    class Tensors(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(Payloads(size, count, lambda source: torch.from_numpy(source).clone()))

    return torch.utils.data.DataLoader(
        Tensors(), batch_size=None, num_workers=1, prefetch_factor=4, multiprocessing_context="fork")


def with_pipe(size, count):
    receive, send = multiprocessing.Pipe(duplex=False)

    def work():
        for payload in Payloads(size, count, same):
            send.send(payload)

    context = multiprocessing.get_context("fork")
    context.Process(target=work, daemon=True).start()
    for _ in range(count):
        yield receive.recv()


def processes():
    own = os.getpid()
    found, left = [], [own]
    while left:
        pid = left.pop()
        found.append(pid)
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                left.extend(int(child) for child in file.read().split())
    return found


def cpu_seconds(pids):
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def pss(pids):
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            total += sum(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    return total


def main():
    task = json.loads(os.environ["LOADER_TRANSPORT"])
    movers = {"spdl-segments": with_spdl, "torch": with_torch, "pipe": with_pipe}
    size, count = task["bytes"], task["count"]
    payloads = iter(movers[task["mover"]](size, count + FIRST))
    for _ in range(FIRST):
        payload = next(payloads)
    pids = processes()
    begin, cpu = time.perf_counter(), cpu_seconds(pids)
    for i in range(count):
        payload = next(payloads)
        assert int(payload[0]) == 0 and int(payload[-1]) == (size - 1) % 256
        if i == count - 2:
            # The worker may end with the last one.
            used, memory = cpu_seconds(pids) - cpu, pss(pids)
    seconds = time.perf_counter() - begin
    print(json.dumps({"seconds": seconds, "cpu_seconds": used, "pss": memory}), flush=True)
    # Workers that wait to be told would keep our output open.
    for pid in pids[1:]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    main()
