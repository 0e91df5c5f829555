"""Vectors of numbers in LLVM IR, written like numpy arrays, for the kernels that numba compiles.

numba's own language has no vector registers and its loops vectorise as they please. Here an expression over `Lanes`
becomes one LLVM vector operation each, which LLVM lowers to whatever instruction set the machine has, with the same
bits everywhere: integers are exact, and floats only ever meet in single operations or in explicit fma.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

__all__ = ["Lanes", "Memory", "join", "sum_each", "times"]

_FLOAT = ir.FloatType()
_INT32 = ir.IntType(32)


def _vector(element: ir.Type, count: int) -> ir.Type:
    return element if count == 1 else ir.VectorType(element, count)


class Lanes:
    """A vector of integers or float32 in IR, or one number when `value` is no vector.

    Integers carry no sign; `widen` and `shift` say which reading is meant. The other operand of an operation may be a
    Python number, which stands for all lanes.
    """

    def __init__(self, builder: ir.IRBuilder, value: ir.Value) -> None:
        self.builder = builder
        self.value = value

    @property
    def type(self) -> ir.Type:
        """LLVM type of the whole."""
        return self.value.type

    @property
    def count(self) -> int:
        """Number of lanes."""
        return self.type.count if isinstance(self.type, ir.VectorType) else 1

    @property
    def element(self) -> ir.Type:
        """LLVM type of one lane."""
        return self.type.element if isinstance(self.type, ir.VectorType) else self.type

    def constant(self, number: float) -> Lanes:
        """`number` in every lane, in this vector's type."""
        if isinstance(self.type, ir.VectorType):
            return Lanes(self.builder, ir.Constant(self.type, [number] * self.count))
        return Lanes(self.builder, ir.Constant(self.type, number))

    def _apply(self, operation: str, other: Lanes | float) -> Lanes:
        other = other if isinstance(other, Lanes) else self.constant(other)
        return Lanes(self.builder, getattr(self.builder, operation)(self.value, other.value))

    def __add__(self, other: Lanes | float) -> Lanes:
        return self._apply("fadd" if self.element == _FLOAT else "add", other)

    def __sub__(self, other: Lanes | float) -> Lanes:
        return self._apply("fsub" if self.element == _FLOAT else "sub", other)

    def __mul__(self, other: Lanes | float) -> Lanes:
        return self._apply("fmul" if self.element == _FLOAT else "mul", other)

    def __truediv__(self, other: Lanes | float) -> Lanes:
        return self._apply("fdiv", other)

    def __neg__(self) -> Lanes:
        return Lanes(
            self.builder, self.builder.fneg(self.value) if self.element == _FLOAT else self.builder.neg(self.value)
        )

    def __and__(self, other: Lanes | int) -> Lanes:
        return self._apply("and_", other)

    def __or__(self, other: Lanes | int) -> Lanes:
        return self._apply("or_", other)

    def __xor__(self, other: Lanes | int) -> Lanes:
        return self._apply("xor", other)

    def __lshift__(self, places: int) -> Lanes:
        return self._apply("shl", places)

    def __rshift__(self, places: int) -> Lanes:
        return self._apply("lshr", places)

    def shuffle(self, other: Lanes | None, lanes: Sequence[int]) -> Lanes:
        """Any lanes of this vector and another, whose numbers follow this one's, in any order and number."""
        second = ir.Constant(self.type, ir.Undefined) if other is None else other.value
        mask = ir.Constant(ir.VectorType(_INT32, len(lanes)), list(lanes))
        return Lanes(self.builder, self.builder.shuffle_vector(self.value, second, mask))

    def __getitem__(self, lanes: Sequence[int]) -> Lanes:
        """This vector's lanes in another order."""
        return self.shuffle(None, lanes)

    def lane(self, index: int | ir.Value) -> Lanes:
        """One lane as a number."""
        if self.count == 1:
            return self
        position = ir.Constant(_INT32, index) if isinstance(index, int) else index
        return Lanes(self.builder, self.builder.extract_element(self.value, position))

    def replaced(self, index: ir.Value, number: Lanes) -> Lanes:
        """This vector with one lane replaced."""
        return Lanes(self.builder, self.builder.insert_element(self.value, number.value, index))

    def splat(self, count: int) -> Lanes:
        """This one number in `count` lanes."""
        vector = ir.Constant(ir.VectorType(self.type, 1), ir.Undefined)
        first = self.builder.insert_element(vector, self.value, ir.Constant(_INT32, 0))
        return Lanes(self.builder, first)[[0] * count]

    def widen(self, bits: int, signed: bool = False) -> Lanes:
        """Integers of `bits` bits with the same values."""
        extend = self.builder.sext if signed else self.builder.zext
        return Lanes(self.builder, extend(self.value, _vector(ir.IntType(bits), self.count)))

    def narrow(self, bits: int) -> Lanes:
        """The low `bits` bits."""
        return Lanes(self.builder, self.builder.trunc(self.value, _vector(ir.IntType(bits), self.count)))

    def cast(self, element: ir.Type, count: int) -> Lanes:
        """The same bits, little-endian, as `count` lanes of another type; one number when `count` is 1."""
        return Lanes(self.builder, self.builder.bitcast(self.value, _vector(element, count)))

    def as_floats(self) -> Lanes:
        """The same bits of int32 lanes as float32."""
        return self.cast(_FLOAT, self.count)

    def as_ints(self) -> Lanes:
        """The same bits of float32 lanes as int32."""
        return self.cast(_INT32, self.count)

    def to_floats(self) -> Lanes:
        """Signed integers as float32, rounded to nearest even."""
        return Lanes(self.builder, self.builder.sitofp(self.value, _vector(_FLOAT, self.count)))

    def compare(self, operator: str, other: Lanes | float) -> Lanes:
        """Lanes of one bit: ordered comparison of floats (false for NaN), unsigned of integers."""
        other = other if isinstance(other, Lanes) else self.constant(other)
        compare = self.builder.fcmp_ordered if self.element == _FLOAT else self.builder.icmp_unsigned
        return Lanes(self.builder, compare(operator, self.value, other.value))

    def choose(self, yes: Lanes | float, no: Lanes) -> Lanes:
        """`yes` where this lane's bit is set, else `no`."""
        yes = yes if isinstance(yes, Lanes) else no.constant(yes)
        return Lanes(self.builder, self.builder.select(self.value, yes.value, no.value))

    def intrinsic(self, name: str, *others: Lanes) -> Lanes:
        """LLVM's function `llvm.<name>` of this and other vectors of the same type."""
        values = [self.value, *(other.value for other in others)]
        kind = ("f" if self.element == _FLOAT else "i") + ("32" if self.element == _FLOAT else str(self.element.width))
        shape = f"v{self.count}{kind}" if isinstance(self.type, ir.VectorType) else kind
        result = self.element if name.startswith("vector.reduce") else self.type
        signature = ir.FunctionType(result, [self.type] * len(values))
        function = self.builder.module.globals.get(f"llvm.{name}.{shape}") or ir.Function(
            self.builder.module, signature, f"llvm.{name}.{shape}"
        )
        return Lanes(self.builder, self.builder.call(function, values))

    def fma(self, factor: Lanes, addend: Lanes) -> Lanes:
        """self * factor + addend, rounded once."""
        return self.intrinsic("fma", factor, addend)

    def pair_sums(self, other: Lanes) -> Lanes:
        """int16 x int16 -> half as many int32: products of neighbours, added (one multiply-add instruction).

        One number has no neighbour: then it is the product.
        """
        products = self.widen(32, signed=True) * other.widen(32, signed=True)
        if products.count == 1:
            return products
        return products[range(0, self.count, 2)] + products[range(1, self.count, 2)]

    def sum(self) -> Lanes:
        """Sum of all integer lanes, modulo their width."""
        return self.intrinsic("vector.reduce.add") if self.count > 1 else self

    def sum_tree(self) -> Lanes:
        """Sum of float lanes: the upper half is added to the lower until one is left."""
        total = self
        while total.count > 2:
            half = total.count // 2
            total = total[range(half)] + total[range(half, 2 * half)]
        return total.lane(0) + total.lane(1)


def join(*parts: Lanes) -> Lanes:
    """Vectors of equal type, or numbers, one after another; a power of two of them."""
    if parts[0].count == 1:
        parts = tuple(part.splat(1) for part in parts)
    while len(parts) > 1:
        order = range(2 * parts[0].count)
        parts = tuple(a.shuffle(b, order) for a, b in zip(parts[::2], parts[1::2], strict=True))
    return parts[0]


def sum_each(parts: Sequence[Lanes]) -> Lanes:
    """Sums of the lanes of each of four vectors, as one vector of four; integers."""
    if parts[0].count == 1:
        return join(*parts)
    groups = range(0, parts[0].count, 4)
    far = parts[0].count  # where the second vector's lanes begin in a shuffle
    low, high = ([g + i for g in groups for i in (k, far + k, k + 1, far + k + 1)] for k in (0, 2))
    pairs = [a.shuffle(b, low) + a.shuffle(b, high) for a, b in (parts[:2], parts[2:])]
    low, high = ([g + i for g in groups for i in (k, k + 1, far + k, far + k + 1)] for k in (0, 2))
    total = pairs[0].shuffle(pairs[1], low) + pairs[0].shuffle(pairs[1], high)
    while total.count > 4:
        half = total.count // 2
        total = total[range(half)] + total[range(half, 2 * half)]
    return total


def times(builder: ir.IRBuilder, index: ir.Value, factor: int) -> ir.Value:
    """An integer of IR times a constant, for addresses."""
    return builder.mul(index, ir.Constant(index.type, factor))


class Memory:
    """An address in IR with reads and writes of vectors at any alignment; little-endian, as the formats are."""

    def __init__(self, builder: ir.IRBuilder, pointer: ir.Value) -> None:
        self.builder = builder
        self.pointer = pointer

    @classmethod
    def of(cls, context: Any, builder: ir.IRBuilder, array_type: Any, array: ir.Value, index: ir.Value) -> Memory:
        """Where element `index` of a one-dimensional contiguous numba array lies."""
        data = context.make_array(array_type)(context, builder, array).data
        byte = builder.bitcast(builder.gep(data, [index]), ir.IntType(8).as_pointer())
        return cls(builder, byte)

    def moved(self, offset: int) -> Memory:
        """`offset` bytes further on."""
        return Memory(self.builder, self._at(offset, ir.IntType(8)))

    def _at(self, offset: int | ir.Value, kind: ir.Type) -> ir.Value:
        index = ir.Constant(ir.IntType(64), offset) if isinstance(offset, int) else offset
        return self.builder.bitcast(self.builder.gep(self.pointer, [index]), kind.as_pointer())

    def load(self, element: ir.Type, offset: int | ir.Value = 0, count: int = 1) -> Lanes:
        """`count` elements that begin `offset` bytes on; a number, not a vector, when `count` is 1."""
        return Lanes(self.builder, self.builder.load(self._at(offset, _vector(element, count)), align=1))

    def store(self, lanes: Lanes, offset: int | ir.Value = 0) -> None:
        """Write `lanes` at `offset` bytes."""
        self.builder.store(lanes.value, self._at(offset, lanes.type), align=1)
