"""The number of devices that a program will ask for, read from its text."""

import textwrap

import pytest

from millrace_ipu.porting.running.device_requests import COMPUTED, devices_asked_for

CONFIG = "from tensorflow.python import ipu\ncfg = ipu.config.IPUConfig()\n"
OPTION = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--num-ipus", "-n", type=int, default=2)
parser.add_argument("--replicated", action="store_true")
args = parser.parse_args()
"""
AUTO = "cfg.auto_select_ipus"
SPLIT = """
parser.add_argument("--ids", default="AUTO")
if args.ids == "AUTO":
    cfg.auto_select_ipus = 1
else:
    cfg.select_ipus = [int(each) for each in args.ids.split(",")]
"""


@pytest.fixture
def asked(tmp_path):
    def ask(text, *arguments, **modules):
        for name, content in modules.items():
            path = tmp_path / (name.replace("__", "/") + ".py")
            path.parent.mkdir(exist_ok=True)
            path.write_text(textwrap.dedent(content))
        script = tmp_path / "program.py"
        script.write_text(textwrap.dedent(text))
        return devices_asked_for(script, arguments)

    return ask


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        ("", 0),
        ("cfg.auto_select_ipus = 1", 1),
        ("cfg.auto_select_ipus = 4", 4),
        ("cfg.auto_select_ipus = [1, 2]", 3),
        ("cfg.select_ipus = 3", 4),
        ("cfg.select_ipus = (4, 2)", 5),
        ("cfg.auto_select_ipus = []", 0),
        ("cfg.auto_select_ipus = 1\ncfg.auto_select_ipus = 2", 2),
        ("N = 2\nM = 2 * N\ncfg.auto_select_ipus = M + N // 2 - 1", 4),
        ("for n in (1, 8):\n    cfg.auto_select_ipus = n", 8),
        ("for n in range(4):\n    cfg.auto_select_ipus = 2 ** n", 8),
        ("for n, name in [(1, 'a'), (8, 'b')]:\n    cfg.auto_select_ipus = n", COMPUTED),
        ("a, b = 2, 6\ncfg.auto_select_ipus = b", 6),
        ("cfg.auto_select_ipus = len([0, 0, 1])", 3),
        ("cfg.auto_select_ipus = max([0, 0, 1]) + 1", 2),
        ("cfg.auto_select_ipus = int('2')", 2),
        ("cfg.auto_select_ipus = 2 if len('ab') == 2 else 4", 2),
        ("cfg.auto_select_ipus = None or 3", 3),
        ("cfg.auto_select_ipus = [1] * 4", 4),
        ("cfg.auto_select_ipus = [1 for _ in range(3)]", 3),
        ("cfg.auto_select_ipus = {'small': 2, 'large': 8}[name]", 8),
        ("setattr(cfg, 'auto_select_ipus', 2)", 2),
        ("cfg.from_dict({'auto_select_ipus': 2})", 2),
        ("cfg = ipu.utils.auto_select_ipus(ipu.utils.create_ipu_config(), 2)", 2),
        ("cfg = ipu.utils.auto_select_ipus(cfg, num_ipus=[1, 1])", 2),
        ("cfg = ipu.utils.select_ipus(cfg, indices=[2])", 3),
        ("import json\ncfg.auto_select_ipus = json.load(open('x'))['ipus']", COMPUTED),
        ("settings = {}\nsettings['ipus'] = 2\ncfg.auto_select_ipus = settings['ipus']", 2),
        ("import millrace\nmillrace.Strategy(devices='cpu:4')", 4),
        ("n = 0\nn += 2\ncfg.auto_select_ipus = n", COMPUTED),
        ("def f():\n    return 4\ncfg.auto_select_ipus = f()", 4),
        ("def make(number=1):\n    cfg.auto_select_ipus = number\nmake()\nmake(2)", 2),
        ("def make(*, number=1):\n    cfg.auto_select_ipus = number\nmake(number=2)", 2),
        ("n = 60000\ndef make(n):\n    cfg.auto_select_ipus = n\nmake(2)", 2),
        ("class A:\n    ipus: int = 2\ncfg.auto_select_ipus = A().ipus", 2),
        (
            "class A:\n    def __init__(self, n):\n        self.n = n\n"
            "    def make(self):\n        cfg.auto_select_ipus = self.n\nA(2).make()",
            2,
        ),
        ("def outer(k):\n    f = lambda n: setattr(cfg, 'auto_select_ipus', k)\nouter(2)", 2),
        ("cfg.auto_select_ipus = cfg.auto_select_ipus", COMPUTED),
        ("def f(n):\n    return f(n)\ncfg.auto_select_ipus = f(1)", COMPUTED),
        ("def select_ipus(replicas):\n    cfg.auto_select_ipus = replicas\nselect_ipus(2)", 2),
    ],
)
def test_of_expressions(asked, lines, number):
    assert asked(CONFIG + lines) == number


@pytest.mark.parametrize(
    ("arguments", "number"),
    [
        ((), 2),
        (("--num-ipus", "4"), 4),
        (("--num-ipus=4",), 4),
        (("--num=4",), 4),
        (("-n", "4"), 4),
        (("-n4",), 4),
        (("--num-ipus", "4", "--num-ipus", "3"), 3),
        (("--epochs", "9"), 2),
        (("--num-ipus", "many"), COMPUTED),
    ],
)
def test_of_the_command_line(asked, arguments, number):
    assert asked(CONFIG + OPTION + "cfg.auto_select_ipus = args.num_ipus", *arguments) == number


@pytest.mark.parametrize(
    ("lines", "arguments", "number"),
    [
        ("cfg.auto_select_ipus = 4 if args.replicated else 1", (), 1),
        ("cfg.auto_select_ipus = 4 if args.replicated else 1", ("--replicated",), 4),
        ("cfg.auto_select_ipus = vars(args)['num_ipus']", ("-n", "3"), 3),
        ("import sys\ncfg.auto_select_ipus = int(sys.argv[1])", ("3",), 3),
        ("import sys\nn = int(sys.argv[1]) if len(sys.argv) > 1 else 2\n"
         "cfg.auto_select_ipus = n", (), 2),
        ("parser.add_argument('ipus', type=int)\ncfg.auto_select_ipus = args.ipus", ("3",), 3),
        ("flags.DEFINE_integer('ipus', 2, 'number')\ncfg.auto_select_ipus = flags.FLAGS.ipus",
         ("--ipus=3",), 3),
        ("parser.add_argument('--ids', nargs='+', type=int)\ncfg.select_ipus = args.ids",
         ("--ids", "0", "4", "--epochs", "9"), 5),
        ("parser.add_argument('-r', dest='ipus', default=6)\ncfg.auto_select_ipus = args.ipus",
         (), 6),
        (SPLIT, (), 1),
        (SPLIT, ("--ids", "0,3"), 4),
        (f"if args.replicated:\n    {AUTO} = 8\nelse:\n    {AUTO} = 2", (), 2),
        (f"if args.replicated:\n    {AUTO} = 8\nelse:\n    {AUTO} = 2", ("--replicated",), 8),
        (f"n = 2\nif args.num_ipus > 2:\n    n = args.num_ipus\n{AUTO} = n", ("-n4",), 4),
        ("@click.option('--ipus', default=2)\ndef main(ipus):\n    cfg.auto_select_ipus = ipus",
         ("--ipus=3",), 3),
        (f"import math\n{AUTO} = 2 ** math.ceil(math.log2(args.num_ipus))", ("-n3",), 4),
        (f"import numpy as np\n{AUTO} = int(np.prod([2, args.num_ipus]))", (), 4),
        ("parser.add_argument('--ids')\nif args.ids:\n    cfg.select_ipus = args.ids", (), 0),
    ],
)  # fmt: skip
def test_of_other_options(asked, lines, arguments, number):
    assert asked(CONFIG + OPTION + lines, *arguments) == number


def test_of_the_environment(asked, monkeypatch):
    for text in ("os.environ['IPUS']", "os.environ.get('IPUS', '2')", "os.getenv('IPUS', '2')"):
        program = f"{CONFIG}import os\ncfg.auto_select_ipus = int({text})"
        monkeypatch.setenv("IPUS", "3")
        assert asked(program) == 3
        monkeypatch.delenv("IPUS")
        assert asked(program) == (COMPUTED if "[" in text else 2)


def test_of_modules_of_the_program(asked):
    assert asked("import setup_ipu", setup_ipu=CONFIG + "cfg.auto_select_ipus = 2") == 2
    assert (
        asked(
            "from settings import REPLICAS as R\nfrom tools.devices import make\nmake(R)",
            settings="REPLICAS = 2",
            tools__devices="def make(n):\n    c.auto_select_ipus = n * settings.STAGES\n",
        )
        == COMPUTED
    )
    assert (
        asked(
            "from settings import REPLICAS as R\nfrom tools.devices import make\nmake(R)",
            settings="REPLICAS = 2\nSTAGES = 2",
            tools__devices="import settings\ndef make(n):\n    c.auto_select_ipus = n * "
            "settings.STAGES\n",
        )
        == 4
    )


def test_programs_whose_names_depend_on_many_others_are_read_at_once(asked):
    lines = [f"n{k + 1} = n{k} + n{k} - n{k}" for k in range(40)]
    assert asked("\n".join([CONFIG, "n0 = 2", *lines, "cfg.auto_select_ipus = n12"])) == 2
    calls = [f"def f{k}(a):\n    return f{(k + 1) % 40}(a) + f{(k + 2) % 40}(a)" for k in range(40)]
    assert asked("\n".join([CONFIG, *calls, "cfg.auto_select_ipus = f0(1)"])) == COMPUTED


def test_a_file_that_is_no_python_asks_for_nothing(asked, tmp_path):
    assert asked("def (") == 0
    assert asked("import broken", broken="x = (") == 0
    assert devices_asked_for(tmp_path / "missing.py") == 0
