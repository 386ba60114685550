"""A Gemma of KerasHub learns to count by ones, and then its LoRA adapters to count by twos."""

import millrace  # before Keras: it makes JAX the backend
import keras
import numpy as np
from keras_hub.models import GemmaBackbone, GemmaCausalLM

strategy = millrace.Strategy(devices=1)
sizes = {"vocabulary_size": 32, "hidden_dim": 32, "intermediate_dim": 64, "head_dim": 8}


def build(weights=None):
    with strategy.scope():
        backbone = GemmaBackbone(**sizes, num_layers=1, num_query_heads=4, num_key_value_heads=1)
        model = GemmaCausalLM(backbone, preprocessor=None)
    if weights:
        model.set_weights(weights)
        model.backbone.enable_lora(rank=4)  # before compile
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
    return model


def train(model, step):
    """Trains on texts that count in such steps from 1 to 20, and lets the model count."""
    words = (np.arange(80)[:, None] + step * np.arange(9)) % 20 + 1
    x, y = {"token_ids": words[:, :-1], "padding_mask": np.ones((80, 8), "int32")}, words[:, 1:]
    model.compile(
        optimizer=keras.optimizers.Adam(0.02),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=10,
        sampler="greedy",
    )
    batch = {name: values[:8] for name, values in x.items()}, y[:8]
    used = strategy.memory_report(model, batch).devices[0].stages[0]
    print(f"parameters {used.parameters:,} bytes, optimizer {used.optimizer_state:,}", end=", ")
    print(f"accumulators {used.accumulators:,}")
    model.fit(x, y, batch_size=8, epochs=20, shuffle=False, verbose=0)
    prompt = {"token_ids": words[:1, :-1], "padding_mask": np.arange(8)[None] < 2}
    print("counts:", *model.generate(prompt, stop_token_ids=None)["token_ids"][0])
    return model


keras.utils.set_random_seed(0)
whole = train(build(), step=1)
train(build(whole.get_weights()), step=2)
