"""What is read from HLO: products, traffic, collectives, and how often loops run."""

import jax
import jax.numpy as jnp
import pytest

from sepo_jax.training.hlo import Collective, read_work

# A loop of 8 rounds by its condition; in it a gather started and ended by two kernels under one
# channel, and a reduction; outside it a reduction whose kernel scatters.
LOOP = """HloModule jit_step, is_scheduled=true

%scale (a: f32[4,6]) -> f32[2,6] {
  %a = f32[4,6]{1,0} parameter(0)
  %zero = s32[] constant(0)
  ROOT %slice = f32[2,6]{1,0} dynamic-slice(%a, %zero, %zero), dynamic_slice_sizes={2,6}
}

%begin (p: bf16[2,8]) -> bf16[8,8] {
  %p = bf16[2,8]{1,0} parameter(0)
  ROOT %gather.1 = bf16[8,8]{1,0} all-gather(%p), channel_id=7, dimensions={0}
}

%end (q: bf16[2,8]) -> bf16[8,8] {
  %q = bf16[2,8]{1,0} parameter(0)
  ROOT %gather.2 = bf16[8,8]{1,0} all-gather(%q), channel_id=7, dimensions={0}
}

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%body (state: (s32[], bf16[2,8], f32[16,4], f32[4,6])) -> (s32[], bf16[2,8], f32[16,4], f32[4,6]) {
  %state = (s32[], bf16[2,8], f32[16,4], f32[4,6]) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %part = bf16[2,8]{1,0:S(1)} get-tuple-element(%state), index=1
  %left = f32[16,4]{1,0} get-tuple-element(%state), index=2
  %right = f32[4,6]{1,0} get-tuple-element(%state), index=3
  %begun = bf16[8,8]{1,0:S(1)} fusion(%part), kind=kCustom, calls=%begin
  %ended = bf16[8,8]{1,0:S(1)} fusion(%part), kind=kCustom, calls=%end
  %sliced = f32[2,6]{1,0} fusion(%right), kind=kLoop, calls=%scale
  %product = f32[16,6]{1,0} convolution(%left, %right), dim_labels=bf_io->bf, operand_precision={highest,highest}
  %reduced = f32[16,6]{1,0:S(1)} all-reduce(%product), channel_id=3, to_apply=%add
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  ROOT %out = (s32[], bf16[2,8], f32[16,4], f32[4,6]) tuple(%next, %part, %left, %right)
}

%condition (tested: (s32[], bf16[2,8], f32[16,4], f32[4,6])) -> pred[] {
  %limit = s32[] constant(8)
  %tested = (s32[], bf16[2,8], f32[16,4], f32[4,6]) parameter(0)
  %j = s32[] get-tuple-element(%tested), index=0
  ROOT %less = pred[] compare(%j, %limit), direction=LT
}

%all-reduce-scatter.1 (whole: f32[64]) -> f32[16] {
  %whole = f32[64]{0} parameter(0)
  %total = f32[64]{0} all-reduce(%whole), channel_id=9, to_apply=%add
  %start = s32[] constant(0)
  ROOT %share = f32[16]{0} dynamic-slice(%total, %start), dynamic_slice_sizes={16}
}

ENTRY %main (start: (s32[], bf16[2,8], f32[16,4], f32[4,6]), vector: f32[64]) -> f32[16] {
  %start.1 = (s32[], bf16[2,8], f32[16,4], f32[4,6]) parameter(0)
  %vector = f32[64]{0} parameter(1)
  %looped = (s32[], bf16[2,8], f32[16,4], f32[4,6]) while(%start.1), condition=%condition, body=%body
  ROOT %scattered = f32[16]{0} fusion(%vector), kind=kCustom, calls=%all-reduce-scatter.1
}
"""  # noqa: E501


def test_collectives_of_a_literal_text():
    found = read_work(LOOP).collectives
    assert found == {
        # One gather under two kernels: 8 rounds of 8 * 8 * 2 bytes.
        "all-gather": Collective(8, 8 * 128),
        "all-reduce": Collective(8, 8 * 16 * 6 * 4),
        # What goes in, not the share that comes out.
        "reduce-scatter": Collective(1, 64 * 4),
    }


def test_started_collectives_count_once_and_by_their_operands():
    text = """ENTRY %main (p: f32[2,8]) -> f32[8,8] {
  %p = f32[2,8]{1,0} parameter(0)
  %begun = (f32[2,8]{1,0}, f32[8,8]{1,0}) all-gather-start(%p), channel_id=1, dimensions={0}
  ROOT %ended = f32[8,8]{1,0} all-gather-done(%begun)
}
"""
    assert read_work(text).collectives == {"all-gather": Collective(1, 8 * 8 * 4)}


def test_products_and_traffic_of_a_literal_text():
    work = read_work(LOOP)
    assert work.flops == 8 * 2 * 16 * 4 * 6
    assert work.passes == 6 * work.flops  # float32 at the highest precision
    # A round: product 4 * (64 + 24 + 96), kernel that reads and writes a slice 4 * (12 + 12), the
    # reduction's operand 4 * 96 (its result stays on chip), the counter 4 * 3, the test of the
    # condition 9. Then 4 * (64 + 16).
    assert work.num_bytes == 8 * (4 * (184 + 24 + 96 + 3) + 9) + 4 * 80
    assert work.unknown_loops == 0


def test_unrolled_loops_count_their_step():
    # XLA unrolls by growing the counter by more than 1: 0, 3, 6 are below 8.
    work = read_work(LOOP.replace("%one = s32[] constant(1)", "%one = s32[] constant(3)"))
    assert work.flops == 3 * 2 * 16 * 4 * 6


def test_loops_of_unknown_length_are_counted_and_run_once():
    work = read_work(LOOP.replace("direction=LT", "direction=NE"))
    assert (work.unknown_loops, work.flops) == (1, 2 * 16 * 4 * 6)
    with pytest.raises(ValueError, match="ENTRY"):
        read_work("no program")


@pytest.mark.parametrize("grad", [False, True])
def test_flops_of_compiled_loops_equal_the_closed_form(grad):
    layers, rows, width = 3, 8, 16

    def chain(weights, x):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0].sum()

    function = jax.grad(chain) if grad else chain
    shapes = (jax.ShapeDtypeStruct((layers, width, width), jnp.float32),)
    shapes += (jax.ShapeDtypeStruct((rows, width), jnp.float32),)
    compiled = jax.jit(function).lower(*shapes).compile()
    # Forward 2 m n k a layer; backward twice that (for weights and inputs).
    expected = layers * 2 * rows * width * width * (3 if grad else 1)
    assert read_work(compiled.as_text()).flops == expected


def test_convolution_windows_count_positions_on_real_input():
    # Width 5, kernel 3, padding 1 on both sides: 4 * 3 + ... = 13 of 15 positions are real.
    text = """ENTRY %main (x: f32[2,5,4], k: f32[3,4,6]) -> f32[2,5,6] {
  %x = f32[2,5,4]{2,1,0} parameter(0)
  %k = f32[3,4,6]{2,1,0} parameter(1)
  ROOT %y = f32[2,5,6]{2,1,0} convolution(%x, %k), window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f
}
"""
    assert read_work(text).flops == 2 * 2 * 6 * 4 * 13
