"""What a run would need on GPUs that nothing is compiled for: the arithmetic of its shapes.

Parameters, optimizer state, cache and batch are the shapes of the training loop, laid out as it
lays them out. The rest is counted, with K the numbers in the matrices of the layers, n tokens, T
the columns of a row, D the width of all query heads together:

  products     forwards 2 K n, and 4 T n D a layer of attention, whose scores are formed whole; head
               2 V H an action token. Backwards twice that, once where a matrix is frozen; what is
               recomputed once more.
  activations  the input of each layer, or what `policy.remat` keeps of it; the inside of one layer
               twice, its scores in float32 three times; pieces of logits; gradients of a part and
               their sum; one layer whole where parameters are split. Forwards alone one matrix's
               inputs and outputs at a time.
  memory       matrices once for each pass of a part, what goes into and out of them, scores;
               parameters, moments and gradient once more in the optimizer.
  collectives  gradients summed over the devices (pmap); matrices gathered in both passes of every
               part and gradients scattered (mesh).
"""

import re
from typing import Any, NamedTuple

import jax

from ..policy import ModelConfig
from ..policy.config import DTYPES
from .chips import PlannedDevice, describe_gpus
from .dry_run import batch_shapes
from .dry_run_report import Report, Row
from .dry_run_shapes import Placed, bytes_per_chip, count, product_parameters, run_shapes
from .dry_run_sizes import Sizes, default_sizes
from .hlo import Collective, Work
from .parallel import Parallel
from .settings import Settings

# Float32 products of the highest precision do without tensor cores: a sixteenth of the speed.
_FLOAT32 = 16
_DELTA_CHUNK = 64  # tokens of a linear layer that are multiplied with each other
_SCORE_COPIES = 3  # of a layer's scores, in float32, while it is differentiated
_LOGIT_COPIES = 3


def estimate(settings: Settings, gpus: str, sizes: Sizes | None = None, goal: Any = None) -> Report:
    """The report of a dry run on GPUs, by arithmetic; see the module.

    Args:
      settings: the whole config.
      gpus: model and number, such as "h100x8".
      sizes: of the data; `default_sizes` when None.
      goal: an own Algorithm in place of the config's.

    Raises:
      ValueError: no such GPU, unknown options, a `parallel` section that does not fit the number.
    """
    chip, number = describe_gpus(gpus)
    sizes = sizes or default_sizes(settings)
    parallel = Parallel(settings.parallel, [PlannedDevice(i, chip.name) for i in range(number)])
    placed = Placed(run_shapes(settings, goal), parallel)
    arithmetic = _Arithmetic(placed, sizes)
    rows = [arithmetic.update()]
    rows += [arithmetic.score()] if placed.shapes.scores else []
    rows += arithmetic.generation()
    return Report(
        rows=tuple(rows),
        chip=chip,
        num_chips=parallel.num_devices,
        kind=parallel.kind,
        settings=settings,
        sizes=sizes,
        num_parameters=count(placed.shapes.params),
        num_trained=count(placed.shapes.trained),
        frozen_bytes=bytes_per_chip(placed.shapes.frozen),
        state_bytes=placed.state_bytes,
        estimated=True,
    )


class _Products(NamedTuple):
    """Operations of one forward pass: of matrices, of attention and delta rules, of the head."""

    matrices: float
    mixing: float
    head: float


def forward_products(
    config: ModelConfig, params: Any, tokens: int, length: int, actions: int
) -> _Products:
    """Operations, 2 for each multiply and add, of a forward pass over `tokens` in rows of `length`
    with logits at `actions` of them."""
    mixing = 0.0
    for kind in config.layer_kinds:
        if kind == "linear":
            keys, values = config.linear_key_head_dim, config.linear_value_head_dim
            each = 3 * keys * values + _DELTA_CHUNK * (keys + values)
            mixing += 2.0 * tokens * config.linear_value_heads * each
        else:
            mixing += 4.0 * tokens * length * config.num_heads * config.head_size(kind)
    head = 2.0 * actions * config.vocab_size * config.hidden_size
    return _Products(2.0 * tokens * product_parameters(params), mixing, head)


def layer_widths(params: Any) -> list[list[int]]:
    """For each layer, the numbers a token has going into and out of each of its matrices."""
    widths = []
    for kind in params["layers"].values():
        found = jax.tree_util.tree_leaves_with_path(kind)
        kernels = [leaf for path, leaf in found if re.search("kernel", str(path[-1]))]
        widths += [[sum(leaf.shape[1:]) for leaf in kernels]] * kernels[0].shape[0]
    return widths


class _Arithmetic:
    """Rows of a report; bytes and operations of one chip."""

    def __init__(self, placed: Placed, sizes: Sizes):
        self.placed, self.sizes = placed, sizes
        self.shapes, self.parallel = placed.shapes, placed.parallel
        self.config, self.params = self.shapes.policy.config, self.shapes.params
        self.width = DTYPES[self.config.compute_dtype].dtype.itemsize
        self.passes = _FLOAT32 if self.config.compute_dtype == "float32" else 1
        self.parts = self.shapes.settings.optimizer.micro_batches
        self.batch = batch_shapes(sizes, (self.parallel.num_devices, self.parts), None)
        self.rows, self.length = self.batch.tokens.shape[-2:]
        self.actions = self.batch.target.shape[-1]
        widths = layer_widths(self.params)
        self.layers = [sum(layer) for layer in widths]
        # Forwards a layer lives on one matrix at a time.
        self.widest = max(max(layer) for layer in widths)
        self.trains_matrices = self.config.lora is None

    def _work(self, flops: float, num_bytes: float, collectives=None) -> Work:
        return Work(flops, flops * self.passes, num_bytes, collectives or {}, 0)

    def _score_bytes(self) -> int:
        """Scores of attention of one layer over one part, float32."""
        return 4 * self.rows * self.config.num_heads * self.length**2

    def update(self) -> Row:
        """Forwards and backwards over all parts, then the optimizer."""
        tokens = self.parts * self.rows * self.length
        forward = forward_products(
            self.config, self.params, tokens, self.length, self.parts * self.rows * self.actions
        )
        again = self.config.remat == "layer"
        trained = self.trains_matrices
        matrices = forward.matrices * (2 + trained + again)
        # Two products forwards, four backwards and one to form the scores once more.
        mixing = forward.mixing * (3.5 + again)
        head = forward.head * (4 if trained else 2)
        share = bytes_per_chip(self.placed.state) // self._lead
        gradient = 4 * count_per_chip(self.placed.state.params, self._lead)
        matrix_bytes = self.width * product_parameters(self.params)
        traffic = self.parts * (
            matrix_bytes * (2 + again)
            + 3 * gradient
            + self.rows * self.length * sum(self.layers) * self.width * (3 + again)
            + self._attention_layers() * self._score_bytes() * 4 * (2 + again)
        )
        traffic += 2 * share + gradient
        kinds = self.placed.kinds | {"batch": bytes_per_chip(self.batch) // self._chips}
        return Row(
            "update",
            self.parallel.num_devices,
            arguments=sum(kinds.values()),
            temporaries=self._update_activations(gradient),
            work=self._work(matrices + mixing + head, traffic, self._collectives()),
            kinds=kinds,
        )

    @property
    def _chips(self) -> int:
        return self.parallel.num_devices

    @property
    def _lead(self) -> int:
        return self._chips if self.parallel.kind == "pmap" else 1

    def _attention_layers(self) -> int:
        return sum(kind != "linear" for kind in self.config.layer_kinds)

    def _update_activations(self, gradient: int) -> int:
        """What a part needs beside the training state; see the module."""
        tokens = self.rows * self.length
        kept = {
            "layer": self.config.hidden_size * len(self.layers),
            "dots": sum(self.layers),
            "none": 2 * sum(self.layers),
        }[self.config.remat]
        inside = 2 * max(self.layers)
        made = tokens * self.width * (kept + inside)
        made += _SCORE_COPIES * self._score_bytes()
        made += _LOGIT_COPIES * 4 * self._piece_of_logits() + 2 * gradient
        if self.placed.is_split:
            largest = max(leaf.size // leaf.shape[0] for leaf in self._stacked())
            table = self.config.vocab_size * self.config.hidden_size
            whole = max(3 * largest, table)
            made += whole * (self.width + 4 * self.trains_matrices)
        return made

    def _piece_of_logits(self) -> int:
        return min(self.config.logits_budget, self.rows * self.actions * self.config.vocab_size)

    def _stacked(self) -> list[Any]:
        return [leaf for leaf in jax.tree.leaves(self.params["layers"]) if leaf.ndim == 3]

    def _collectives(self) -> dict[str, Collective]:
        if self._chips == 1:
            return {}
        trained = jax.tree.leaves(self.shapes.trained)
        total = 4 * sum(leaf.size for leaf in trained)
        if not self.placed.is_split:
            return {"all-reduce": Collective(len(trained), total)}
        split = [
            leaf
            for leaf in jax.tree.leaves((self.placed.state.params, self.placed.held))
            if leaf.sharding.shard_shape(leaf.shape) != leaf.shape
        ]
        calls = sum(leaf.shape[0] if leaf.ndim == 3 else 1 for leaf in split)
        gathered = self.width * sum(leaf.size for leaf in split)
        found = {
            "all-gather": Collective(2 * self.parts * calls, 2 * self.parts * gathered),
            "reduce-scatter": Collective(self.parts * len(trained), self.parts * total),
        }
        if self.parallel.mesh.shape["data"] > 1:
            share = 4 * count_per_chip(self.placed.state.params, 1)
            found["all-reduce"] = Collective(len(trained), share)
        return found

    def score(self) -> Row:
        """Forwards over all parts of all devices, one after another, on the first chip."""
        parts = self.parts * self._chips
        tokens = parts * self.rows * self.length
        found = forward_products(
            self.config, self.params, tokens, self.length, parts * self.rows * self.actions
        )
        matrix_bytes = self.width * product_parameters(self.params)
        one = self.rows * self.length * self.width
        traffic = parts * (
            matrix_bytes
            + one * sum(self.layers)
            + self._attention_layers() * self._score_bytes() * 4
        )
        kinds = self.placed.kinds_with_copy | {"batch": bytes_per_chip(self.batch)}
        made = 2 * one * self.widest + 2 * self._score_bytes()
        made += _LOGIT_COPIES * 4 * self._piece_of_logits()
        return self._on_first("score", kinds, made, sum(found), traffic)

    def generation(self) -> list[Row]:
        """Parameters into decoding form, one prefill call of the widest width, one token of every
        slot."""
        placed, sizes, rollout = self.placed, self.sizes, self.shapes.settings.rollout
        policy, whole, fuse = placed.decoder()
        fused = bytes_per_chip(jax.eval_shape(fuse, whole))
        kinds = placed.kinds_with_copy
        kinds = kinds | {"parameters": kinds["parameters"] + fused}
        rows = [self._on_first("fuse", kinds, 0, 0.0, bytes_per_chip(whole) + fused)]
        state = bytes_per_chip(placed.slots(policy, sizes.capacity))
        kinds = kinds | {"cache": state * self.shapes.policy.num_adapters}
        width = min(max(rollout.prefill_widths), sizes.capacity)
        matrices = self.width * product_parameters(whole)
        for name, contexts, tokens in (
            ("prefill", rollout.prefill_rows, rollout.prefill_rows * width),
            ("decode", rollout.slots, rollout.slots),
        ):
            decodes = name == "decode"
            found = forward_products(
                policy.config, whole, tokens, sizes.capacity, tokens if decodes else 0
            )
            traffic = matrices + state * contexts // rollout.slots
            head = policy.config.vocab_size * policy.config.hidden_size * self.width
            logits = 4 * tokens * policy.config.vocab_size
            scores = 4 * tokens * policy.config.num_heads * sizes.capacity
            made = 2 * tokens * self.widest * self.width + 2 * scores
            made += 2 * logits if decodes else 0
            traffic += head + 2 * logits if decodes else 0
            rows.append(self._on_first(name, kinds, made, sum(found), traffic))
        return rows

    def _on_first(self, name: str, kinds, made: int, flops: float, traffic: float) -> Row:
        return Row(
            name,
            1,
            arguments=sum(kinds.values()),
            temporaries=made,
            work=self._work(flops, traffic),
            kinds=kinds,
        )


def count_per_chip(tree: Any, lead: int) -> int:
    """Numbers of arrays on each chip, where `lead` chips are the first axis of each."""
    shapes = [
        leaf.shape if leaf.sharding is None else leaf.sharding.shard_shape(leaf.shape)
        for leaf in jax.tree.leaves(tree)
    ]
    return sum(_product(shape) for shape in shapes) // lead


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
