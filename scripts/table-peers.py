"""Tables of pyarrow, pandas and polars through SharedTable and back; run by scripts/table-peers."""

import datetime
import json
import os
import subprocess
import sys
import tempfile

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet

ROWS = 1000


def table(nulls):
    """A column of every type that all three know, of which every third value is missing where said."""
    there = [not (nulls and row % 3 == 1) for row in range(ROWS)]

    def column(value, data_type):
        return pa.array([value(row) if there[row] else None for row in range(ROWS)], data_type)

    day = datetime.date(1970, 1, 1)
    columns = {
        "bool": column(lambda row: row % 2 == 0, pa.bool_()),
        "f32": column(lambda row: row / 4, pa.float32()),
        "f64": column(lambda row: row / 7, pa.float64()),
        "text": column(lambda row: "é" * (row % 4) + str(row), pa.string()),
        "date": column(lambda row: day + datetime.timedelta(days=row), pa.date32()),
        "time": column(lambda row: row * 1_000_003, pa.timestamp("us")),
        "class": column(lambda row: f"class {row % 7}", pa.string()).dictionary_encode(),
    }
    for bits in 8, 16, 32, 64:
        top = 2 ** (bits - 2)
        for kind in "int", "uint":
            columns[f"{kind}{bits}"] = column(lambda row: row * 37 % top, getattr(pa, f"{kind}{bits}")())
    return pa.table(columns)


def expected(values):
    """What the table is to say of a column, from a list of Python's values."""
    epoch_day, epoch = datetime.date(1970, 1, 1), datetime.datetime(1970, 1, 1)

    def plain(value):
        if isinstance(value, datetime.datetime):
            return (value.replace(tzinfo=None) - epoch) // datetime.timedelta(microseconds=1)
        if isinstance(value, datetime.date):
            return (value - epoch_day).days
        return value

    return [plain(value) for value in values]


def check(what, found, values):
    same = len(found) == len(values) and all(
        a == b or (isinstance(a, float) and isinstance(b, float) and abs(a - b) <= 1e-12 * abs(a))
        for a, b in zip(found, values)
    )
    if not same:
        at = next((n for n, (a, b) in enumerate(zip(found, values)) if a != b), None)
        sys.exit(f"{what}: {len(found)} values of {len(values)}, first difference at {at}: "
                 f"{found[at] if at is not None else None!r}, {values[at] if at is not None else None!r}")


def through(program, folder, name, source, in_place=None):
    """Has SharedTable read a file that one of the three wrote, and the three what it makes of that."""
    path, ours = os.path.join(folder, name), os.path.join(folder, name + ".ours")
    run = subprocess.run([program, path, ours], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{name}: {run.stderr}")
    said = json.loads(run.stdout)
    if in_place is not None and said["in_place"] != in_place:
        sys.exit(f"{name}: mapped in place: {said['in_place']}")
    values = {column: expected(source[column].to_pylist()) for column in source.column_names}
    if sorted(said["columns"]) != sorted(values) or said["rows"] != source.num_rows:
        sys.exit(f"{name}: columns {list(said['columns'])}")
    with pa.memory_map(ours) as mapped:
        arrow = pa.ipc.open_file(mapped).read_all()
        arrow.validate(full=True)
        by_pyarrow = {column: expected(arrow[column].to_pylist()) for column in values}
    polars = pl.read_ipc(ours)
    pandas = pd.read_feather(ours)
    for column, right in values.items():
        check(f"{name}: {column}", said["columns"][column], right)
        check(f"{name}: {column} by pyarrow", by_pyarrow[column], right)
        check(f"{name}: {column} by polars", expected(polars[column].to_list()), right)
        frame = pandas[column]
        if list(frame.isna()) != [value is None for value in right]:
            sys.exit(f"{name}: {column} by pandas: other values are missing")
    print(f"   {name}: {len(values)} columns, {'mapped' if said['in_place'] else 'converted'}")


def main(program):
    with tempfile.TemporaryDirectory() as folder:
        def at(name):
            return os.path.join(folder, name)

        for nulls in False, True:
            data, mark = table(nulls), "nulls" if nulls else "full"
            lists = data.append_column(
                "lists",
                pa.FixedSizeListArray.from_arrays(pa.array(range(3 * ROWS), pa.float32()), 3),
            )
            name = f"pyarrow-{mark}"
            pa.feather.write_feather(lists, at(name + ".feather"), compression="uncompressed")
            through(program, folder, name + ".feather", lists, in_place=True)
            for compression in "lz4", "zstd":
                pa.feather.write_feather(
                    lists, at(f"{name}-{compression}.feather"), compression=compression, chunksize=300
                )
                through(program, folder, f"{name}-{compression}.feather", lists, in_place=False)
            with pa.ipc.new_stream(at(name + ".arrows"), lists.schema) as stream:
                stream.write_table(lists, max_chunksize=170)
            through(program, folder, name + ".arrows", lists, in_place=False)
            for compression in "zstd", "snappy", "gzip", "brotli", "lz4", "none":
                file = f"{name}-{compression}.parquet"
                pa.parquet.write_table(data, at(file), compression=compression, row_group_size=300)
                through(program, folder, file, data, in_place=False)

            frame = data.to_pandas(types_mapper=pd.ArrowDtype)
            frame["class"] = data["class"].to_pandas()
            frame.to_feather(at(f"pandas-{mark}.feather"))
            through(program, folder, f"pandas-{mark}.feather", data)
            frame.to_parquet(at(f"pandas-{mark}.parquet"))
            through(program, folder, f"pandas-{mark}.parquet", data)

            polars = pl.from_arrow(data)
            polars.write_ipc(at(f"polars-{mark}.arrow"))
            through(program, folder, f"polars-{mark}.arrow", data)
            polars.write_ipc(at(f"polars-{mark}-zstd.arrow"), compression="zstd")
            through(program, folder, f"polars-{mark}-zstd.arrow", data)
            polars.write_parquet(at(f"polars-{mark}.parquet"))
            through(program, folder, f"polars-{mark}.parquet", data)

            # What CSV has types for.
            texts = data.select(["f64", "text", "date", "int64", "bool"])
            pa.csv.write_csv(texts, at(f"pyarrow-{mark}.csv"))
            through(program, folder, f"pyarrow-{mark}.csv", texts)
            pl.from_arrow(texts).write_csv(at(f"polars-{mark}.csv"))
            through(program, folder, f"polars-{mark}.csv", texts)

        empty = table(False).slice(0, 0)
        pa.feather.write_feather(empty, at("empty.feather"))
        through(program, folder, "empty.feather", empty)


if __name__ == "__main__":
    main(sys.argv[1])
