"""The data of a loop that stays on the devices: small arrays, read from start to end."""

from collections.abc import Mapping
from typing import Any

from millrace._compat.keras_data import DataAdapter, is_array_adapter
from millrace.programs.feeds.blocks import ResidentArrays
from millrace.run.fit.setup import Setup
from millrace.run.fit.whole_arrays import whole_arrays


class ResidentData:
    """Puts the arrays of a loop on the devices, if they may stay there."""

    def __init__(self, setup: Setup, adapter: DataAdapter, arguments: Mapping[str, Any]):
        self._setup = setup
        self._arguments = arguments
        self._may = is_array_adapter(adapter)
        self._has_looked = False
        self._arrays: ResidentArrays | None = None

    def arrays(self, reads_all: bool) -> ResidentArrays | None:
        """Returns the arrays on the devices; None if they may not stay there.

        Args:
            reads_all: whether an epoch reads them from start to end.
        """
        if not self._has_looked:
            self._has_looked = True
            limit = self._setup.options.feed.max_resident_bytes
            if limit and reads_all and self._may:
                arrays = whole_arrays(self._arguments, limit)
                if arrays is not None:
                    self._arrays = ResidentArrays(arrays, self._setup.destination)
        return self._arrays
