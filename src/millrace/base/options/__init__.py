"""Every option of a model, declared once.

    choices.py           Reduction, RecomputationMode, ...: choices by name
    default_devices.py   the devices of stages without a `device_mapping`
    checks.py            whole_number, truth, ...: a value, or an error with the value to set
    table.py             the declaration of an option: name, setters, check, doc, ...
    update_records.py    Accumulation, Pipelining: frozen, a field for each option
    records.py           Replication, Offload, ...; and Options, which has all
    tap_request.py       the tensors that callbacks watch

One rule for None: **an argument left out, or None, keeps the value in force.** An option whose
default is decided later, by the device or by other options, takes `"auto"` for that default.
"""

from collections.abc import Mapping

from millrace.base.options.checks import bytes_or_share as bytes_or_share
from millrace.base.options.checks import directory_path as directory_path
from millrace.base.options.checks import member as member
from millrace.base.options.checks import truth as truth
from millrace.base.options.checks import whole_number as whole_number
from millrace.base.options.choices import MetricReduction as MetricReduction
from millrace.base.options.choices import Moment as Moment
from millrace.base.options.choices import QueueMode as QueueMode
from millrace.base.options.choices import RecompilePolicy as RecompilePolicy
from millrace.base.options.choices import RecomputationMode as RecomputationMode
from millrace.base.options.choices import Reduction as Reduction
from millrace.base.options.default_devices import default_devices as default_devices
from millrace.base.options.records import MIB as MIB
from millrace.base.options.records import NO_OFFLOAD as NO_OFFLOAD
from millrace.base.options.records import NO_TAPS as NO_TAPS
from millrace.base.options.records import Feed as Feed
from millrace.base.options.records import Offload as Offload
from millrace.base.options.records import Options as Options
from millrace.base.options.records import Recomputation as Recomputation
from millrace.base.options.records import Replication as Replication
from millrace.base.options.records import TapRequest as TapRequest
from millrace.base.options.table import Entry as Entry
from millrace.base.options.table import as_plain as as_plain
from millrace.base.options.table import key_fields as key_fields
from millrace.base.options.table import table_of
from millrace.base.options.update_records import Accumulation as Accumulation
from millrace.base.options.update_records import AccumulatorDtype as AccumulatorDtype
from millrace.base.options.update_records import CompilerOptions as CompilerOptions
from millrace.base.options.update_records import PipelineSchedule as PipelineSchedule
from millrace.base.options.update_records import Pipelining as Pipelining

TABLE = table_of(Options)


def arguments_of(setter: str) -> dict[str, Entry]:
    """Returns the options that a setter takes, by the names of its arguments."""
    return {name: entry for entry in TABLE if (name := entry.option.argument(setter))}


def replaced(options: Options, setter: str, arguments: Mapping[str, object]) -> Options:
    """Returns options with the arguments of a setter in force; None keeps the value before.

    Raises:
        OptionError: for an invalid value.
    """
    for name, entry in arguments_of(setter).items():
        if (value := arguments.get(name)) is not None:
            options = entry.put(options, entry.option.checked(name, value))
    return options
