"""Wrong rotations and wrong copies fail their checks."""

import numpy as np
import pyopencl as cl
import pytest

import clrope
from clrope import DeviceError
from clrope.benchmark.buffers import DeviceSets, HostSets, make_inputs
from clrope.benchmark.ceilings import Ceilings, host_copy, variants
from clrope.benchmark.entry import WrongResultError
from clrope.benchmark.measure import open_bench
from clrope.benchmark.validation import ResultCheck
from clrope.benchmark.workloads import select
from clrope.emulation import emulate_rope
from clrope.testing import POISON


def tiny(name):
    (found,) = select([name])
    return found.tiny()


CASES = [
    "prefill/f32/neox/out/forward", "prefill/f16/normal/out/backward", "prefill/bf16/mrope/out/forward",
    "gqa/f16/neox/out/forward", "partial-20of80/bf16/normal/out/forward", "decode-64/f32/neox/out/forward",
    "vision/f32/vision/out/forward",
]  # fmt: skip


def rotated(inputs):
    w = inputs.workload
    return [emulate_rope(x, w.position_array(), w.config, w.forward) for x in inputs.tensors]


@pytest.fixture(params=CASES)
def inputs(request, seed):
    return make_inputs(tiny(request.param), seed)


def test_right_results_pass(inputs, seed):
    assert ResultCheck(inputs, seed)(rotated(inputs)) < 1e-5


def test_wrong_results_do_not_pass(inputs, seed):
    validate = ResultCheck(inputs, seed)
    right = rotated(inputs)
    w = inputs.workload
    seq, heads = w.tensors[0][1:3]

    def changed(change):
        got = [y.copy() for y in right]
        change(got[-1])
        return got

    def token(y):
        y[-1, seq - 1] = inputs.tensors[-1][-1, seq - 1]

    def head_order(y):
        y[...] = y[:, :, ::-1].copy()

    def poison(y):
        y[0, seq // 2, heads // 2 if y.shape[2] == heads else 0].view(np.uint8)[...] = POISON

    def nan(y):
        y[0, 0, 0, 0] = np.nan

    def nothing(y):
        y.view(np.uint8)[...] = POISON

    def zero(y):
        y[...] = 0

    taken_for_right = []
    for change in (token, head_order, poison, nan, nothing, zero):
        try:
            validate(changed(change))
        except WrongResultError:
            continue
        taken_for_right.append(change.__name__)
    assert not taken_for_right


def test_other_pairing_or_direction_is_wrong(seed):
    inputs = make_inputs(tiny("prefill/f32/neox/out/forward"), seed)
    validate = ResultCheck(inputs, seed)
    w = inputs.workload
    for config, forward in ((w.config, False), (clrope.RopeConfig("normal", 128), True)):
        got = [emulate_rope(x, w.position_array(), config, forward) for x in inputs.tensors]
        with pytest.raises(WrongResultError, match="NMSE"):
            validate(got)


def test_a_head_that_no_sampled_token_has_is_checked_by_its_norm(seed, monkeypatch):
    monkeypatch.setattr("clrope.benchmark.validation.SAMPLED", 1)
    inputs = make_inputs(tiny("prefill/f32/neox/out/forward"), seed)
    validate = ResultCheck(inputs, seed)
    right = rotated(inputs)
    left_out = sorted(set(range(16)) - set(validate._tokens.tolist()))
    right[0][0, left_out[0], 2] *= 1.01
    with pytest.raises(WrongResultError, match=rf"norm of head \[0, {left_out[0]}, 2\]"):
        validate(right)


CEILINGS = {
    "prefill/f16/neox/out/forward": ("copy", "stream"),
    "prefill/f16/neox/in/forward": ("scale",),
    "partial-20of80/f16/neox/in/forward": ("windows", "scale"),
    "partial-64of128/f32/neox/in/forward": ("windows", "scale"),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", CEILINGS)
def test_every_variant_of_a_ceiling_is_right(device, name, seed):
    bench = open_bench(device, "device")
    sets = DeviceSets(bench.profiled, device, make_inputs(tiny(name), seed))
    ceilings = Ceilings(device, bench.profiled, "device")
    for kind in CEILINGS[name]:
        for variant in variants(kind, device.kind):
            ceilings._kernel(variant, sets).check()
    made, failures = ceilings.entries(sets)
    assert not failures
    assert {c.name for c in made} - {"enqueue_copy"} == set(CEILINGS[name])
    for c in made:
        c.check()
        w = sets.inputs.workload
        assert c.bytes == (w.bytes_moved if c.name == "windows" else 2 * w.tensor_bytes)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", CEILINGS)
def test_one_wrong_word_is_found_out(device, name, seed, monkeypatch, rng):
    bench = open_bench(device, "device")
    sets = DeviceSets(bench.profiled, device, make_inputs(tiny(name), seed))
    made, _ = bench.ceilings.entries(sets)
    word = int(rng.integers(sets.inputs.block.size // 4))
    read = sets.read

    def changed(number):
        block = read(number)
        block.view(np.uint32)[word] ^= 0x10
        return block

    monkeypatch.setattr(sets, "read", changed)
    for entry in made:
        with pytest.raises(WrongResultError, match=r"^1 of \d+ words"):
            entry.check()


def test_a_copy_that_does_nothing_is_found_out(device, seed):
    import pyopencl as cl

    bench = open_bench(device, "device")
    sets = DeviceSets(bench.profiled, device, make_inputs(tiny("prefill/f32/neox/out/forward"), seed))
    entry = bench.ceilings._driver_copy(sets)
    entry.check()
    real = cl.enqueue_copy
    try:
        # Only between buffers: sets are still filled and read.
        cl.enqueue_copy = lambda q, a, b, **k: (
            None if isinstance(a, cl.Buffer) and isinstance(b, cl.Buffer) else real(q, a, b, **k)
        )
        with pytest.raises(WrongResultError, match="8192 of 8192 words were not copied"):
            entry.check()
    finally:
        cl.enqueue_copy = real


def test_host_copy(seed):
    sets = HostSets(make_inputs(tiny("prefill/f32/neox/out/forward"), seed))
    entry = host_copy(sets.x_blocks, sets.y_blocks)
    entry.check()
    entry.call(1)
    assert np.array_equal(sets.y_blocks[1], sets.x_blocks[1])


def test_launches_of_nothing(device):
    bench = open_bench(device, "device")
    made = bench.ceilings.launches(bench.plain)
    assert [c.name for c in made][-1] == "pyopencl launch"
    assert len(made) == 2 or bench.ceilings.notes["raw launch"]
    for c in made:
        c.check()
        c.call(0)


def test_a_device_without_queues_is_named(device, monkeypatch):
    class Failing(cl.CommandQueue):
        def __init__(self, *args, **more):
            raise cl.RuntimeError("CommandQueue failed: OUT_OF_RESOURCES")

    monkeypatch.setattr(cl, "CommandQueue", Failing)
    with pytest.raises(DeviceError, match="no command queue could be made: CommandQueue failed: OUT_OF_RESOURCES"):
        open_bench(device, "device")
