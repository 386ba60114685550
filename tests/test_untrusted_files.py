"""Files that anybody may have written: a reader takes them, or refuses them by an error of ours.

It never raises another error, waits, or allocates what a number in a file asks for. The examples
are damaged bytes and JSON of valid files; with the slow ones they are more than ten thousand.
"""

import base64
import json
import zlib

import jax
import keras
import pytest

from damage import both, damaged_bytes, damaged_json, examine
from millrace.api.strategy.saving import OPTIONS_FILE, load_options, save_options
from millrace.base.options import Options
from millrace.base.records.cache import EntryLabels
from millrace.base.records.compilation import Aspect, KeyField, ProgramKey
from millrace.compilation.cache import entry as cache_entry
from millrace.compilation.cache import files as cache_files
from millrace.compilation.cache.keys import pack_key, read_keys
from millrace.compilation.cache.lookup import Lookup
from millrace.compilation.cache.store import CacheStore
from millrace.compilation.export import file as export_file
from millrace.compilation.export.exported import Exported
from millrace.errors import OptionError, ScheduleError
from millrace.run.schedules.table import make_schedule

pytestmark = both


def test_a_schedule(tmp_path, cases):
    path = tmp_path / "schedule.txt"
    valid = b"0F0 0F1 0B0 0B1  # first\n1F0, 1B0 1F1 1B1\n\n"

    def read(luck):
        path.write_bytes(damaged_bytes(valid, luck))
        make_schedule(path if luck.random() < 0.5 else str(path), 2, luck.choice((1, 2, 3)), (0, 1))

    examine("schedule", cases, read, (ScheduleError,))


KEY = f"jit_run-{'0' * 64}"
PROGRAM = ProgramKey("net", "train_run", (KeyField(Aspect.ARGUMENT, "x: shape", "(32, 8)"),) * 3)


def header_of(data, kind):
    return json.loads(kind.header(data))


def repacked(data, kind, luck):
    """Another header with a checksum that is right, as an author has it who means harm."""
    header = damaged_json(header_of(data, kind), luck).encode()
    return kind.pack(header, bytes(kind.content(data)))


def test_an_entry_of_the_cache(tmp_path, caplog, cases):
    lookup = Lookup(EntryLabels("net", "train_run", "float32[3]", layers=("a",), key=PROGRAM))
    root = tmp_path / "cache"
    CacheStore(root, 1 << 20, lambda: lookup).put(KEY, b"payload")
    path = root / cache_files.environment() / f"{KEY}.mrx"
    valid = path.read_bytes()

    def read(luck):
        is_whole = luck.random() < 0.6
        data = (repacked(valid, cache_entry._FORMAT, luck) if is_whole else
                damaged_bytes(valid, luck))  # fmt: skip
        path.write_bytes(data)
        found = CacheStore(root, 1 << 20, lambda: None).get(KEY)
        assert found is None or found == b"payload"

    examine("cache entry", cases, read, ())


def test_a_key_of_the_cache(tmp_path, cases):
    root = tmp_path / "cache"
    lookup = Lookup(EntryLabels("net", "train_run", "float32[3]", key=PROGRAM))
    CacheStore(root, 1 << 20, lambda: lookup).put(KEY, b"payload")
    (path,) = (root / "keys").iterdir()
    valid = path.read_bytes()

    def read(luck):
        data = damaged_bytes(valid, luck)
        if luck.random() < 0.6:
            data = zlib.compress(damaged_json(json.loads(zlib.decompress(valid)), luck).encode())
        path.write_bytes(data)
        for key in read_keys(root, "train_run", 10):
            _ = key.digest

    examine("cache key", cases, read, ())


def test_an_export(strategy, tmp_path, caplog, cases):

    environment = export_file.environment(jax.devices()[0])
    header = export_file.Header("executable", PROGRAM, environment, ("dense",), 8)
    valid = export_file.pack(header, {"data": b"code"})
    path = tmp_path / "one.mrexport"
    kind = export_file._FORMAT

    def read(luck):
        match luck.randrange(4):
            case 0:
                data = damaged_bytes(valid, luck)
            case 1:
                fields = header_of(valid, kind)
                key = damaged_json(json.loads(zlib.decompress(pack_key(PROGRAM))), luck)
                fields["key"] = base64.b64encode(zlib.compress(key.encode())).decode()
                data = kind.pack(json.dumps(fields).encode(), bytes(kind.content(valid)))
            case _:
                data = repacked(valid, kind, luck)
        path.write_bytes(data)
        caplog.clear()
        Exported().load(tmp_path, jax.devices()[:1])

    examine("export", cases, read, ())


@pytest.fixture
def model(strategy):
    with strategy.scope():
        made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(2)])
    made.compile("sgd", "mse")
    made.set_pipeline_stage_assignment([0, 1])
    made.set_pipelining_options(
        gradient_accumulation_steps_per_replica=4, device_mapping=[0, 0],
        pipeline_schedule="0F0 0B0\n1F0 1B0", gradient_accumulation_dtype="float32",
        forward_propagation_stages_compiler_options=[{"xla_cpu_use_onednn": True}, {}],
    )  # fmt: skip
    made.set_recomputation_options(budget=0.5)
    return made


def test_the_options_of_a_model(tmp_path, model, cases):
    controller = model._millrace
    save_options(controller, str(tmp_path))
    path = tmp_path / OPTIONS_FILE
    valid = path.read_bytes()
    load_options(controller, str(tmp_path))

    def read(luck):
        data = damaged_bytes(valid, luck)
        if luck.random() < 0.8:
            data = damaged_json(json.loads(valid), luck).encode()
        path.write_bytes(data)
        before = controller.setup.options, controller.setup.stages.assignment()
        try:
            load_options(controller, str(tmp_path))
        except OptionError:
            assert before == (controller.setup.options, controller.setup.stages.assignment())
            raise
        assert isinstance(controller.setup.options, Options)
        hash(controller.setup.options.accumulation)

    examine("options", cases, read, (OptionError,))
