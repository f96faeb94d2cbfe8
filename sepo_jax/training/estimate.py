"""What a run would need on GPUs that nothing is compiled for: the arithmetic of its shapes.

Parameters, optimizer state, cache and batch are the shapes of the training loop, laid out as it
lays them out. The rest is counted, with K the numbers in the matrices of the layers, n tokens, T
the columns of a row, D the width of all query heads together:

  products     forwards 2 K n, and 4 T n D a layer of attention, whose scores are formed whole; head
               2 V H an action token. Backwards twice that, once where a matrix is frozen; what is
               recomputed once more. Generation attends to all blocks of a slot, and a prefill call
               ends with the last keys, values or state that a layer keeps. On a mesh a token of
               every slot is shared by all chips of a host; a prefill call, whose rows may be any
               slots, has its matrices shared by fsdp and tensor, its attention by tensor.
  activations  the input of each layer, or what `policy.remat` keeps of it; the inside of one layer
               twice, its scores in float32 three times; pieces of logits; gradients of a part and
               their sum; one layer whole where parameters are split. Forwards alone one matrix's
               inputs and outputs at a time.
  memory       matrices once for each pass of a part, what goes into and out of them, scores;
               parameters, moments and gradient once more in the optimizer.
  collectives  gradients summed over the devices (pmap); matrices gathered in both passes of every
               part and gradients scattered (mesh). Generation on a mesh: what goes into and out of
               matrices, and logits, over the chips of a host.
"""

import math
from typing import Any

import jax

from ..policy import ModelConfig, segments
from ..policy.config import DTYPES
from .chips import PlannedDevice, describe_gpus, num_hosts
from .dry_run import batch_shapes
from .dry_run_report import Report, Row, widest_prefill
from .dry_run_shapes import (
    Placed,
    bytes_per_chip,
    count,
    product_matrices,
    product_parameters,
    run_shapes,
)
from .dry_run_sizes import Sizes, default_sizes
from .estimate_products import Call, forward_products, layer_widths, read_by_prefill
from .hlo import Collective, Work
from .parallel import Parallel
from .settings import Settings

# Float32 products of the highest precision do without tensor cores: a sixteenth of the speed.
_FLOAT32 = 16
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
        num_hosts=num_hosts(parallel.devices),
        kind=parallel.kind,
        settings=settings,
        sizes=sizes,
        num_parameters=count(placed.shapes.params),
        num_trained=count(placed.shapes.trained),
        frozen_bytes=bytes_per_chip(placed.shapes.frozen),
        state_bytes=placed.state_bytes,
        estimated=True,
    )


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
        """Forwards over all parts of all devices, shared by the chips of a host."""
        parts = self.parts * self._chips // self.placed.chips
        tokens = parts * self.rows * self.length
        products = sum(
            forward_products(
                self.config, self.params, tokens, self.length, parts * self.rows * self.actions
            )
        )
        matrix_bytes = self.width * product_parameters(self.params)
        one = self.rows * self.length * self.width
        traffic = parts * (
            matrix_bytes
            + one * sum(self.layers)
            + self._attention_layers() * self._score_bytes() * 4
        )
        batch = bytes_per_chip(self.batch) // self.placed.chips
        kinds = self.placed.kinds_with_copy | {"batch": batch}
        made = 2 * one * self.widest + 2 * self._score_bytes()
        made += _LOGIT_COPIES * 4 * self._piece_of_logits()
        crossing = parts * matrix_bytes if self.placed.is_split else 0
        found = {"all-gather": Collective(parts, crossing)} if crossing else {}
        return self._of_host("score", kinds, made, self._work(products, traffic, found))

    def generation(self) -> list[Row]:
        """Parameters into decoding form, one prefill call of the widest width, one token of every
        slot."""
        placed, rollout = self.placed, self.shapes.settings.rollout
        policy, whole, fuse = placed.decoder()
        fused = placed.put(jax.eval_shape(fuse, whole))
        kinds = placed.kinds_with_copy
        kinds = kinds | {"parameters": kinds["parameters"] + bytes_per_chip(fused)}
        copied = bytes_per_chip(placed.put(whole)) + bytes_per_chip(fused)
        rows = [self._of_host("fuse", kinds, 0, self._work(0.0, copied))]
        slots = placed.slots(policy, self.sizes.capacity)
        kinds = kinds | {"cache": bytes_per_chip(slots) * self.shapes.policy.num_adapters}
        width = widest_prefill(self.shapes.settings, self.sizes)
        read, mixing = read_by_prefill(policy.config, fused)
        prefill = Call(rollout.prefill_rows, width, read, mixing, by_slot=False)
        decode = Call(rollout.slots, 1, fused, policy.config.layer_kinds, by_slot=True)
        for name, call in (("prefill", prefill), ("decode", decode)):
            made, work = self._append(call, policy.config, slots.cache)
            rows.append(self._of_host(name, kinds, made, work))
        return rows

    def _append(self, call: Call, config: ModelConfig, cache: Any) -> tuple[int, Work]:
        """Bytes that a call of generation makes on a chip, and its work."""
        tokens, scored = call.rows * call.width, call.rows if call.by_slot else 0
        kept = cache.keys[0][0] if cache.keys else cache.states[0].recurrent
        share = kept.sharding.shard_shape(kept.shape)
        of_slots, of_heads = kept.shape[0] // share[0], kept.shape[1] // share[1]
        data, *model = self.placed.mesh.shape.values() if self.placed.mesh is not None else (1, 1)
        of_weights, of_rows, of_mixing = math.prod(model), 1, of_heads
        if call.by_slot:
            of_rows, of_mixing = min(of_slots, data), of_heads * of_slots
        reach = segments.starts(cache.keys[0])[-1] if cache.keys else 0
        products = forward_products(
            config, call.params, tokens, call.width, scored, reach=reach, kinds=call.kinds
        )
        flops = (products.matrices + products.head) / (of_weights * of_rows)
        flops += products.mixing / of_mixing
        logits = 4 * scored * config.vocab_size
        weights = product_parameters(call.params)
        weights += config.vocab_size * config.hidden_size if scored else 0
        traffic = self.width * weights / of_weights + 2 * logits / (of_weights * of_rows)
        # What may be any slot is read by all chips that have its heads.
        copies = 1 if call.by_slot else of_slots * call.rows / kept.shape[0]
        traffic += bytes_per_chip(cache) * copies
        scores = 4 * tokens * config.num_heads * reach // of_mixing
        made = 2 * tokens * self.widest * self.width + 2 * scores + 2 * logits // of_weights
        moved = tokens * self.width * sum(sum(leaf.shape) for leaf in product_matrices(call.params))
        crossing = Collective(2 * len(self.layers), (moved + logits) // of_rows)
        found = {"all-reduce": crossing} if self.placed.is_split else {}
        return made, self._work(flops, traffic, found)

    def _of_host(self, name: str, kinds, made: int, work: Work) -> Row:
        return Row(
            name,
            self.placed.chips,
            arguments=sum(kinds.values()),
            temporaries=made,
            work=work,
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
