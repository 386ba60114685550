"""Asks for more devices before and after something uses those that JAX has; prints what it gets."""

import jax
import jax.numpy as jnp
import keras

import millrace

first, default = millrace.Strategy(1), millrace.Strategy()
for number in (2, 3):
    print(len(millrace.Strategy(devices=f"cpu:{number}").devices))
print(*first.devices, *default.devices)
model = keras.Sequential([keras.layers.Dense(1)])
for keep in (jax.devices, lambda: jnp.ones(3), lambda: first.attach(model)):
    kept = keep()
    try:
        millrace.Strategy(devices="cpu:8")
    except millrace.errors.DeviceError as error:
        print(len(jax.devices()), jnp.ones(3).sum(), error)
