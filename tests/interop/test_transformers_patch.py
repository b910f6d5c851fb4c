"""`clrope.interop.transformers.patch`: models with random weights, before and with clrope's rotation."""

from __future__ import annotations

import importlib
import itertools
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

import clrope

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers", minversion="5.0")
    transformers.logging.set_verbosity_error()
    sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
    from tools import rotary_table

from clrope.interop import transformers as adapter
from clrope.interop.rotary_functions import AXIS, UnnamedError, candidates, probe
from clrope.interop.torch_rotate import Repeated, rope, rotate
from clrope.interop.transformers import patch

# What transformers and torch warn of among themselves is not ours.
pytestmark = pytest.mark.filterwarnings("ignore")

SMALL = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "pad_token_id": 0,
    "attention_dropout": 0.0,
}  # fmt: skip
OWN_HEADS = {"head_dim": None}
EXPERTS = {
    "moe_intermediate_size": 32, "num_experts": 4, "n_routed_experts": 4, "num_local_experts": 4,
    "num_experts_per_tok": 2,
}  # fmt: skip
LATENT = {
    **EXPERTS, "n_group": 2, "topk_group": 1, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 16, "first_k_dense_replace": 1, "head_dim": None,
}  # fmt: skip
OLD = {"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8, "n_inner": 96, "n_positions": 512}
#: Model types, with what their configurations set on top of `SMALL`; None leaves a key out.
MODELS: dict[str, dict[str, Any]] = {
    model_type: options
    for names, options in (
        ("llama mistral qwen2 qwen3 gemma gemma2 gemma3_text glm glm4 smollm3 ernie4_5 exaone4 helium", {}),
        ("nemotron apertus arcee lfm2 bitnet modernbert-decoder", {}),
        ("phi phi3 gpt_neox persimmon falcon olmo2 cohere cohere2 stablelm granite", OWN_HEADS),
        ("mixtral qwen3_moe gpt_oss ernie4_5_moe glm4_moe", EXPERTS),
        ("deepseek_v3 glm4_moe_lite", LATENT),
        ("gptj codegen", OLD),
    )
    for model_type in names.split()
}
#: Their rotary modules make cos and sin in a way that is no configuration's.
WITHOUT_EXACT = {"gptj", "codegen"}
#: Python modules with a function of each convention.
FUNCTIONS = (
    *(
        "llama",
        "phi3",
        "cohere",
        "glm",
        "glm4v",
        "ernie4_5",
        "deepseek_v3",
        "deepseek_v4",
        "gpt_oss",
        "gptj",
        "pe_audio",
    ),
    *("openai_privacy_filter", "gemma3n", "sam3", "qwen2_vl", "minimax_m3_vl", "inkling2", "olmo2"),
)


def model_of(model_type: str) -> Any:
    given = {k: v for k, v in {**SMALL, **MODELS[model_type]}.items() if v is not None}
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **given)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def modeling(name: str) -> Any:
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Small tensors are slower on several threads, much slower next to other tests."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def gen(rng):
    return torch.Generator().manual_seed(int(rng.integers(1 << 62)))


@pytest.fixture
def rotations(monkeypatch):
    """A list that gets the shapes of q of each call that clrope rotates."""
    shapes = []

    def spy(xs, *args, **kwargs):
        shapes.append(tuple(xs[0].shape))
        return rotate(xs, *args, **kwargs)

    def spy_repeated(self, tensors):
        results = run(self, tensors)
        if results is not None:
            shapes.append(tuple(tensors[0].shape))
        return results

    run = Repeated.run
    monkeypatch.setattr(adapter, "rotate", spy)
    monkeypatch.setattr(Repeated, "run", spy_repeated)
    return shapes


def trained(model: Any, ids: Any) -> tuple[Any, dict[str, Any]]:
    """Return logits, and the gradient of each parameter."""
    model.zero_grad()
    out = model(ids, labels=ids)
    out.loss.backward()
    return out.logits.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def off(got: Any, want: Any) -> float:
    """The greatest difference, relative to the greatest number."""
    return float((got - want).abs().max() / want.abs().max().clamp_min(1e-30))


@pytest.mark.one_in(24)
@pytest.mark.parametrize("model_type", MODELS)
def test_models_forward_and_backward(device, gen, rotations, model_type):
    model = model_of(model_type)
    ids = torch.randint(1, 64, (2, 23), generator=gen)
    logits, gradients = trained(model, ids)
    for angles in ("model", "exact"):
        rotations.clear()
        with patch(model, angles, min_tokens=0, device=device.index) as patched:
            got, got_gradients = trained(model, ids)
        assert len(rotations) >= model.config.num_hidden_layers
        made_exact = [row for row in patched.report if row.name == "forward" and row.convention]
        assert bool(made_exact) == (angles == "exact" and model_type not in WITHOUT_EXACT), patched
        if angles == "model" or not made_exact:
            assert torch.equal(got, logits)
        else:
            assert off(got, logits) <= 1e-5
        # Sums over tokens are made in another order where gradients of q and k have another order in memory.
        for name, gradient in gradients.items():
            assert off(got_gradients[name], gradient) <= 1e-4, name
    assert torch.equal(model(ids).logits, logits)


@pytest.mark.one_in(16)
@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma3_text", "phi3"])
@pytest.mark.parametrize("angles", ["model", "exact"])
def test_compiled_and_exported(devices, rng, gen, model_type, angles):
    model = model_of(model_type)
    ids = torch.randint(1, 64, (2, 19), generator=gen)
    device = devices[int(rng.integers(len(devices)))].index
    before, gradients = trained(model, ids)
    with patch(model, angles, min_tokens=8, device=device):
        torch._dynamo.reset()
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=False)
        got, got_gradients = trained(compiled._orig_mod, ids)
        logits = compiled(ids, labels=ids)
        logits.loss.backward()
        exported = torch.export.export(
            model, (ids,), {"use_cache": False}, strict=False,
            dynamic_shapes={"input_ids": {1: torch.export.Dim("tokens", min=2, max=256)}, "use_cache": None},
        )  # fmt: skip
    assert torch.equal(logits.logits.detach(), got)
    assert torch.equal(got, before) == (angles == "model")
    for name, gradient in got_gradients.items():
        # `backward` was called twice on the same parameters.
        assert off(dict(model.named_parameters())[name].grad / 2, gradient) <= 1e-5, name
        assert off(gradient, gradients[name]) <= 1e-4, name
    calls = [str(node.target) for node in exported.graph.nodes if "clrope" in str(node.target)]
    assert calls.count("clrope.rotate.default") == 2
    assert ("clrope.cos_sin.default" in calls) == (angles == "exact")
    # Outside of the patch, the exported program still rotates by clrope, few tokens too.
    assert torch.equal(exported.module()(ids, use_cache=False).logits, got)
    few = exported.module()(ids[:, :5], use_cache=False).logits
    assert off(few, model(ids[:, :5]).logits) <= (1e-5 if angles == "exact" else 0)


def arguments(convention: Any, gen: Any, rng: Any, dtype: Any = torch.float32) -> dict[str, Any]:
    """Random arguments for a function of a convention, of random sizes and memory order."""
    axis_given = "unsqueeze_dim" in convention.parameters
    rank, table_rank, heads_axis = (
        (4, 3, int(rng.integers(1, 3))) if axis_given else convention.places[int(rng.integers(len(convention.places)))]
    )
    batch, tokens, head_dim = int(rng.integers(1, 4)), int(rng.integers(2, 40)), 8 * int(rng.integers(1, 9))
    rotated = head_dim
    if convention.pairs.rest != "none" and head_dim > 8:
        rotated = 8 * int(rng.integers(1, head_dim // 8 + 1))
    columns = rotated // 2 if convention.pairs.tables == "pair" else rotated
    given: dict[str, Any] = {}
    for name in convention.tensors:
        shape = [batch, tokens, int(rng.integers(1, 7)), head_dim][4 - rank :]
        given[name] = torch.randn(shape, generator=gen).to(dtype).movedim(-2, heads_axis)
        if rng.random() < 0.5:
            given[name] = given[name].contiguous()
    for name in ("cos", "sin"):
        given[name] = torch.randn([batch, tokens, columns][3 - table_rank :], generator=gen)
    return {**given, "unsqueeze_dim": heads_axis} if axis_given else given


def flat(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def steps(x: Any) -> list[int]:
    """The strides but those of axes of length 1, which mean nothing."""
    return [step for step, n in zip(x.stride(), x.shape, strict=True) if n > 1]


@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_every_convention(device, gen, rng, rotations, name):
    """The same bits and strides as the model's own function, of any sizes; gradients, also of cos and sin."""
    for own in candidates(modeling(name)).values():
        convention = probe(own)
        ours = adapter._replacement(own, convention, 0, device.index)
        for _ in range(4):
            given = arguments(convention, gen, rng)
            want, got = flat(own(**given)), flat(ours(**given))
            for a, b in zip(got, want, strict=True):
                assert torch.equal(a, b), convention
                assert steps(a) == steps(b)
            inputs = [given[n].requires_grad_() for n in (*convention.tensors, "cos", "sin")]
            weights = [torch.randn(a.shape, generator=gen) for a in want]
            left = torch.autograd.grad(flat(ours(**given)), inputs, weights)
            right = torch.autograd.grad(flat(own(**given)), inputs, weights)
            for a, b in zip(left, right, strict=True):
                assert off(a, b) <= 1e-6
        half = arguments(convention, gen, rng, torch.bfloat16)
        for a, b in zip(flat(ours(**half)), flat(own(**half)), strict=True):
            assert a.dtype == b.dtype
            # bfloat16 with cos and sin of float32: either wide results, or all in float32 and rounded once.
            assert torch.equal(a, b)
        assert len(rotations) == 9
        rotations.clear()


@pytest.mark.parametrize("in_place", [False, True])
def test_repeated_calls(device, gen, rng, monkeypatch, in_place):
    """Later calls like the first one have the model's bits and strides, too."""
    own = next(iter(candidates(modeling(str(rng.choice(FUNCTIONS)))).values()))
    convention = probe(own)
    ours = adapter._replacement(own, convention, 0, device.index, in_place)
    given = arguments(convention, gen, rng)
    while given.pop(AXIS, None) not in (None, convention.defaults.get(AXIS)):
        given = arguments(convention, gen, rng)
    may = in_place and not convention.contiguous and convention.pairs.mode == convention.pairs.out_mode
    with torch.inference_mode(bool(rng.integers(2))):
        for call in range(3):
            inputs = {name: given[name].clone() for name in convention.parameters if name in given}
            want, got = flat(own(*inputs.values())), flat(ours(*inputs.values()))
            assert [steps(a) for a in got] == [steps(b) for b in want]
            assert all(map(torch.equal, got, want)), convention
            in_same = [a.data_ptr() == inputs[name].data_ptr() for a, name in zip(got, convention.tensors, strict=True)]
            assert in_same == [may and call > 0] * len(got)
            monkeypatch.setattr(adapter, "rotate", None)  # not called any more


def test_what_is_no_repeated_call(device, gen):
    """Inputs that share memory, are cut off, misaligned, watched or of another kind are rotated all the same."""
    own = modeling("llama").apply_rotary_pos_emb
    ours = adapter._replacement(own, probe(own), 0, device.index, True)
    cos, sin, x = (torch.randn(*shape, generator=gen) for shape in ((1, 8, 16), (1, 8, 16), (2, 4, 8, 16)))
    own_q, own_k = own(x, x, cos, sin)
    for _ in range(2):
        ours(x.clone(), x.clone(), cos, sin)  # known from here on
    for q, k in ((x, x), (x[:1].expand(2, 4, 8, 16), x.clone()), (x.clone(), x.clone().requires_grad_())):
        kept, want = q.clone(), own(q, k, cos, sin)
        assert all(map(torch.equal, ours(q, k, cos, sin), want))
        assert torch.equal(q, kept), "the input was changed"
    shifted = torch.empty(x.numel() + 1)[1:].view(x.shape).copy_(x)
    assert all(map(torch.equal, ours(shifted, x.clone(), cos, sin), (own_q, own_k)))
    with torch.device("meta"):
        assert all(map(torch.equal, ours(x.clone(), x.clone(), cos, sin), (own_q, own_k)))
    cut = x.clone()
    cut.untyped_storage().resize_(cut.untyped_storage().nbytes() - 4)
    with pytest.raises(clrope.ShapeError, match="storage"):
        ours(cut, x.clone(), cos, sin)
    mapped = torch.vmap(lambda q: ours(q[None], x, cos, sin)[0][0])(x)
    assert torch.equal(mapped, own_q)
    compiled = torch.compile(ours, backend="eager", fullgraph=True)
    assert all(map(torch.equal, compiled(x, x, cos, sin), (own_q, own_k)))


def test_the_table_in_the_docs(rng):
    """Some of its functions; `python bench/tools/rotary_table.py --check` looks at all."""
    text = rotary_table.PAGE.read_text(encoding="utf-8")
    count = re.search(r"transformers (\S+) has (\d+) rotary functions; (\d+) are", text)
    version, all_functions, named = count.groups()
    assert int(named) >= 224
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if re.match(r"\| .*`", line)]
    conventions = {(m, row[1]): row[0] for row in rows if len(row) == 4 for m in row[3].split(", ")}
    unnamed = {(row[1], row[0]): row[2] for row in rows if len(row) == 3 and row[2].startswith("it ")}
    assert len(conventions) == int(named)
    assert len(conventions) + len(unnamed) == int(all_functions)
    if version != transformers.__version__:
        pytest.skip(f"the table is that of transformers {version}")
    names = sorted({name for name, _ in (*conventions, *unnamed)})
    for name in rng.choice(names, 6, replace=False):
        for one in rotary_table.functions_of(f"{name}.modeling_{name}"):
            key = name, f"`{one.function}`"
            assert (conventions.get(key), unnamed.get(key)) == (one.convention, one.reason), one


def changed(name: str) -> Any:
    """Llama's function with one mistake."""

    def half(x: Any) -> Any:
        n = x.shape[-1] // 2
        first, second = x[..., :n], x[..., n:]
        if name == "half":
            return torch.cat((second, -first), -1)
        return torch.cat((-second, first * (1 + 2**-20) if name == "factor" else first), -1)

    def apply(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
        if name == "offset":
            cos, sin = cos.roll(1, -2), sin.roll(1, -2)
        if name == "columns":
            cos = cos.roll(1, -1)
        if name == "in place":
            q.mul_(2)
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        sin = -sin if name == "sign" else sin
        rotated = q * cos + half(q) * sin, (k if name == "key" else k * cos + half(k) * sin)
        return {"order": rotated[::-1], "list": list(rotated)}.get(name, rotated)

    return apply


def test_changed_functions_have_no_name():
    assert str(probe(changed("nothing"))) == "halves, cos per element"
    for name in ("sign", "half", "factor", "offset", "columns", "in place", "key", "order", "list"):
        with pytest.raises(UnnamedError):
            print(name, probe(changed(name)))
    for name in ("dinov3_vit", "nanochat", "clvp", "deepseek_v2", "musicflamingo"):
        with pytest.raises(UnnamedError):
            print(name, probe(next(iter(candidates(modeling(name)).values()))))


def test_few_tokens_go_to_the_models_own_function(device, gen, rotations):
    model = model_of("llama")
    ids = torch.randint(1, 64, (1, 9), generator=gen)
    with torch.no_grad():
        want = model.generate(ids, max_new_tokens=5, do_sample=False)
        with patch(model, min_tokens=9, device=device.index) as patched:
            assert torch.equal(model.generate(ids, max_new_tokens=5, do_sample=False), want)
            assert rotations == [(1, 4, 9, 16)] * 2
            assert patched.report[0].min_tokens == 9
        rotations.clear()
        with patch(model, device=device.index) as patched:
            least = patched.report[0].min_tokens
            assert rotations, "the automatic value was not measured"
            rotations.clear()
            with patch(model, device=device.index) as again:
                assert not rotations, "it was measured twice"
                assert again.report[0].min_tokens == least


def test_the_automatic_value_is_measured_as_models_call(device, monkeypatch):
    """By position: arguments by name take a slower way."""
    own, by_name = modeling("llama").apply_rotary_pos_emb, []

    def original(*args, **named):
        by_name.append([*named])
        return own(*args, **named)

    monkeypatch.setattr(adapter, "_WEIGHTS", 1)
    monkeypatch.setattr(adapter, "_patched_here", adapter._Patched())
    adapter._crossover(original, probe(own), device.index)
    assert by_name
    assert not any(by_name)


@pytest.mark.parametrize("first", [0, 1])
def test_two_patches_of_one_module(gen, rotations, first):
    module, models = modeling("llama"), [model_of("llama"), model_of("llama")]
    own = module.apply_rotary_pos_emb
    ids = torch.randint(1, 64, (1, 6), generator=gen)
    patches = [patch(model, "exact", min_tokens=least) for model, least in zip(models, (0, 10), strict=True)]
    models[0](ids)
    assert not rotations, "the newest patch decides"
    patches[first].unpatch()
    patches[first].unpatch()
    models[0](ids)
    assert bool(rotations) == (first == 1)
    assert module.apply_rotary_pos_emb is not own
    assert ["forward" in vars(model.model.rotary_emb) for model in models] == [first == 1, first == 0]
    patches[1 - first].unpatch()
    assert module.apply_rotary_pos_emb is own
    assert not any("forward" in vars(model.model.rotary_emb) for model in models)
    assert not adapter._patched_here.sites


def _fail_inside(model):
    own = modeling("llama").apply_rotary_pos_emb
    with patch(model, "exact", min_tokens=0):
        assert modeling("llama").apply_rotary_pos_emb is not own
        raise ZeroDivisionError


def test_everything_comes_back():
    module, model = modeling("llama"), model_of("llama")
    own = module.apply_rotary_pos_emb
    with pytest.raises(ZeroDivisionError):
        _fail_inside(model)
    assert module.apply_rotary_pos_emb is own
    patched = patch(model, min_tokens=0)
    other = module.apply_rotary_pos_emb = lambda *args: own(*args)
    with pytest.warns(RuntimeWarning, match="apply_rotary_pos_emb was replaced after"):
        patched.unpatch()
    assert module.apply_rotary_pos_emb is other
    module.apply_rotary_pos_emb = own
    # A failure half way leaves nothing behind.
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(adapter, "exact_tables", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            patch(model, "exact", min_tokens=0)
    assert module.apply_rotary_pos_emb is own


def test_refusals():
    model = model_of("llama")
    for given, error, text in (
        ({"angles": "ggml"}, clrope.ConfigError, "angles: got 'ggml', allowed are 'model', 'exact'"),
        ({"min_tokens": -1}, clrope.ConfigError, "min_tokens: got -1"),
        ({"min_tokens": "few"}, clrope.ConfigError, "min_tokens: got 'few'"),
        ({"min_tokens": True}, clrope.ConfigError, "min_tokens: got True"),
        ({"in_place": 1}, clrope.ConfigError, "in_place: got 1, allowed are True, False"),
        ({"device": 3.5}, clrope.ConfigError, "device: got float"),
        ({"device": "no such device"}, clrope.DeviceError, "no such device"),
    ):
        with pytest.raises(error, match=text):
            patch(model, **given)
    with pytest.raises(clrope.ConfigError, match=r"model: got int"):
        patch(3)
    with pytest.raises(clrope.DeviceError, match=r"model: its parameters are on meta"):
        patch(model.to("meta"))
    assert not adapter._patched_here.sites
    x, table = torch.zeros(1, 2, 3, 4), torch.zeros(3, 4)
    for call, error, text in (
        (lambda: rotate((x.to("meta"),), table, table), clrope.DeviceError, r"xs\[0\]: got a tensor on meta"),
        (lambda: rotate((x,), table[:2], table[:2]), clrope.ShapeError, "cos: got shape"),
        (lambda: rotate((x,), table, 3), clrope.ShapeError, "sin: got 3"),
        (lambda: rotate((x,), table, table, mode="gptj"), clrope.ConfigError, "mode: got 'gptj'"),
        (lambda: rope((x,), torch.arange(3), {}), clrope.ConfigError, "config: got dict"),
    ):
        with pytest.raises(error, match=text):
            call()


def test_the_operator(device, gen, rng):
    """`opcheck`, gradients of first and second order in some of all forms, and clrope's own bits."""
    exact = {"dtype": torch.float64, "generator": gen, "requires_grad": True}
    modes = (("neox", None), ("normal", "neox"), ("normal", None))
    forms = list(itertools.product(modes, ((8, 0), (4, 2)), (1, 2), (2, 3)))
    for (mode, out_mode), (n, offset), share, rank in (forms[i] for i in rng.permutation(len(forms))[:4]):
        q, k = torch.randn(2, 2, 3, 8, **exact), torch.randn(2, 1, 3, 8, **exact)
        shape = [1 if share == 1 else 2, 3, n // share][3 - rank :]
        cos, sin = torch.randn(shape, **exact), torch.randn(shape, **exact)
        options = {"mode": mode, "out_mode": out_mode, "n_dims": n, "n_offs": offset, "device": device.index}
        if share == 1 and mode == "normal":
            options["full_tables"] = "interleaved"

        def call(q, k, cos, sin, options=options):
            return rotate((q, k), cos, sin, **options)

        if device.fp64:
            assert torch.autograd.gradcheck(call, (q, k, cos, sin), fast_mode=True)
            assert torch.autograd.gradgradcheck(call, (q, k, cos, sin), fast_mode=True)
    q, k = (torch.randn(2, 5, h, 8, generator=gen).transpose(1, 2) for h in (3, 1))
    cos, sin = torch.randn(5, 8, generator=gen), torch.randn(5, 8, generator=gen)
    options = {"layout": "bhsd", "n_dims": 8, "device": device.index}
    report = torch.library.opcheck(torch.ops.clrope.rotate, ([q.requires_grad_(), k], cos, sin, None), options)
    assert set(report.values()) == {"SUCCESS"}, report
    one_by_one = torch.vmap(lambda q, cos: rotate((q,), cos, sin, **options)[0], in_dims=(0, None))
    mapped = one_by_one(q.detach()[:, None], cos)
    assert torch.equal(mapped[:, 0], rotate((q,), cos, sin, **options)[0])
    config = clrope.RopeConfig("imrope", 8, sections=(2, 1, 1, 0))
    positions = torch.randint(0, 1 << 40, (3, 2, 5), generator=gen)
    got = rope((q, k), positions, config, device=device.index)
    want = clrope.rope((q.detach(), k), positions.numpy(), config, layout="bhsd", device=device.index)
    assert all(map(torch.equal, got, want))
    back = torch.autograd.grad(got[0], q, got[0].detach())[0]
    assert off(back, q.detach()) <= 1e-6
