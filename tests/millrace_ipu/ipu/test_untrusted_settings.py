"""The settings in a model's file, which anybody may have written: see `tests/damage.py`."""

import json

from linear_models import two_stages

from damage import both, damaged_bytes, damaged_json, examine
from millrace_ipu.ipu.ipu_strategy import IPUStrategy
from millrace_ipu.ipu.keras.extensions.saving import FILE, as_dict, load_assets_with_settings
from millrace_ipu.ipu.keras.extensions.settings import settings_of


@both
def test_the_settings_of_a_model(system, tmp_path, cases):
    system(2)
    model = two_stages(IPUStrategy(), 8)
    model.set_pipelining_options(4, [1, 0])
    model.set_infeed_queue_options(prefetch_depth=3)
    controller = model._millrace
    valid = json.dumps(as_dict(controller)).encode()
    load = load_assets_with_settings(lambda directory: None, controller)

    def read(luck):
        data = damaged_bytes(valid, luck)
        if luck.random() < 0.8:
            data = damaged_json(json.loads(valid), luck).encode()
        (tmp_path / FILE).write_bytes(data)
        load(str(tmp_path))
        str(settings_of(controller))

    examine("settings", cases // 2, read)
