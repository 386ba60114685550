"""What the setters of an extended model were told, kept beside its rules, and put in force.

a setter                      -> `put`: other settings, and the native options that follow
IPUConfig.allow_recompute     -> Recomputation.mode, of every model
"""

from millrace.ipu.config import current_system
from millrace.ipu.keras.extensions.native_options import native_options
from millrace.ipu.keras.extensions.settings import Settings
from millrace.strategy.controller import Controller


def settings_of(controller: Controller) -> Settings:
    """Returns what the setters of an extended model were told."""
    return controller.rules.settings  # type: ignore[attr-defined]


def put(controller: Controller, settings: Settings, keep_functions: bool = False) -> None:
    """Puts other settings in force."""
    options = native_options(settings, controller.options, current_system().allow_recompute)
    controller.rules.settings = settings  # type: ignore[attr-defined]
    controller.replace_options(options, keep_functions)
