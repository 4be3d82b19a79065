"""Records of a ladder that was climbed in rounds, with throughputs that are known."""

from harness.experiment import Experiment
from harness.records import Metric
from tests.reports.conftest import make_failed, make_record

PATHS = ["first", "second", "third"]


def experiment(rounds=3, paths=PATHS):
    ladder = [{"path": path} | ({"switch": f"to {path}"} if path != paths[0] else {}) for path in paths]
    return Experiment.model_validate({"name": "made up", "rounds": rounds, "ladder": ladder})


def metrics(out_tps, tpot_ms):
    return {
        "out_tps": Metric(value=out_tps, unit="tok/s", better="up", n=9),
        "tpot_pooled_ms": Metric(value=tpot_ms, unit="ms", better="down", n=9),
    }


# round → throughput of each arm
SPEEDS = {1: (100.0, 200.0, 150.0), 2: (110.0, 200.0, 180.0), 3: (90.0, 210.0, 150.0)}


def climb(speeds=SPEEDS, *, paths=PATHS, concurrency=16, broken=None, start=0):
    """Records of a whole ladder; `broken` maps (round, path) to changes of that record, or to None."""
    records = []
    for number, values in speeds.items():
        for path, speed in zip(paths, values, strict=True):
            order = start + len(records)
            changes = {} if broken is None else broken.get((number, path), {})
            if changes is None:
                continue
            build = make_failed if "state" in changes and changes["state"] != "FALLBACK" else make_record
            common = {"metrics": metrics(speed, 4000.0 / speed)} if build is make_record else {}
            requested = {"path": path, "concurrency": concurrency, "options": {"gap_ms": speed}}
            records.append(build(order, **(common | {"round": number, "requested": requested} | changes)))
    return records


def only(conditions):
    (condition,) = conditions
    return condition
