"""Kernels of the lab's tests: right ones by tables and by positions, and what is changed in them to break them."""

from __future__ import annotations

TABLES = """\
// Rotates by finished tables; NORMAL or NEOX.
__kernel void rope(__global const float *x, const long x_offset, const long x_batch, const long x_token,
                   const long x_head, __global float *y, const long y_offset, const long y_batch, const long y_token,
                   const long y_head, __global const float *cos_table, __global const float *sin_table,
                   const int tokens, const int heads, const int head_dim, const int n_dims, const float direction) {
  const int slot = get_global_id(0), h = get_global_id(1), r = get_global_id(2), t = r % tokens, b = r / tokens;
  const int pairs = n_dims / 2;
  x += x_offset + b * x_batch + t * x_token + h * x_head;
  y += y_offset + b * y_batch + t * y_token + h * y_head;
  if (slot >= pairs) {
    y[slot + pairs] = x[slot + pairs];
    return;
  }
#ifdef NEOX
  const int i = slot, j = slot + pairs;
#else
  const int i = 2 * slot, j = 2 * slot + 1;
#endif
  const float c = cos_table[r * pairs + slot], s = sin_table[r * pairs + slot] * direction;
  const float p = x[i], q = x[j];
  y[i] = p * c - q * s;
  y[j] = p * s + q * c;
}
"""

POSITIONS = """\
// Computes angles from positions, as ggml does.
float ramp(float low, float high, int i) { return 1.0f - clamp((i - low) / max(0.001f, high - low), 0.0f, 1.0f); }
float bound(int n_dims, int n_ctx, float rotations, float base) {
  return n_dims * log(n_ctx / (rotations * 2 * M_PI_F)) / (2 * log(base));
}
__kernel void rope(__global const float *x, __global float *y, __global const int *positions,
                   __global const float *freq_factors, const int heads, const int head_dim, const int n_dims,
                   const float freq_base, const float freq_scale, const float ext_factor, const float attn_factor,
                   const float beta_fast, const float beta_slow, const int n_ctx_orig, const float direction) {
  const int slot = get_global_id(0), h = get_global_id(1), r = get_global_id(2), pairs = n_dims / 2;
  x += ((long)r * heads + h) * head_dim;
  y += ((long)r * heads + h) * head_dim;
  if (slot >= pairs) {
    y[slot + pairs] = x[slot + pairs];
    return;
  }
  const long position = positions[r];
  float magnitude = attn_factor;
  float theta = (float)position * pow(freq_base, -2.0f * slot / n_dims) / freq_factors[slot];
  const float extrapolated = theta;
  theta *= freq_scale;
  if (ext_factor != 0.0f) {
    const float low = max(0.0f, floor(bound(n_dims, n_ctx_orig, beta_fast, freq_base)));
    const float high = min(n_dims - 1.0f, ceil(bound(n_dims, n_ctx_orig, beta_slow, freq_base)));
    const float mix = ramp(low, high, slot) * ext_factor;
    theta = theta * (1.0f - mix) + extrapolated * mix;
    magnitude *= 1.0f + 0.1f * log(1.0f / freq_scale);
  }
#ifdef NEOX
  const int i = slot, j = slot + pairs;
#else
  const int i = 2 * slot, j = 2 * slot + 1;
#endif
  const float c = cos(theta) * magnitude, s = sin(theta) * magnitude * direction;
  const float p = x[i], q = x[j];
  y[i] = p * c - q * s;
  y[j] = p * s + q * c;
}
"""

#: A kernel with the arguments that llama.cpp's host code gives to those of its rope.cl; the text is this project's.
_GGML = """\
__kernel void kernel_rope_KIND_f32(
    __global void *src0, ulong offset0, __global int *src1, ulong offset1, __global float *src2, ulong offset2,
    __global float *dst, ulong offsetd, int ne00, int ne01, int ne02, int ne03, ulong nb00, ulong nb01, ulong nb02,
    ulong nb03, int ne0, int ne1, int ne2, int ne3, ulong nb0, ulong nb1, ulong nb2, ulong nb3, int n_past, int n_dims,
    int n_ctx_orig, float freq_base, float freq_scale, float ext_factor, float attn_factor, float beta_fast,
    float beta_slow, int n_offs) {
  const ulong h = get_group_id(0), t = get_group_id(1), b = get_group_id(2);
  const bool has_factors = (__global char *)src2 + offset2 != (__global char *)src0 + offset0;
  __global const float *factors = (__global const float *)((__global char *)src2 + offset2);
  __global const char *from = (__global const char *)src0 + offset0 + b * nb03 + t * nb02 + h * nb01;
  __global char *to = (__global char *)dst + offsetd + b * nb3 + t * nb2 + h * nb1;
  const int position = ((__global const int *)((__global char *)src1 + offset1))[t + n_past];
  for (int k = get_local_id(0); k < ne00; k += get_local_size(0))
    if (k < n_offs || k >= n_offs + n_dims) *(__global float *)(to + k * nb0) = *(__global float *)(from + k * nb00);
  for (int k = get_local_id(0); k < n_dims / 2; k += get_local_size(0)) {
    const int i = n_offs + FIRST, j = n_offs + SECOND;
    const float turn = position * pow(freq_base, -2.0f * k / n_dims) * freq_scale / (has_factors ? factors[k] : 1.0f);
    const float c = cos(turn) * attn_factor, s = sin(turn) * attn_factor;
    const float p = *(__global const float *)(from + i * nb00), q = *(__global const float *)(from + j * nb00);
    *(__global float *)(to + i * nb0) = p * c - q * s;
    *(__global float *)(to + j * nb0) = p * s + q * c;
  }
}
"""
GGML = "".join(
    _GGML.replace("KIND", kind).replace("FIRST", first).replace("SECOND", second)
    for kind, first, second in (("norm", "2 * k", "2 * k + 1"), ("neox", "k", "k + n_dims / 2"))
)

PLAIN = "ROPE(type=f32,ne_a=[64,6,9,3],n_dims=64,mode=2,n_ctx=3000,fs=1,ef=0,af=1,ff=0,v=0,pos=batch)"
PARTIAL = PLAIN.replace("n_dims=64", "n_dims=40")
NORMAL = PLAIN.replace("mode=2", "mode=0")
MAGNITUDE = PLAIN.replace("af=1,", "af=1.4,")
YARN = PLAIN.replace("fs=1,ef=0", "fs=0.25,ef=1").replace("pos=", "n_ctx_orig=512,bf=32,pos=")
FACTORS = PLAIN.replace("ff=0", "ff=1")
BASE = PLAIN.replace("pos=", "base=700000,pos=")
STRIDED = PLAIN.replace("v=0", "v=1")
OFFSET = PLAIN.replace("pos=batch", "pos=offset")
FAR = PLAIN.replace("n_ctx=3000", "n_ctx=200000")
SCALED = PLAIN.replace("fs=1,", "fs=0.5,")

SIGNED = PLAIN.replace("pos=batch", "pos=signed")
NEAR = PLAIN.replace("n_ctx=3000", "n_ctx=300")
WRITES = "  y[i] = p * c - q * s;\n  y[j] = p * s + q * c;\n"
BFLOAT16 = (
    "float bfloat16(float v) { const uint u = as_uint(v); return as_float((u + 0x7FFFu + (u >> 16 & 1)) & 0xFFFF0000u);"
    " }\n__kernel"
)


def copied_if(condition: str, factor: str = "1") -> str:
    return f"  if ({condition}) {{ y[i] = p * {factor}; y[j] = q * {factor}; return; }}\n{WRITES}"


#: Name -> (source, changes to it, the case, what the diagnosis has to say).
BROKEN: dict[str, tuple[str, list[tuple[str, str]], str, str]] = {
    "pairs swapped": (TABLES, [("#ifdef NEOX", "#ifndef NEOX")], PLAIN, "pairs swapped: it rotates NORMAL pairs"),
    "pairs swapped, normal": (TABLES, [("#ifdef NEOX", "#ifndef NEOX")], NORMAL, "it rotates NEOX pairs"),
    "sine's sign": (TABLES, [("slot] * direction", "slot] * -direction")], PLAIN, "the sign of sin is wrong"),
    "halves at head_dim / 2": (
        TABLES, [("j = slot + pairs", "j = slot + head_dim / 2")], PARTIAL, "halves at head_dim / 2"),
    "tail not copied": (TABLES, [("y[slot + pairs] = x[slot + pairs];", "")], PARTIAL, "the tail was not copied"),
    "tail zeroed": (TABLES, [("= x[slot + pairs];", "= 0;")], PARTIAL, "the tail is zero"),
    "magnitude missing": (POSITIONS, [("= attn_factor", "= 1.0f")], MAGNITUDE, "magnitude missing"),
    "magnitude twice": (POSITIONS, [("= attn_factor", "= attn_factor * attn_factor")], MAGNITUDE, "applied twice"),
    "ramp ignored": (POSITIONS, [("mix = ramp(", "mix = 0 * ramp(")], YARN, "YaRN's ramp ignored"),
    "ramp inverted": (POSITIONS, [("mix = ramp(low, high, slot)", "mix = (1 - ramp(low, high, slot))")], YARN,
                      "YaRN's ramp inverted"),
    "freq_factors ignored": (POSITIONS, [("/ freq_factors[slot]", "")], FACTORS, "freq_factors ignored"),
    "freq_factors inverted": (
        POSITIONS, [("/ freq_factors[slot]", "* freq_factors[slot]")], FACTORS, "freq_factors inverted"),
    "freq_base ignored": (POSITIONS, [("pow(freq_base", "pow(10000.0f")], BASE, "freq_base ignored"),
    "freq_scale ignored": (POSITIONS, [("theta *= freq_scale;", "")], SCALED, "freq_scale ignored"),
    "exponent by head_dim": (POSITIONS, [("slot / n_dims)", "slot / head_dim)")], PARTIAL, "frequencies by head_dim"),
    "row of the token before": (
        POSITIONS, [("positions[r]", "positions[r % 9 ? r - 1 : r + 8]")], PLAIN, "the position of the token before"),
    "position of another batch": (POSITIONS, [("positions[r]", "positions[r % 9]")], PLAIN, "positions of batch 0"),
    "position int16": (POSITIONS, [("= positions[r]", "= (short)positions[r]")], FAR, "positions truncated to int16"),
    "position float16": (
        POSITIONS, [("position = positions[r]", "position = convert_long(round16(positions[r]))"),
                    ("__kernel", "float round16(float v) { ushort h; vstore_half_rte(v, 0, (__private half *)&h);"
                                 " return vload_half(0, (__private half *)&h); }\n__kernel")],
        PLAIN, "positions rounded to float16"),
    "offset ignored": (POSITIONS, [("positions[r]", "r % 9")], OFFSET, "an offset is left out"),
    "stride ignored": (TABLES, [("b * x_batch + t * x_token + h * x_head", "((long)r * heads + h) * head_dim")],
                       STRIDED, "strides of x ignored"),
    "heads beyond the first": (TABLES, [("const float p =", "const float z = h ? 0.5f : 1.0f, p = z *")], PLAIN,
                               "heads beyond the first are wrong"),
    "nothing written": (TABLES, [("const int slot", "if (head_dim) return;\n  const int slot")], PLAIN,
                        "nothing was written"),
    "partly written": (TABLES, [("const int slot", "if (get_global_id(2) >= 24) return;\n  const int slot")], PLAIN,
                       "partly written"),
    "float16 arithmetic": (
        TABLES, [("__kernel", "float r16(float v) { ushort h; vstore_half_rte(v, 0, (__private half *)&h);"
                              " return vload_half(0, (__private half *)&h); }\n__kernel"),
                 ("const float c = cos_table[r * pairs + slot], s = sin_table[r * pairs + slot] * direction;",
                  "const float c = r16(cos_table[r * pairs + slot]),"
                  " s = r16(sin_table[r * pairs + slot] * direction);"),
                 ("p = x[i], q = x[j]", "p = r16(x[i]), q = r16(x[j])"),
                 ("y[i] = p * c - q * s", "y[i] = r16(r16(p * c) - r16(q * s))"),
                 ("y[j] = p * s + q * c", "y[j] = r16(r16(p * s) + r16(q * c))")],
        PLAIN, "float16 arithmetic"),
    "angle drift": (POSITIONS, [], PLAIN.replace("n_ctx=3000", "n_ctx=90000000"), "angle drift"),
    "NaN made": (TABLES, [("const float p = x[i]", "const float p = slot == 3 ? sqrt(-1.0f - fabs(x[i])) : x[i]")],
                 PLAIN, "NaN was made"),
    "out of bounds write": (TABLES, [("  y[i] =", "  if (r == 0 && h == 0 && slot == 0) y[-3] = 1;\n  y[i] =")], PLAIN,
                            "(out of bounds)"),
    "input written": (TABLES, [("__global const float *x", "__global float *x"),
                               ("  y[i] =", "  x[i] = 7;\n  y[i] =")], PLAIN, "elements of the input changed"),
    "overwritten in place": (
        TABLES, [("y[j] = p * s + q * c", "y[j] = y[i] * s + q * c")],
        PLAIN.replace("v=0", "v=0,inplace=1"), "after it was overwritten"),
    "poison only": (
        TABLES, [("  y[i] =", "  if (as_uint(y[i]) != 0xFFFFFFFFu && as_uint(y[j]) != 0xFFFFFFFFu) return;\n  y[i] =")],
        PLAIN, "results depend on the call or on poison"),
    "last pair": (TABLES, [(WRITES, copied_if("slot == pairs - 1"))], PLAIN,
                  "the last pair of each head is not rotated"),
    "last pair of a part": (POSITIONS, [(WRITES, copied_if("slot == pairs - 1"))], PARTIAL,
                            "the last pair of each head is not rotated"),
    "first pair": (POSITIONS, [(WRITES, copied_if("slot == 0"))], PLAIN, "the first pair of each head is not rotated"),
    "slow pairs": (POSITIONS, [(WRITES, copied_if("slot >= 20"))], NORMAL, "pairs from 20 on of each head are not"),
    "last head": (TABLES, [(WRITES, copied_if("h == heads - 1"))], PLAIN, "the last head is not rotated"),
    "first head": (POSITIONS, [(WRITES, copied_if("h == 0"))], FAR, "the first head is not rotated"),
    "heads from 4 on zero": (TABLES, [(WRITES, copied_if("h >= 4", "0"))], PLAIN, "heads from 4 on are zero"),
    "every second head": (TABLES, [(WRITES, copied_if("h & 1"))], PLAIN, "every second head from 1 on is not rotated"),
    "tokens from 5 on": (POSITIONS, [(WRITES, copied_if("r % 9 >= 5"))], PLAIN, "tokens from 5 on are not rotated"),
    "batches from 1 on": (TABLES, [(WRITES, copied_if("b >= 1"))], PLAIN, "batches from 1 on are not rotated"),
    "batches not written": (TABLES, [("const int slot", "if (get_global_id(2) >= 9) return;\n  const int slot")], PLAIN,
                            "before the call (batches from 1 on)"),
    "last pair inverse": (TABLES, [("q = x[j];", "q = x[j], d = slot == pairs - 1 ? -1 : 1;"),
                                   ("- q * s", "- q * s * d"), ("p * s", "p * s * d")], PLAIN,
                          "the last pair of each head: the sign of sin is wrong"),
    "rotated twice": (TABLES, [(WRITES, "  const float u = p * c - q * s, v = p * s + q * c;\n"
                                        "  y[i] = u * c - v * s;\n  y[j] = u * s + v * c;\n")], PLAIN, "rotated twice"),
    "rotated twice, last head": (
        POSITIONS, [("#ifdef NEOX", "  if (h == 5) theta *= 2;\n#ifdef NEOX")], PLAIN,
        "the last head is rotated twice"),
    "one sign": (TABLES, [("p * s + q * c", "q * c - p * s")], PLAIN,
                 "wrong sign in one line: the second element of each pair (a, b) is b * cos - a * sin"),
    "other sign": (POSITIONS, [("p * c - q * s", "p * c + q * s")], PARTIAL,
                   "wrong sign in one line: the first element of each pair (a, b) is a * cos + b * sin"),
    "frequencies bfloat16": (
        POSITIONS, [("pow(freq_base, -2.0f * slot / n_dims)", "bfloat16(pow(freq_base, -2.0f * slot / n_dims))"),
                    ("__kernel", BFLOAT16)], PLAIN, "frequencies rounded to bfloat16"),
    "positions bfloat16": (POSITIONS, [("(float)position", "bfloat16((float)position)"), ("__kernel", BFLOAT16)], PLAIN,
                           "positions rounded to bfloat16"),
    "angles bfloat16": (POSITIONS, [("cos(theta)", "cos(bfloat16(theta))"), ("sin(theta)", "sin(bfloat16(theta))"),
                                    ("__kernel", BFLOAT16)], PLAIN, "angles rounded to bfloat16"),
    "tables bfloat16": (
        TABLES, [("c = cos_table[r * pairs + slot], s = sin_table[r * pairs + slot]",
                  "c = bfloat16(cos_table[r * pairs + slot]), s = bfloat16(sin_table[r * pairs + slot])"),
                 ("__kernel", BFLOAT16)], PLAIN, "cos and sin rounded to bfloat16"),
    "unsigned positions": (POSITIONS, [("const long position", "const uint position")], SIGNED, "taken as unsigned"),
    "unsigned long positions": (
        POSITIONS, [("const long position", "const ulong position")], SIGNED,
        "tokens at negative positions are wrong, the others are right"),
    "batches that run on": (POSITIONS, [("= positions[r]", "= positions[0] + r")], OFFSET,
                            "positions run on across batches"),
    "magnitude of a head": (TABLES, [("y[j] = p * s + q * c", "y[j] = p * s + q * c;\n  if (h == 2) {"
                                     " y[i] *= 1.25f; y[j] *= 1.25f; }")], PLAIN,
                            "head 2: the rotated elements are 1.25 times"),
    "slightly other frequencies": (POSITIONS, [("(float)position *", "(float)position * 1.002f *")], NEAR,
                                   "the frequencies are wrong: pairs turn by 1.002 times"),
    "swapped and inverse": (TABLES, [("#ifdef NEOX", "#ifndef NEOX"), ("* direction", "* -direction")], PLAIN,
                            "no hypothesis explains the values"),
    "two heads unlike": (TABLES, [("q = x[j];", "q = x[j] * (h == 1 ? 1.5f : h == 2 ? 0.5f : 1);")], PLAIN,
                         "heads 1 to 2 are wrong, the rest is right"),
    "last pair's angle": (TABLES, [("y[i] = p * c - q * s", "y[i] = p * c - q * s + (slot == pairs - 1 ? 1e-4f * q : 0)"
                                    )], PLAIN, "the last pair of each head is wrong, the rest is right"),
    "noise in a head": (TABLES, [("q = x[j];", "q = x[j] * (h == 3 ? 1.0f + 1e-4f * (slot % 3 + 1) : 1);")], PLAIN,
                        "head 3 is wrong, the rest is right"),
}  # fmt: skip


def changed(source: str, edits: list[tuple[str, str]]) -> str:
    """Return a source with each of some texts, which occur, replaced at their first place."""
    for old, new in edits:
        assert old in source, old
        source = source.replace(old, new, 1)
    return source
