"""`millrace.Attached`, for `isinstance` and annotations: attached models keep their own classes.

Type checkers read `attached.pyi`, where it is a `keras.Model` with the methods of `methods.py`.
"""

from typing import NoReturn

from millrace.errors import ModelError
from millrace.run.fit.controller import controller_of


class _AttachedType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return controller_of(instance) is not None

    def __call__(cls, *args: object, **kwargs: object) -> NoReturn:
        raise ModelError(
            f"{cls.__name__} is a type to check and annotate with, and makes no models. Derive "
            "from keras.Model, and call strategy.attach(model)."
        )


class Attached(metaclass=_AttachedType):
    """An attached model: a `keras.Model`, of any class, with the methods that attachment adds."""
