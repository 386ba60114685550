"""The output of the programs in millrace-ipu/examples, as a user would run them."""

import re

import pytest
from examples_of_ipu import DIRECTORY, run

pytestmark = pytest.mark.every_share

# Programs whose names begin like this have tests elsewhere, such as those that a page begins with.
OTHER_TESTS = "recompilation", "keras_model"


@pytest.mark.slow
def test_the_keras_guide(tmp_path):
    """F15, F17, F18 and F29 in one process."""
    text = run("keras_guide", tmp_path)
    actual = dict(re.findall(r"^([a-z_]+): (.*)$", text, re.MULTILINE))
    assert actual["gradient_accumulation"] == "4 updates of 32 batches"
    assert actual["existing_model"] == "stage 0 ends with conv4_block2_add, call 4 of 6"
    assert actual["asynchronous_callbacks"] == (
        "4 calls at the ends of executions, 32 at the ends of batches"
    )
    assert actual["ported"] == "16 updates in two epochs of 128 steps"
    assert actual["saving"] == "stages [0, 0, 1, 1], 4 updates"
    assert actual["data_parallelism"] == "2 updates of 256 rows"
    for situation in ("single_device", "steps_per_execution", "queue_options"):
        first, second = re.search(r"losses \[([\d.]+), ([\d.]+)\]", actual[situation]).groups()
        assert float(second) < float(first)
    assert "Layer (type) (node index)" in text
    assert len(actual) == 11


@pytest.mark.slow
def test_the_training_loop(tmp_path):
    assert run("training_loop", tmp_path).splitlines() == [
        "counter 10",
        "d1 (10, 800) 2.0 2.0",
        "d2 (10, 800) 0.0 0.0",
    ]


@pytest.mark.slow
def test_losses_while_training(tmp_path):
    *steps, last = run("outfeed_live", tmp_path).splitlines()
    assert [line.split(":")[0] for line in steps] == [f"step {n}" for n in range(20, 101, 20)]
    first, final = re.fullmatch(
        r"100 losses, ([\d.]+) at first and ([\d.]+) at last", last
    ).groups()
    assert float(final) < float(first)


@pytest.mark.slow
def test_f56_fields_of_the_benchmark(tmp_path):
    lines = re.findall(r"^epoch \d: .*", run("dataset_benchmark", tmp_path), re.MULTILINE)
    fields = "elements_processed 32, total_bytes_processed .*, time_elapsed .*, "
    fields += "elements_per_second .*, bandwidth .*"
    for number, line in enumerate(lines):
        assert re.fullmatch(f"epoch {number}: {fields}", line)
    assert len(lines) == 2


@pytest.mark.slow
def test_f05_the_split_lstm(tmp_path):
    text = run("recompute_lstm", tmp_path, "--seq-len", "9", "--checkpoints", "1")
    assert "can't be evenly divided" in text
    assert "loss:" in text


@pytest.mark.slow
def test_f63_the_tutorial(tmp_path):
    text = run("mnist_inspection", tmp_path, "--epochs", "1")
    assert "key: Dense_128/kernel:0_grad shape: (5, 256, 128)" in text
    assert "\nSingle layer activations callback\nNo data enqueued\n" in text


@pytest.mark.parametrize("path", sorted(DIRECTORY.glob("*.py")), ids=lambda path: path.stem)
def test_every_program_has_a_test(path):
    with open(__file__) as file:
        assert path.stem.startswith(OTHER_TESTS) or f'run("{path.stem}"' in file.read()
