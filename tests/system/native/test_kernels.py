"""Each function of engine/native/c against torch's: float32 and bfloat16, work for one thread and for several."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from engine.models.quantized import Int8Matrix
from engine.models.rope import rotate_, rotations
from engine.models.stored import StoredMatrix
from engine.native.build import HALVES, Kernels, load_kernels
from engine.native.draws import exponentials
from engine.native.products import NativeProduct, NativeProducts
from engine.sampling import philox
from tests.real.processes import ROOT

pytestmark = pytest.mark.usefixtures("_processor")

DTYPES = [torch.float32, torch.bfloat16]
ROWS = [1, 3, 77]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-7}  # relative; rounding to bfloat16 costs half of that


@pytest.fixture(params=DTYPES, ids=["float32", "bfloat16"])
def native(request: pytest.FixtureRequest) -> Kernels:
    return load_kernels(request.param)


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def near(mine: torch.Tensor, exact: torch.Tensor) -> None:
    bound = TOLERANCE[mine.dtype]
    torch.testing.assert_close(mine.double(), exact.double(), rtol=bound, atol=bound)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [16, 48, 576])
@pytest.mark.parametrize("adds", [False, True])
def test_norm(native: Kernels, rows: int, width: int, adds: bool) -> None:
    x, weight = numbers(rows, width) * 3, numbers(width)
    added = numbers(rows, width, dtype=native.dtype) if adds else None
    expected = x + added.float() if added is not None else x.clone()
    out = torch.empty(rows, width, dtype=native.dtype)
    more = None if added is None else added.data_ptr()
    native.norm(x.data_ptr(), more, weight.data_ptr(), 1e-5, out.data_ptr(), rows, width)
    assert torch.equal(x, expected), "the residual stream itself is added to, exactly"
    wide = expected.double()
    near(out, wide * (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [16, 1536])
def test_silu_mul(native: Kernels, rows: int, width: int) -> None:
    gate_up = numbers(rows, 2 * width, dtype=native.dtype) * 4
    gate_up[0, :8] = torch.tensor([0.0, -0.0, 88.0, -88.0, 200.0, -200.0, 1e-30, -1e-30])
    out = torch.empty(rows, width, dtype=native.dtype)
    native.silu_mul(gate_up.data_ptr(), out.data_ptr(), rows, width)
    gate, up = gate_up.double().chunk(2, -1)
    near(out, torch.nn.functional.silu(gate) * up)


def test_what_is_no_number_stays_none(native: Kernels) -> None:
    gate_up, out = torch.ones(2, 32, dtype=native.dtype), torch.empty(2, 16, dtype=native.dtype)
    gate_up[1, 3] = torch.nan
    native.silu_mul(gate_up.data_ptr(), out.data_ptr(), 2, 16)
    assert out.isnan().nonzero().tolist() == [[1, 3]]
    x, weight = torch.ones(2, 16), torch.ones(16)
    x[0, 0] = torch.nan
    native.norm(x.data_ptr(), None, weight.data_ptr(), 1e-5, out.data_ptr(), 2, 16)
    assert out.isnan().all(1).tolist() == [True, False]


def test_bfloat16_is_rounded_to_the_even_of_two() -> None:
    """Norm rows whose mean square is exactly 1, with weights at or near the middle of two bfloat16 numbers."""
    native = load_kernels(torch.bfloat16)
    weight = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -1 - 2**-8] * 4)
    x, out = torch.ones(1, 16), torch.empty(1, 16, dtype=torch.bfloat16)
    native.norm(x.data_ptr(), None, weight.data_ptr(), 0.0, out.data_ptr(), 1, 16)
    assert torch.equal(out[0], weight.to(torch.bfloat16))


SHAPES = [(32, 16), (64, 112), (64, 368), (32, 720), (960, 576), (576, 1536)]
EVERY_TILE = [*range(1, 14), 16, 17, 77, 300]  # rows: each compiled tile width


@pytest.mark.parametrize("rows", EVERY_TILE)
@pytest.mark.parametrize(("out", "width"), SHAPES)
@pytest.mark.parametrize("biased", [False, True])
def test_int8_products_are_torchs(native: Kernels, rows: int, out: int, width: int, biased: bool) -> None:
    """Equal bit for bit; in bfloat16 with a bias only nearly, since torch rounds the product before it is added."""
    x = numbers(rows, width, dtype=native.dtype) * 5
    x[0] = 0
    bias = numbers(out, dtype=native.dtype) if biased else None
    matrix = Int8Matrix.of(numbers(out, width))
    matrix.values[0], matrix.values[1] = 127, -127
    x[-1] = 3  # gives the largest possible sums
    product = NativeProducts(native, emulated=True).int8(matrix, bias)
    assert isinstance(product, NativeProduct) == (native.together > 0), "a processor without AVX2 takes torch's"
    if bias is None or native.dtype is torch.float32:
        assert torch.equal(product(x), matrix.product(x, bias))
    else:
        near(product(x), matrix.product(x, bias))
    assert torch.equal(product(x), torch.cat([product(row) for row in x.tensor_split(len(x))])), (
        "of a row's place in its tile"
    )


def test_an_int8_product_of_what_is_no_number_is_none(native: Kernels) -> None:
    x = numbers(3, 32, dtype=native.dtype)
    x[0, 5], x[1] = torch.nan, torch.nan
    y = NativeProducts(native, emulated=True).int8(Int8Matrix.of(numbers(64, 32)))(x)
    assert y.isnan().all(1).tolist() == [True, True, False]
    assert y[2].isfinite().all()


def test_wide_products_fit_a_small_stack() -> None:
    code = """
import torch
from engine.native.build import load_kernels
from engine.native.products import NativeProducts
torch.set_num_threads(2)
weight = torch.ones(64, 8192, dtype=torch.bfloat16)
product = NativeProducts(load_kernels(torch.bfloat16), emulated=True).linear(weight)
assert (product(torch.ones(40, 8192, dtype=torch.bfloat16)) == 8192).all()
"""
    subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "OMP_STACKSIZE": "256k"}, check=True, timeout=60
    )


@pytest.mark.parametrize("rows", EVERY_TILE)
@pytest.mark.parametrize(("out", "width"), SHAPES)
@pytest.mark.parametrize("biased", [False, True])
def test_products(native: Kernels, rows: int, out: int, width: int, biased: bool) -> None:
    x, weight, bias = (numbers(*shape, dtype=native.dtype) for shape in ((rows, width), (out, width), (out,)))
    exact = x.double() @ weight.double().T + (bias.double() if biased else 0)
    product = NativeProducts(native, emulated=True).linear(weight, bias if biased else None)
    y = product(x)
    assert y.dtype == native.dtype
    bound = 2**-8 if native.dtype == torch.bfloat16 else 1e-4  # for sums of some hundred terms
    torch.testing.assert_close(y.double(), exact, rtol=bound, atol=bound)
    alone = torch.cat([product(x[row : row + 1]) for row in range(rows)])
    assert torch.equal(y, alone), "a row's numbers do not depend on how many run beside it"


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize(("out", "width"), SHAPES)
def test_where_the_system_refuses_amx_vectors_multiply(native: Kernels, rows: int, out: int, width: int) -> None:
    """On other processors they do so anyway."""
    x, weight = numbers(rows, width, dtype=native.dtype), numbers(out, width)
    products = NativeProducts(native, emulated=True)
    wide, whole = products.linear(weight.to(native.dtype)), products.int8(Int8Matrix.of(weight))
    granted = native.amx_granted.value
    try:
        native.amx_granted.value = 0
        by_vectors = wide(x), whole(x)
    finally:
        native.amx_granted.value = granted
    near(wide(x), by_vectors[0])
    assert torch.equal(whole(x), by_vectors[1])


def stored(bits: int, group: int, out: int, width: int) -> StoredMatrix:
    """Return a matrix with every value that the bits allow."""
    low, high = (0, 16) if bits == 4 else (-128, 128)
    values = torch.arange(out * width).mul_(7).remainder_(high - low).add_(low).to(torch.int8)
    scales = numbers(2, out, width // group).half().float() / 64
    return StoredMatrix(values.view(out, width), scales[0], scales[1], bits)


@pytest.mark.parametrize("rows", EVERY_TILE)
@pytest.mark.parametrize(("out", "width"), [(32, 32), (960, 576), (576, 1536)])
@pytest.mark.parametrize(("bits", "group"), [(4, 32), (8, 32), (8, 16)])
@pytest.mark.parametrize("biased", [False, True])
def test_products_of_stored_matrices(
    native: Kernels, rows: int, out: int, width: int, bits: int, group: int, biased: bool
) -> None:
    """In float32 they equal the products of the same matrix as floats, bit for bit."""
    matrix, products = stored(bits, group, out, width), NativeProducts(native, emulated=True)
    x, bias = numbers(rows, width, dtype=native.dtype), numbers(out, dtype=native.dtype) if biased else None
    product = products.stored(matrix, bias)
    assert (product is not None) == native.narrow == products.keep
    if product is None:
        return
    y = product(x)
    if native.dtype == torch.float32:
        plain = products.linear(matrix.floats(), bias)
        assert isinstance(plain, NativeProduct)
        assert torch.equal(y, plain(x))
    else:
        exact = x.double() @ matrix.floats().double().T + (0 if bias is None else bias.double())
        torch.testing.assert_close(y.double(), exact, rtol=2**-8, atol=2**-8)
    alone = torch.cat([product(x[row : row + 1]) for row in range(rows)])
    assert torch.equal(y, alone), "a row's numbers do not depend on how many run beside it"


@pytest.mark.parametrize("rows", [*EVERY_TILE, 24, 48])
@pytest.mark.parametrize("biased", [False, True])
def test_products_of_bfloat16_in_a_model_of_float32(rows: int, biased: bool) -> None:
    """They equal the products of the same matrix as floats, bit for bit."""
    native = load_kernels(torch.float32)
    products, weight = NativeProducts(native, emulated=True), numbers(96, 576, dtype=torch.bfloat16)
    x, bias = numbers(rows, 576), numbers(96) if biased else None
    product = products.linear(weight, bias)
    if native.narrow:
        assert isinstance(product, NativeProduct)
        assert product.matrix.kind == HALVES
    assert torch.equal(product(x), products.linear(weight.float(), bias)(x))


def test_where_torch_multiplies_bfloat16_nothing_stays_as_it_is_stored() -> None:
    """torch's bfloat16 products take bfloat16 weights; a float32 model keeps stored weights there too."""
    for dtype, kept in ((torch.bfloat16, False), (torch.float32, load_kernels(torch.float32).narrow)):
        products = NativeProducts(load_kernels(dtype), emulated=False)
        assert products.keep == kept
        assert (products.stored(stored(8, 32, 32, 32)) is not None) == kept


def test_stored_matrices_that_are_made_floats() -> None:
    """Matrices of odd widths, and with groups that no file format has, are converted to floats."""
    products = NativeProducts(load_kernels(torch.float32), emulated=True)
    assert products.stored(stored(8, 32, 33, 32)) is None
    assert products.stored(stored(4, 16, 32, 32)) is None
    assert products.stored(stored(8, 2, 32, 32)) is None


def test_which_products_are_torchs() -> None:
    """Odd widths; bfloat16 if only torch uses the processor's instructions; float32 if vectors are short."""
    long, short = load_kernels(torch.float32), load_kernels(torch.bfloat16)
    wide, mine, own = (NativeProducts(long, True), NativeProducts(short, True), NativeProducts(short, False))
    for products, weight in (
        (mine, numbers(33, 32).bfloat16()),
        (mine, numbers(32, 24).bfloat16()),
        (wide, numbers(33, 32)),
    ):
        assert not isinstance(products.linear(weight), NativeProduct)
    assert isinstance(mine.linear(numbers(32, 32).bfloat16()), NativeProduct)
    assert isinstance(own.linear(numbers(32, 32).bfloat16()), NativeProduct) == short.paired
    assert isinstance(wide.linear(numbers(32, 32)), NativeProduct) == long.wide
    assert not isinstance(mine.int8(Int8Matrix.of(numbers(71, 48))), NativeProduct)


@pytest.mark.parametrize("tokens", [1, 5, 300])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("rotated", [False, True])
def test_rotate_store(native: Kernels, tokens: int, normed: bool, rotated: bool) -> None:
    heads, kv_heads, dim, slots = 6, 2, 48, 400
    qkv = numbers(tokens, heads + 2 * kv_heads, dim, dtype=native.dtype) * 2
    turns = rotations(10000.0 ** -(torch.arange(0, dim, 2) / dim), 500)[torch.randperm(500)[:tokens]]
    norms = [numbers(dim) for _ in range(2)] if normed else [None, None]
    slot = torch.randperm(slots)[:tokens]
    expected = qkv.clone()
    for part, weight in ((expected[:, :heads], norms[0]), (expected[:, heads : heads + kv_heads], norms[1])):
        if weight is not None:
            part.copy_(torch.nn.functional.rms_norm(part.float(), (dim,), weight, 1e-5))
    if rotated:
        rotate_(expected[:, : heads + kv_heads], turns.unsqueeze(1))
    pool = torch.zeros(2 * kv_heads, slots, dim, dtype=native.dtype)
    untouched = pool.clone()
    native.rotate_store(
        qkv.data_ptr(),
        *[None if weight is None else weight.data_ptr() for weight in norms],
        1e-5,
        turns.data_ptr() if rotated else None,
        slot.data_ptr(),
        pool.data_ptr(),
        slots,
        tokens,
        heads,
        kv_heads,
        dim,
    )
    near(qkv, expected)
    untouched.index_copy_(1, slot, qkv[:, heads:].transpose(0, 1))
    assert torch.equal(pool, untouched), "what is stored is what was computed, there and nowhere else"


@pytest.mark.parametrize("count", [1, 4, 7, 192, 256])
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_exponentials_are_philoxs(native: Kernels, rows: int, count: int) -> None:
    noise = torch.Generator().manual_seed(count)
    ends = torch.tensor([-(2**63), -1, 0, 2**63 - 1])
    seeds = torch.cat((ends, torch.randint(-(2**63), 2**63 - 1, (40,), generator=noise)))[:rows]
    positions = torch.cat((torch.randint(0, 1 << 40, (40,), generator=noise), ends))[:rows]
    expected = philox.exponentials(seeds, positions, (count, 256))
    for mine, theirs in zip(exponentials(native)(seeds, positions, (count, 256)), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-15, atol=0)
