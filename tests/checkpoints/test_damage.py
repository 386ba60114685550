"""Checkpoints in which anything is changed: they are refused or passed over, and nothing else."""

import json
import logging
import pathlib
import random
import resource
import shutil
import zlib

import numpy as np
import pytest
from training_runs import fit

from millrace.base.checkpoints.directory import CheckpointDirectory
from millrace.base.checkpoints.manifest import DamagedError
from millrace.base.checkpoints.stored import Snapshot
from millrace.errors import CheckpointError

MOST_MEMORY = 1 << 31  # bytes that reading may take, far below what false shapes ask for


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A directory with two small checkpoints, the newer of which is damaged by the tests."""
    path = tmp_path_factory.mktemp("template") / "checkpoints"
    directory = CheckpointDirectory(path)
    for step in (1, 2):
        model = {"w": np.arange(40.0, dtype="float32"), "b": np.float32(1)}
        directory.write(
            Snapshot(
                step=step,
                epoch=0,
                epoch_step=step,
                kind="fit",
                model=model,
                others=[{"a": (1, b"x")}],
            )
        )
    return path


@pytest.fixture(scope="module")
def of_fit(tmp_path_factory):
    """A directory with a checkpoint of a fit."""
    path = tmp_path_factory.mktemp("of_fit") / "checkpoints"
    fit(str(path), kind="eight steps", epochs=1, keep=1)
    return path


def files_of(checkpoint):
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


def damage_a_file(checkpoint, generator):
    """Changes the bytes of one file, or removes it; returns a description."""
    path = generator.choice(files_of(checkpoint))
    content = bytearray(path.read_bytes())
    how = generator.choice(["flip", "cut", "longer", "removed", "other", "directory", "empty"])
    if how == "flip" and content:
        for _ in range(generator.choice([1, 1, 8])):
            content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
    elif how == "cut":
        content = content[: generator.randrange(len(content) + 1)]
    elif how == "longer":
        content += generator.randbytes(generator.choice([1, 100]))
    elif how == "other":
        content = generator.choice(files_of(checkpoint)).read_bytes()
    elif how == "empty":
        content = b""
    path.unlink()
    if how == "directory":
        path.mkdir()
    elif how != "removed":
        path.write_bytes(content)
    return f"{how} {path.name}"


JUNK = [
    None, True, False, 0, 1, -1, 3, 1 << 40, 1 << 62, 1 << 80, 1.5, 1e308, "", "x", "../x",
    "float32", "object", "V8", "int4", [], [1], {}, {"array": 0}, {"array": 10**9},
    {"dict": [[[], 1]]},
    {"scalar": 1}, {"tuple": 3}, {"bytes": "!"}, {"float": "x"}, [[1 << 45], "float32"],
    {"dict": []}, [[2, 2], "float64"], {"tuple": [3, {"tuple": [1]}, None]},
]  # fmt: skip


def places(value):
    """Yields the containers in a value with the keys of what they hold."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items):
        yield value, key
        if isinstance(inner, dict | list):
            yield from places(inner)


def change_manifest(checkpoint, generator):
    """Changes the values of a manifest, with a checksum that fits, and at times other files."""
    path = checkpoint / "checkpoint.json"
    values = json.loads(path.read_text().splitlines()[0])
    done = []
    for _ in range(generator.choice([1, 1, 2])):
        # By levels, since most of the values lie deep.
        top = generator.choice(sorted(values))
        found = [(values, top)]
        if isinstance(values[top], dict | list):
            found += places(values[top])
        owner, key = generator.choice(found)
        how = generator.choice(["junk", "junk", "near", "removed", "twice"])
        old = owner[key]
        if how == "removed":
            del owner[key]
        elif how == "twice" and isinstance(owner, list):
            owner.insert(key, old)
        elif how == "near" and isinstance(old, int):
            owner[key] = int(old) + generator.choice([-1, 1, 100, 1 << 20])
        else:
            owner[key] = generator.choice(JUNK)
        done.append(f"{how} {top}.{key}: {str(old)[:30]} {str(owner)[:60]}")
        if not isinstance(values, dict) or not values:
            break
    seal(checkpoint, values)
    return done


def change_arrays(checkpoint, generator):
    """Changes the file of arrays, with a checksum that fits."""
    path = checkpoint / "arrays.safetensors"
    content = bytearray(path.read_bytes())
    if content and generator.random() < 0.8:
        content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
    else:
        content = content[: generator.randrange(len(content) + 1)]
    path.write_bytes(content)
    values = json.loads((checkpoint / "checkpoint.json").read_text().splitlines()[0])
    values["files"][path.name] = [len(content), zlib.crc32(content)]
    seal(checkpoint, values)
    return path.name


def seal(checkpoint, values):
    body = json.dumps(values)
    text = f"{body}\n{zlib.crc32(body.encode()):08x}\n"
    (checkpoint / "checkpoint.json").write_text(text)


WAYS = {each.__name__: each for each in (damage_a_file, change_manifest, change_arrays)}


def read_damaged(template, work, seed):
    """Damages the newer checkpoint and reads; returns whether the older one was used."""
    generator = random.Random(seed)
    path = shutil.copytree(template, work / str(seed))
    done = WAYS[generator.choice(list(WAYS))](path / "step-00000002", generator)
    directory = CheckpointDirectory(path)
    try:
        directory.open(2).values()
    except (DamagedError, CheckpointError):
        pass
    except BaseException as error:
        raise AssertionError(f"seed {seed}: {done}") from error
    newest = directory.newest()
    assert newest is not None
    shutil.rmtree(path)
    return newest[0].manifest.step == 1


@pytest.fixture(autouse=True)
def bounded_memory():
    """Lets a giant allocation fail, in place of the machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MOST_MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def read_all(template, tmp_path, seeds):
    logging.getLogger("millrace").setLevel(logging.CRITICAL)
    passed_over = sum(read_damaged(template, tmp_path, seed) for seed in seeds)
    print(f"cases: {len(seeds)}, passed over: {passed_over}")
    assert passed_over > len(seeds) / 3


def test_damaged_checkpoints_are_passed_over(template, tmp_path):
    read_all(template, tmp_path, range(30))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(n, n + 500) for n in range(1000, 3000, 500)], ids=str)
def test_many_damaged_checkpoints_are_passed_over(template, tmp_path, seeds):
    read_all(template, tmp_path, seeds)


def fit_damaged(template: pathlib.Path, work: pathlib.Path, seed: int) -> bool:
    """Damages the only checkpoint and trains; returns whether it was refused."""
    generator = random.Random(seed)
    path = shutil.copytree(template, work / str(seed))
    [checkpoint] = path.glob("step-*")
    way = generator.choice([change_manifest] * 8 + [damage_a_file, change_arrays])
    done = way(checkpoint, generator)
    try:
        fit(str(path), kind="eight steps", epochs=1)
    except CheckpointError:
        return True
    except BaseException as error:
        raise AssertionError(f"seed {seed}: {done}") from error
    finally:
        shutil.rmtree(path)
    return False


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(n, n + 50) for n in range(0, 200, 50)], ids=str)
def test_fits_refuse_damaged_checkpoints(of_fit, tmp_path, seeds):
    logging.getLogger("millrace").setLevel(logging.CRITICAL)
    refused = sum(fit_damaged(of_fit, tmp_path, seed) for seed in seeds)
    print(f"cases: {len(seeds)}, refused: {refused}")
    assert refused > len(seeds) / 4
