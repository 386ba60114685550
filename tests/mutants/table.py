"""Errors put into the source one at a time, each of which some test must notice.

A mutant is a piece of the source and what stands there instead. The piece is looked for in all of
`src/millrace` and must stand there once, so that a mutant survives moves of files and is noticed
when the code that it changes is rewritten. `run.py` puts them in and runs the tests.
"""

from typing import NamedTuple


class Mutant(NamedTuple):
    """One error: the text `before` is replaced by `after`."""

    area: str
    before: str
    after: str


# Tests that should notice an error in an area, the quickest first. Those of `make test` count.
TESTS = {
    "schedules": ("tests/schedules",),
    "plan": (
        "tests/test_plan.py",
        "tests/equivalence/test_training.py",
        "tests/compiled_loop",
        "tests/pipelines",
        "tests/equivalence/test_gradient_accumulation.py",
    ),
    "split": (
        "tests/pipelines/test_split.py",
        "tests/pipelines",
        "tests/recomputation",
        "tests/equivalence/test_pipelines.py",
    ),
    "accumulation": (
        "tests/steps/test_accumulate.py",
        "tests/strategy/test_setters.py",
        "tests/equivalence/test_gradient_accumulation.py",
        "tests/equivalence/test_reductions.py",
        "tests/equivalence/test_loss_weights.py",
        "tests/steps/test_own_steps.py",
    ),
    "reductions": (
        "tests/replicas/test_state_rules.py",
        "tests/replicas/test_reduce.py",
        "tests/equivalence/test_replicas.py",
        "tests/equivalence/test_reductions.py",
        "tests/equivalence/test_sharding.py",
        "tests/equivalence/test_replica_pipelines.py",
    ),
    "fit": ("tests/fit/test_callback_lists.py", "tests/fit/test_epoch_logs.py"),
    "feeds": ("tests/feeds", "tests/equivalence/test_replicas.py"),
    "keys": ("tests/explain", "tests/strategy/test_recompilations.py"),
    "cache": ("tests/cache",),
    "taps": (
        "tests/taps/test_tap_records.py",
        "tests/taps/test_statistics.py",
        "tests/taps/test_delivery.py",
        "tests/taps/test_maybe_outfeed.py",
        "tests/taps/test_outfeed.py",
        "tests/taps/test_tapped_memory.py",
        "tests/pipelines/test_taps_of_stages.py",
        "tests/equivalence/test_taps.py",
        "tests/callbacks",
    ),
    "recompute": (
        "tests/compiled_loop/test_budget_search.py",
        "tests/compiled_loop/test_budget.py",
        "tests/recomputation/test_boundaries.py",
        "tests/recomputation/test_evictions.py",
        "tests/pipelines",
        "tests/recomputation",
        "tests/equivalence/test_recomputation.py",
    ),
}

MUTANTS = (
    # The order of a pipeline's tasks.
    Mutant(
        "schedules",
        "run_ahead * (num_stages - 1 - stage) + slack * (stage < num_stages - 1),",
        "run_ahead * (num_stages - stage) + slack * (stage < num_stages - 1),",
    ),
    Mutant(
        "schedules",
        "tasks += [Task(stage, Pass.BACKWARD, m) for m in range(steady, num_micro_batches)]",
        "tasks += [Task(stage, Pass.BACKWARD, m) for m in range(steady + 1, num_micro_batches)]",
    ),
    Mutant("schedules", "lag = stage\n", "lag = max(0, stage - 1)\n"),
    Mutant(
        "schedules",
        "warmup = min(2 * (num_groups - 1 - group) + (rounds - 1) * len(parts[0]), len(forwards))",
        "warmup = min((num_groups - 1 - group) + (rounds - 1) * len(parts[0]), len(forwards))",
    ),
    Mutant(
        "schedules",
        "num_parts = max(1, num_micro_batches // num_groups)",
        "num_parts = max(1, -(-num_micro_batches // num_groups))",
    ),
    Mutant(
        "schedules",
        "micro_batches = range(first, min(first + batch_serialization, num_micro_batches))",
        "micro_batches = range(first, min(first + batch_serialization + 1, num_micro_batches))",
    ),
    Mutant("schedules", "start = max(free[row], dispatched)", "start = max(0.0, dispatched)"),
    Mutant(
        "schedules",
        "previous is not None and previous.micro_batch > task.micro_batch",
        "previous is not None and previous.micro_batch > task.micro_batch + 1",
    ),
    Mutant(
        "schedules",
        "halves = {inputs, weights} & tasks",
        "halves = {inputs} & tasks",
    ),
    # What a program is to do.
    Mutant(
        "plan",
        "self.replicas * (self.accumulation.steps if self.mode is Mode.TRAIN else 1)",
        "self.replicas * self.accumulation.steps",
    ),
    Mutant(
        "plan",
        "return self.step_logs or self.mode is Mode.PREDICT",
        "return self.step_logs",
    ),
    Mutant(
        "plan",
        'if mode is not Mode.TRAIN or platform != "cpu" or not primitives',
        'if platform != "cpu" or not primitives',
    ),
    Mutant(
        "plan",
        "min(MAX_UNROLLED_STEPS, MAX_UNROLLED_EQUATIONS // equations)",
        "max(MAX_UNROLLED_STEPS, MAX_UNROLLED_EQUATIONS // equations)",
    ),
    Mutant(
        "plan",
        "shapes = tuple((rows, *shape[1:]) for shape in self.shapes)",
        "shapes = tuple((rows, *shape) for shape in self.shapes)",
    ),
    Mutant(
        "plan",
        "return self.shapes[0][0] if self.shapes and self.shapes[0] else 1",
        "return self.shapes[-1][-1] if self.shapes and self.shapes[0] else 1",
    ),
    # Which stage each equation belongs to, and what passes between stages.
    Mutant(
        "split",
        "latest = max((made_in[var] for var in inputs if var in made_in), default=None)",
        "latest = min((made_in[var] for var in inputs if var in made_in), default=None)",
    ),
    Mutant(
        "split",
        "stage = latest if MODEL_SCOPE in scope(equation) else last",
        "stage = latest",
    ),
    Mutant(
        "split",
        "home[var] = min(stage, home.get(var, stage))",
        "home[var] = max(stage, home.get(var, stage))",
    ),
    Mutant(
        "split",
        "if made_in.get(var, stage) > stage:",
        "if made_in.get(var, stage) > stage + 1:",
    ),
    Mutant(
        "split",
        "consumers = sorted(self._taken_in.get(var, set()) - {stage})",
        "consumers = sorted(self._taken_in.get(var, set()) - {stage})[:1]",
    ),
    Mutant(
        "split",
        "return slot.role not in STATE and index == self._last",
        "return index == self._last",
    ),
    Mutant(
        "split",
        "learns.update(v for v in equation.outvars if _is_floating(v.aval.dtype))",
        "learns.update(equation.outvars)",
    ),
    Mutant(
        "split",
        "for kind, number in reversed(_MARK.findall(name)):",
        "for kind, number in _MARK.findall(name):",
    ),
    # Many micro-batches, one gradient.
    Mutant(
        "accumulation",
        "return rows / first_rows if weighs else share",
        "return 1.0",
    ),
    Mutant(
        "accumulation",
        "return 1.0 / (base + number + 1)",
        "return 1.0 / (base + number + 2)",
    ),
    Mutant(
        "accumulation",
        "        case Reduction.AUTO | Reduction.MEAN:\n            return 1.0 / total_weight",
        "        case Reduction.AUTO | Reduction.MEAN:\n            return 1.0",
    ),
    Mutant("accumulation", "return replicas / total_weight", "return 1.0 / total_weight"),
    Mutant(
        "accumulation",
        "return [*gradients, jnp.ones_like(weight)], coefficient * weight",
        "return [*gradients, jnp.ones_like(weight)], coefficient",
    ),
    Mutant(
        "accumulation",
        "seeds = share or [jnp.ones(())]",
        "seeds = [jnp.ones(())]",
    ),
    Mutant("accumulation", "coefficient = coefficient * values", "coefficient = coefficient * 1"),
    Mutant(
        "accumulation",
        "(k + 1 for k, turn in enumerate(turns) if needs & turn.gradients.keys())",
        "(k for k, turn in enumerate(turns) if needs & turn.gradients.keys())",
    ),
    Mutant(
        "accumulation",
        "largest(a, g) if overwrite else added(a, g)",
        "added(a, g)",
    ),
    Mutant(
        "accumulation",
        "kept = a * _as(1 - coefficient, a) if running else a",
        "kept = a",
    ),
    Mutant(
        "accumulation",
        "state, index = before.state.with_changing(after), first + number",
        "state, index = before.state.with_changing(after), first",
    ),
    Mutant(
        "accumulation",
        "if not jnp.issubdtype(dtype, jnp.floating):\n        raise OptionError(",
        "if not jnp.issubdtype(dtype, jnp.number):\n        raise OptionError(",
    ),
    # Gradients, statistics and counters of replicas.
    Mutant(
        "reductions",
        "reduced[index] = lax.pmax(value, REPLICA)",
        "reduced[index] = lax.psum(value, REPLICA)",
    ),
    Mutant(
        "reductions",
        "value + (rule.step * before).astype(value.dtype)",
        "value",
    ),
    Mutant(
        "reductions",
        "going_on.append(old + (rule.step * steps).astype(old.dtype))",
        "going_on.append(old + jnp.asarray(rule.step).astype(old.dtype))",
    ),
    Mutant(
        "reductions",
        "mine = jnp.where(last, value, jnp.zeros_like(value))",
        "mine = jnp.where(had, value, jnp.zeros_like(value))",
    ),
    Mutant(
        "reductions",
        "value = (next(left) / active).astype(value.dtype)",
        "value = next(left).astype(value.dtype)",
    ),
    Mutant(
        "reductions",
        "gradients = [jnp.where(active, g, jnp.zeros_like(g)) for g in gradients]",
        "gradients = list(gradients)",
    ),
    Mutant(
        "reductions",
        "new = [jnp.where(active, n, o) for n, o in zip(new, metrics, strict=True)]",
        "new = list(new)",
    ),
    Mutant(
        "reductions",
        "active = jnp.minimum(count, replicas)",
        "active = replicas",
    ),
    # Batches on their way in.
    Mutant(
        "feeds",
        "count = min(steps, block.steps - self._used)",
        "count = min(steps, block.capacity - self._used)",
    ),
    Mutant(
        "feeds",
        "self._stopped or len(self._ready) < self._depth",
        "self._stopped or len(self._ready) <= self._depth",
    ),
    Mutant(
        "feeds",
        "                    target[index] = 0\n",
        "                    pass\n",
    ),
    Mutant(
        "feeds",
        "left = -position % self.multiples[1]",
        "left = position % self.multiples[1]",
    ),
    Mutant(
        "feeds",
        "if stack is not None and stack.spec != spec:",
        "if stack is not None and False:",
    ),
    Mutant(
        "feeds",
        "yield self._gather(rows[None], of_rest, shape.replicas, full % shape.replicas)",
        "yield self._gather(rows[None], of_rest, shape.replicas, 0)",
    ),
    Mutant(
        "feeds",
        "most = max(most - most % multiple, self.replicas)",
        "most = max(most, self.replicas)",
    ),
    Mutant(
        "feeds",
        "rows = order[done * batch_size : (done + steps) * batch_size]",
        "rows = np.arange(len(order))[done * batch_size : (done + steps) * batch_size]",
    ),
    # What identifies a program, and why another one is compiled.
    Mutant(
        "keys",
        "candidates = (_changes(new, key) for key in reversed(earlier))",
        "candidates = (_changes(new, key) for key in earlier)",
    ),
    Mutant(
        "keys",
        "return len(differing) * 2 > number",
        "return len(differing) > number",
    ),
    Mutant(
        "keys",
        "(_is_derived(change) and is_explained)",
        "_is_derived(change)",
    ),
    Mutant(
        "keys",
        'weak = " weak" if getattr(value, "weak_type", False) else ""',
        'weak = ""',
    ),
    Mutant(
        "keys",
        "', '.join(sorted(text_of(walk, item) for item in value))",
        "', '.join([text_of(walk, item) for item in value])",
    ),
    Mutant(
        "keys",
        'return name if count == 1 else f"{name} ({count})"\n\n    def add(',
        "return name\n\n    def add(",
    ),
    Mutant(
        "keys",
        "more = len(changes) - SHOWN\n",
        "more = len(changes) - SHOWN - 1\n",
    ),
    Mutant(
        "keys",
        "        walk.uses(value.__name__)\n",
        "",
    ),
    Mutant(
        "keys",
        "if names[1:] == () and not is_library_module(names[0]):",
        "if False:",
    ),
    Mutant(
        "keys",
        'walk.miss(f"an array {kind} that cannot be read")',
        "pass",
    ),
    # Executables on disk.
    Mutant(
        "cache",
        "if _digest(self.header(data), self.content(data)) != data[at : at + _DIGEST_BYTES]:",
        "if False:",
    ),
    Mutant(
        "cache",
        'if fields.get("environment") != environment:',
        "if False:",
    ),
    Mutant("cache", 'if fields.get("key") != key:', "if False:"),
    Mutant(
        "cache",
        "for file in sorted(all_files, key=lambda file: file.used):\n            if total",
        "for file in sorted(all_files, key=lambda file: -file.used):\n            if total",
    ),
    Mutant("cache", "if total <= limit * _KEPT:", "if total <= limit * _KEPT / 2:"),
    Mutant(
        "cache",
        "if file.used < before:\n                remove(file.path)",
        "remove(file.path)",
    ),
    Mutant(
        "cache",
        "if not self._writes or len(content) > self.limit:",
        "if not self._writes:",
    ),
    # Values carried out of a program.
    Mutant(
        "taps",
        "if key in collection.values:",
        "if False:",
    ),
    Mutant(
        "taps",
        "jax.tree.map(jax.lax.stop_gradient, value)",
        "jax.tree.map(lambda leaf: leaf * 0, value)",
    ),
    Mutant(
        "taps",
        "return max(1, min(fitting, records // update_steps)) * update_steps",
        "return fitting",
    ),
    Mutant(
        "taps",
        "MAX_BYTES // (in_step * update_steps + in_update)",
        "MAX_BYTES // (in_step * update_steps or 1)",
    ),
    Mutant(
        "taps",
        "results[begin:] = [result._replace(taps=Taps()) for result in new]",
        "pass",
    ),
    Mutant(
        "taps",
        "mean = total / size\n    variance = squares / size - mean * mean",
        "mean = total / size\n    variance = squares / size",
    ),
    Mutant(
        "taps",
        "(size - others) / size,",
        "others / size,",
    ),
    Mutant(
        "taps",
        "self.dropped += old.elements - self._used",
        "self.dropped += old.elements",
    ),
    Mutant(
        "taps",
        "arrays.append(flat[first : first + number])",
        "arrays.append(flat[:number])",
    ),
    # What backward runs again.
    Mutant(
        "recompute",
        "once |= {max(levels, default=0)} if keeps_last else set()",
        "once |= {max(levels, default=0)}",
    ),
    Mutant(
        "recompute",
        "wanted.update(work.inputs[kernel])",
        "wanted.update(work.outputs[kernel])",
    ),
    Mutant(
        "recompute",
        "if memory[first:position].max() <= limit:",
        "if memory[first:position].min() <= limit:",
    ),
    Mutant(
        "recompute",
        "left = graph - maximum_flow",
        "left = graph + maximum_flow",
    ),
    Mutant(
        "recompute",
        "needed[var] = min(number, needed.get(var, number))",
        "needed[var] = max(number, needed.get(var, number))",
    ),
    Mutant(
        "recompute",
        "bisect_left(range(CHOICES), True, lo=1, key=fits)",
        "bisect_left(range(CHOICES), True, lo=2, key=fits)",
    ),
    # What Keras's loops tell callbacks, and report.
    Mutant("fit", "for name in _OF_BATCHES + _EARLY)", "for name in _OF_BATCHES)"),
    Mutant("fit", "if not self._knows_steps:", "if True:"),
    Mutant("fit", "is_outermost and not is_list", "is_outermost"),
    Mutant("fit", "logs is self.logs and self._logs_follow", "logs is self.logs"),
    Mutant("fit", "operator.is_, map(stored_value", "operator.is_not, map(stored_value"),
)
