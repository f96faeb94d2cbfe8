"""What a compiled program does, read from its HLO text: products, memory traffic, collectives.

XLA's own `cost_analysis` counts the body of a loop once; here it counts as often as the loop runs,
so that scanned layers, micro-batches and decoded tokens all count. A loop's trip count is the one
XLA wrote down, or the constant that its condition compares with.
"""

import math
import re
from typing import NamedTuple

COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
# Float32 products at the highest precision take this many passes of a bfloat16 matrix unit.
_FLOAT32_PASSES = 6
_BITS = {"pred": 8, "s4": 4, "u4": 4, "token": 0, "opaque": 0}
_FREE = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "iota")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_ARRAY = re.compile(r"\b(pred|token|opaque|[a-z]+\d+\w*)\[([\d,]*)\](?:\{([^}]*)\})?")
_CALLED = re.compile(r"(calls|to_apply|body|condition|branch_computations)=(\{[^}]*\}|%?[\w.\-]+)")
_TRIPS = re.compile(r'known_trip_count"?:\s*\{"?n"?:\s*"?(\d+)')


class Collective(NamedTuple):
    """Collectives of one kind in one run of a program.

    Attributes:
      count: how many run.
      num_bytes: bytes on each chip: the larger of what goes in and what comes out, summed.
    """

    count: int
    num_bytes: int


class Work(NamedTuple):
    """What one chip does in one run of a program.

    Attributes:
      flops: of matrix products and convolutions, 2 for each multiply and add.
      passes: the same, float32 products of the highest precision weighing as the bfloat16 passes
        that a TPU makes of them.
      num_bytes: read from and written to main memory; operands that a kernel only slices count as
        their slices, arrays kept in on-chip memory not at all.
      collectives: by kind.
      unknown_loops: loops whose trip count could not be read; their bodies count once.
    """

    flops: float
    passes: float
    num_bytes: float
    collectives: dict[str, Collective]
    unknown_loops: int


class _Array(NamedTuple):
    shape: tuple[int, ...]
    bits: int
    kind: str
    on_chip: bool

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.bits // 8


class _Instruction(NamedTuple):
    name: str
    opcode: str
    result: list[_Array]
    operands: list[str]
    rest: str  # attributes, and the literal of a constant
    called: list[tuple[str, str]]


def read_work(text: str) -> Work:
    """The `Work` of a compiled program's text (`compiled.as_text()`).

    Raises:
      ValueError: the text holds no entry computation.
    """
    computations, entry = _parse(text)
    if entry is None:
        raise ValueError("this is no HLO text: it has no ENTRY computation")
    times, fused, unknown_loops = _times(computations, entry)
    flops = passes = num_bytes = 0.0
    seen: dict[tuple, tuple[int, int]] = {}
    for name, instructions in computations.items():
        if not times.get(name):
            continue
        table = {instruction.name: instruction for instruction in instructions}
        for instruction in instructions:
            product = _product_flops(instruction, table)
            flops += times[name] * product
            passes += times[name] * product * _passes(instruction, table)
            if name not in fused:
                num_bytes += times[name] * _traffic(instruction, table, computations)
            kind = _collective_kind(instruction, name)
            if kind is not None:
                # Parts of one asynchronous collective repeat it under the same channel.
                channel = re.search(r"channel_id=(\d+)", instruction.rest)
                key = (kind, channel.group(1)) if channel else (kind, name, instruction.name)
                moved = times[name], times[name] * _moved(instruction, table)
                seen[key] = max(seen.get(key, moved), moved)
    collectives = {}
    for kind in COLLECTIVES:
        found = [moved for key, moved in seen.items() if key[0] == kind]
        if found:
            collectives[kind] = Collective(sum(n for n, _ in found), sum(b for _, b in found))
    return Work(flops, passes, num_bytes, collectives, unknown_loops)


def _parse(text: str) -> tuple[dict[str, list[_Instruction]], str | None]:
    computations: dict[str, list[_Instruction]] = {}
    entry, current = None, None
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header:
            current = computations.setdefault(header.group(2), [])
            entry = header.group(2) if header.group(1) else entry
            continue
        match = _INSTRUCTION.match(line)
        if match and current is not None:
            instruction = _read_instruction(match.group(1), match.group(2))
            if instruction is not None:
                current.append(instruction)
        elif line.startswith("}"):
            current = None
    return computations, entry


def _read_instruction(name: str, text: str) -> _Instruction | None:
    result, text = _split_result(text)
    match = re.match(r"([\w\-]+)\(", text)
    if not match:
        return None
    end = _closing(text, match.end() - 1)
    inside, rest = text[match.end() : end], text[end + 1 :]
    if match.group(1) == "constant":
        rest = f"({inside}){rest}"
    called = []
    for role, names in _CALLED.findall(rest):
        called += [(role, found) for found in re.findall(r"[\w.\-]+", names)]
    operands = re.findall(r"%([\w.\-]+)", inside)
    return _Instruction(name, match.group(1), _arrays(result), operands, rest, called)


def _split_result(text: str) -> tuple[str, str]:
    if text.startswith("("):
        end = _closing(text, 0)
        return text[: end + 1], text[end + 1 :].lstrip()
    result, _, rest = text.partition(" ")
    return result, rest


def _closing(text: str, start: int) -> int:
    """Index of the parenthesis that closes the one at `start`."""
    depth = 0
    for match in re.compile(r"[()]").finditer(text, start):
        depth += 1 if match.group() == "(" else -1
        if depth == 0:
            return match.start()
    return len(text)


def _arrays(text: str) -> list[_Array]:
    arrays = []
    for kind, sizes, layout in _ARRAY.findall(text):
        bits = _BITS.get(kind)
        if bits is None:
            bits = int(re.search(r"\d+", kind).group())
        shape = tuple(int(size) for size in sizes.split(",") if size)
        arrays.append(_Array(shape, bits, kind, bool(re.search(r"S\([1-9]", layout))))
    return arrays


def _times(computations, entry) -> tuple[dict[str, int], set[str], int]:
    """How often each computation runs, those inside kernels, and loops of unknown length."""
    times = dict.fromkeys(computations, 0)
    fused: set[str] = set()
    unknown_loops = 0
    # Text lists a computation before those that call it, so callers come first in reverse.
    times[entry] = 1
    for name in reversed(list(computations)):
        for instruction in computations[name]:
            trips = 1
            if instruction.opcode == "while":
                trips = _trips(instruction, computations)
                unknown_loops += trips is None and times[name] > 0
            for role, callee in instruction.called:
                if callee not in times:
                    continue
                if role == "to_apply" and instruction.opcode != "call":
                    continue
                if instruction.opcode == "fusion" or name in fused:
                    fused.add(callee)
                times[callee] += times[name] * (trips or 1)
    return times, fused, unknown_loops


def _trips(loop: _Instruction, computations) -> int | None:
    known = _TRIPS.search(loop.rest)
    if known:
        return int(known.group(1))
    called = dict(loop.called)
    instructions = computations.get(called.get("condition"), [])
    compares = any("direction=LT" in instruction.rest for instruction in instructions)
    for instruction in instructions:
        compares |= any(
            "direction=LT" in inner.rest
            for _, callee in instruction.called
            for inner in computations.get(callee, [])
        )
    limits = [value for value in map(_integer, instructions) if value is not None]
    if not compares or len(limits) != 1:
        return None
    return -(-limits[0] // _step(instructions, computations.get(called.get("body"), [])))


def _integer(instruction: _Instruction) -> int | None:
    if instruction.opcode != "constant" or instruction.result[0].kind not in ("s32", "s64", "u32"):
        return None
    match = re.match(r"\((\d+)\)", instruction.rest)
    return int(match.group(1)) if match else None


def _step(condition: list[_Instruction], body: list[_Instruction]) -> int:
    """By how much the counter that `condition` reads grows in `body`; an unrolled loop's is > 1."""
    reads = [i for i in condition if i.opcode == "get-tuple-element"]
    index = re.search(r"index=(\d+)", reads[0].rest) if len(reads) == 1 else None
    if index is None or not body or int(index.group(1)) >= len(body[-1].operands):
        return 1
    table = {instruction.name: instruction for instruction in body}
    grown = table.get(body[-1].operands[int(index.group(1))])
    while grown is not None and grown.opcode in ("copy", "bitcast"):
        grown = table.get(grown.operands[0])
    if grown is None or grown.opcode != "add":
        return 1
    steps = [_integer(table[name]) for name in grown.operands if name in table]
    return next((step for step in steps if step), 1)


def _product_flops(instruction: _Instruction, table) -> float:
    if instruction.opcode not in ("dot", "convolution") or len(instruction.operands) < 2:
        return 0.0
    left, right = (_operand(name, table) for name in instruction.operands[:2])
    if left is None or right is None:
        return 0.0
    output = math.prod(instruction.result[0].shape)
    if instruction.opcode == "dot":
        contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.rest)
        sizes = [left.shape[int(i)] for i in contracted.group(1).split(",") if i]
        return 2.0 * output * math.prod(sizes)
    return _convolution_flops(instruction, left, right)


def _convolution_flops(instruction, left: _Array, right: _Array) -> float:
    """Multiply-adds of the window positions that touch real input, not padding or dilation."""
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.rest)
    inputs, kernel, outputs = labels.groups()
    result = instruction.result[0]
    batch, features = (result.shape[outputs.index(label)] for label in "bf")
    total = 2.0 * batch * features * right.shape[kernel.index("i")]
    window = re.search(r"window=\{([^}]*)\}", instruction.rest)
    fields = dict(part.split("=") for part in window.group(1).split()) if window else {}
    for index, label in enumerate(sorted(set(outputs) - set("bf"))):

        def field(name, default, index=index):
            return fields[name].split("x")[index] if name in fields else default

        low = int(field("pad", "0_0").split("_")[0])
        total *= _touching(
            result.shape[outputs.index(label)],
            right.shape[kernel.index(label)],
            left.shape[inputs.index(label)],
            int(field("stride", 1)),
            low,
            int(field("lhs_dilate", 1)),
            int(field("rhs_dilate", 1)),
        )
    groups = re.search(r"batch_group_count=(\d+)", instruction.rest)
    return total / (int(groups.group(1)) if groups else 1)


def _touching(outputs, kernel, inputs, stride, low, input_dilation, kernel_dilation) -> int:
    count = 0
    for place in range(kernel):
        for output in range(outputs):
            here = output * stride + place * kernel_dilation - low
            count += here % input_dilation == 0 and 0 <= here // input_dilation < inputs
    return count


def _passes(instruction: _Instruction, table) -> int:
    left = _operand(instruction.operands[0], table) if instruction.operands else None
    highest = "highest" in instruction.rest and left is not None and left.kind == "f32"
    return _FLOAT32_PASSES if highest else 1


def _operand(name: str, table) -> _Array | None:
    found = table.get(name)
    return found.result[0] if found is not None and found.result else None


def _size(arrays: list[_Array]) -> int:
    return sum(array.num_bytes for array in arrays if not array.on_chip)


def _traffic(instruction: _Instruction, table, computations) -> int:
    opcode = instruction.opcode
    if opcode in _FREE or opcode in ("while", "conditional", "call") or opcode.endswith("-done"):
        return 0
    result = _size(instruction.result)
    if opcode.endswith("-start"):
        return result  # holds operand and result
    operands = [table[name].result if name in table else [] for name in instruction.operands]
    if opcode in ("dynamic-slice", "slice", "gather"):
        return 2 * result
    if opcode in ("dynamic-update-slice", "scatter"):
        return 2 * sum(_size(arrays) for arrays in operands[1:])
    if opcode != "fusion":
        return result + sum(_size(arrays) for arrays in operands)
    inner = computations.get(instruction.called[0][1], []) if instruction.called else []
    return _fusion_traffic(operands, result, inner)


def _fusion_traffic(operands, result: int, inner: list[_Instruction]) -> int:
    """Bytes of one kernel: slices of operands only sliced, updates of those written in place."""
    total = result + sum(_size(arrays) for arrays in operands)
    for parameter in (instruction for instruction in inner if instruction.opcode == "parameter"):
        users = [user for user in inner if parameter.name in user.operands]
        whole = _size(parameter.result)
        first = bool(users) and all(user.operands[0] == parameter.name for user in users)
        if first and all(user.opcode in ("dynamic-slice", "gather") for user in users):
            total += min(sum(_size(user.result) for user in users) - whole, 0)
        elif first and [user.opcode for user in users] == ["dynamic-update-slice"]:
            written = [i for i in inner if i.name in users[0].operands[1:2]]
            total -= max(2 * whole - sum(_size(update.result) for update in written), 0)
    return max(total, 0)


def _collective_kind(instruction: _Instruction, computation: str) -> str | None:
    opcode = instruction.opcode.removesuffix("-start")
    if opcode not in COLLECTIVES:
        return None
    # A TPU scatters what it reduces inside a kernel of this name.
    if opcode == "all-reduce" and computation.startswith("all-reduce-scatter"):
        return "reduce-scatter"
    return opcode


def _moved(instruction: _Instruction, table) -> int:
    into = sum(
        array.num_bytes
        for name in instruction.operands
        if name in table
        for array in table[name].result
    )
    out = sum(array.num_bytes for array in instruction.result)
    if instruction.opcode.endswith("-start"):
        out = max(out - into, 0)  # the result holds the operands too
    return max(into, out)
