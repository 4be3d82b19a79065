"""Output tokens/s of the built-in paths against transformers' `generate`, on the same weights.

    python benchmarks/engine_vs_transformers.py            (about ten minutes on two cores)

Beside the two ends it measures them with one thing left out, which gives what replaying graphs and what
compiling gain over running the same model eagerly.

Every contender lives in a process of its own and sleeps while another is measured. A round measures all of
them at every concurrency, one after the other, in an order that reverses from round to round; a ratio is
taken within a round, so that a slow minute of the machine hits both of its sides. Work: `tiny_v32` as
committed, bf16, greedy, 128 random prompt tokens and 64 output tokens per request, all requests at once.
The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import paths

PROMPT_TOKENS = 128
OUTPUT_TOKENS = 64
TRANSFORMERS = "transformers"
FLOORS = {
    "dsa_mrv2": {1: 5.0, 16: 8.0, 64: 14.0},
    "generic_mrv1": {1: 3.0, 16: 5.0, 64: 8.0},
}
# contender → path and what of its options is changed
CONTENDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "dsa_mrv2": ("dsa_mrv2", {}),
    "dsa_mrv2_eager": ("dsa_mrv2_eager", {}),
    "generic_mrv1": ("generic_mrv1", {}),
    "generic_compiled": ("generic_mrv1", {"graphs": "none"}),
    "generic_eager": ("generic_eager", {}),
}
GAINS = (
    ("replay over eager, dsa_mrv2", "dsa_mrv2", "dsa_mrv2_eager"),
    ("replay over no graphs, generic_mrv1", "generic_mrv1", "generic_compiled"),
    ("compilation over eager, generic", "generic_compiled", "generic_eager"),
)
CONF = Path(next(iter(paths.__path__))).parent / "conf"
Run = Callable[[np.ndarray], float]  # prompts [C, 128] → seconds


def tiny_v32() -> dict:
    return yaml.safe_load((CONF / "model" / "tiny_v32.yaml").read_text())["hf_config"]


def write_checkpoint(folder: Path) -> None:
    """The dummy weights as a checkpoint in HF layout, for contenders that load from disk."""
    import torch
    from safetensors.torch import save_file

    from paths.models.config import ModelConfig
    from paths.models.dummy import DummyWeights
    from paths.models.weights import assemble

    seen: dict[str, torch.Tensor] = {}

    class Recorder(DummyWeights):
        def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
            seen[name] = super().get(name, shape).bfloat16()
            return seen[name]

    hf_config = tiny_v32()
    config = ModelConfig.from_hf(hf_config)
    assemble(Recorder(config, seed=0), config, dtype=torch.bfloat16, device=torch.device("cpu"))
    save_file(seen, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(hf_config | {"dtype": "bfloat16"}))


def make_transformers(folder: str, threads: int) -> Run:
    import torch
    import transformers

    torch.set_num_threads(threads)
    transformers.utils.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()

    def run(prompts: np.ndarray) -> float:
        ids = torch.from_numpy(prompts.astype(np.int64))
        started = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=OUTPUT_TOKENS,
                min_new_tokens=OUTPUT_TOKENS,
                do_sample=False,
                pad_token_id=2,
            )
        elapsed = time.perf_counter() - started
        assert out.shape[1] == PROMPT_TOKENS + OUTPUT_TOKENS, f"generate returned {tuple(out.shape)}"
        return elapsed

    return run


def make_engine(name: str, folder: str, threads: int) -> Run:
    from paths import registry
    from paths.api import EngineConfig, ModelSource, Request, SamplingParams

    path, changes = CONTENDERS[name]
    conf = yaml.safe_load((CONF / "path" / f"{path}.yaml").read_text())
    source = ModelSource(name="tiny_v32", hf_config=tiny_v32(), checkpoint=folder)
    config = EngineConfig(
        path=path, impl=conf["impl"], options=conf["options"] | changes, model=source, threads=threads
    )
    engine = registry.load(conf["impl"]).start(config)
    engine.warm_up()
    params = SamplingParams(max_tokens=OUTPUT_TOKENS, min_tokens=OUTPUT_TOKENS, ignore_eos=True)
    next_id = iter(range(sys.maxsize))

    def run(prompts: np.ndarray) -> float:
        started = time.perf_counter()
        for prompt in prompts:
            engine.add(Request(request_id=next(next_id), prompt_ids=prompt, params=params))
        tokens = 0
        while engine.has_work():
            tokens += len(engine.step().token_ids)
        elapsed = time.perf_counter() - started
        assert tokens == prompts.shape[0] * OUTPUT_TOKENS, f"{tokens} tokens came back"
        return elapsed

    return run


def contend(name: str, folder: str, threads: int, connection: Connection) -> None:
    run = make_transformers(folder, threads) if name == TRANSFORMERS else make_engine(name, folder, threads)
    connection.send("ready")
    while (prompts := connection.recv()) is not None:
        connection.send(run(prompts))


@contextmanager
def contenders(names: list[str], threads: int) -> Iterator[dict[str, Connection]]:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder))
        pipes: dict[str, Connection] = {}
        processes = []
        for name in names:
            ours, theirs = context.Pipe()
            process = context.Process(target=contend, args=(name, folder, threads, theirs), daemon=True)
            process.start()
            processes.append(process)
            pipes[name] = ours
            theirs.close()
            assert ours.recv() == "ready"
            print(f"{name}: ready", file=sys.stderr)
        yield pipes
        for name, process in zip(names, processes, strict=True):
            pipes[name].send(None)
            process.join(timeout=30)


def measure(pipe: Connection, concurrency: int, rng: np.random.Generator) -> float:
    """Output tokens per second."""
    prompts = rng.integers(3, tiny_v32()["vocab_size"], size=(concurrency, PROMPT_TOKENS), dtype=np.int32)
    pipe.send(prompts)
    return concurrency * OUTPUT_TOKENS / pipe.recv()


def summarize(rates: dict[str, dict[int, list[float]]]) -> list[dict]:
    rows = []
    for name, by_concurrency in rates.items():
        for concurrency, values in by_concurrency.items():
            row = {
                "contender": name,
                "concurrency": concurrency,
                "tok_s": round(statistics.median(values), 1),
            }
            if name != TRANSFORMERS:
                ratios = [a / b for a, b in zip(values, rates[TRANSFORMERS][concurrency], strict=True)]
                row |= {
                    "ratio": round(statistics.median(ratios), 2),
                    "range": [round(min(ratios), 2), round(max(ratios), 2)],
                    "floor": FLOORS.get(name, {}).get(concurrency),
                }
            rows.append(row)
    return rows


def gains(rates: dict[str, dict[int, list[float]]]) -> list[dict]:
    """Ratios of two contenders within each round."""
    return [
        {
            "gain": label,
            "concurrency": concurrency,
            "ratio": round(statistics.median(ratios), 3),
            "range": [round(min(ratios), 3), round(max(ratios), 3)],
        }
        for label, ours, base in GAINS
        if ours in rates and base in rates
        for concurrency in rates[ours]
        if (
            ratios := [a / b for a, b in zip(rates[ours][concurrency], rates[base][concurrency], strict=True)]
        )
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--paths", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    options = parser.parse_args()
    names = [TRANSFORMERS, *options.paths]
    rng = np.random.default_rng(0)
    rates: dict[str, dict[int, list[float]]] = {n: {c: [] for c in options.concurrency} for n in names}
    with contenders(names, options.threads) as pipes:
        for name in names:  # first calls allocate and build primitives: not counted
            for concurrency in options.concurrency:
                measure(pipes[name], concurrency, rng)
        for number in range(options.rounds):
            for concurrency in options.concurrency:
                for name in names if number % 2 == 0 else reversed(names):
                    rates[name][concurrency].append(measure(pipes[name], concurrency, rng))
            print(f"round {number + 1} of {options.rounds} done", file=sys.stderr)
    rows = summarize(rates)
    print(f"{'contender':16} {'concurrency':>11} {'tok/s':>9} {'ratio':>7} {'range':>15} {'floor':>6}")
    for row in rows:
        spread = "{} – {}".format(*row["range"]) if "range" in row else "1"
        print(
            f"{row['contender']:16} {row['concurrency']:>11} {row['tok_s']:>9} {row.get('ratio', 1):>7} "
            f"{spread:>15} {row.get('floor') or '':>6}"
        )
    for row in gains(rates):
        low, high = row["range"]
        print(f"{row['gain']:36} {row['concurrency']:>4} {row['ratio']:>6} ({low} – {high})")
    below = [row for row in rows if row.get("floor") and row["ratio"] < row["floor"]]
    for row in below:
        print(
            f"{row['contender']} at concurrency {row['concurrency']}: {row['ratio']} is below {row['floor']}"
        )
    print(
        json.dumps(
            {"rounds": options.rounds, "threads": options.threads, "rows": rows, "gains": gains(rates)}
        )
    )
    sys.exit(1 if below else 0)


if __name__ == "__main__":
    main()
