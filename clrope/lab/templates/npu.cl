// RoPE as a vector core of an NPU does it: copy a tile in, compute, copy it out, with two buffers for each.
//
//   clrope lab KERNEL.cl                       right on every OpenCL device?
//   clrope lab KERNEL.cl --npu ascend-910b     would it fit that machine, and how long would it take?
//
// A work-group stands for a core, its local memory for the scratchpad. Work-group g takes the tiles g, g + cores, ...
// A tile is one token's next heads, or several tokens with all of their heads: contiguous memory in either case.
// Elements are f32, f64, f16 or bf16; x and y are contiguous, [batch][tokens][heads][head_dim].

// What `--npu` says of its machine, or else what every OpenCL device has.
#ifndef NPU_CORES
#define NPU_CORES 8
#endif
#ifndef NPU_UB
#define NPU_UB 32768
#endif
#ifndef NPU_ALIGN
#define NPU_ALIGN 32
#endif
#define LANES 16

// The tiling is computed on the host, from the machine and the shape. A line may use the names of lines above it.
//
// lab: contract cos-sin-tables
// lab: table_bytes = pairs * (8 if dtype == 'f64' else 4)
// lab: half_ub = NPU_UB // 2 - 4 * NPU_ALIGN
// lab: heads_that_fit = (half_ub - 2 * table_bytes) // (2 * head_dim * itemsize)
// lab: heads_for_all_cores = ceil_div(heads, max(1, NPU_CORES // (batch * tokens)))
// lab: heads_per_tile = max(1, min(heads, heads_that_fit, heads_for_all_cores))
// lab: tokens_that_fit = half_ub // (2 * heads * head_dim * itemsize + 2 * table_bytes)
// lab: tokens_per_tile = max(1, min(tokens_that_fit, ceil_div(batch * tokens, NPU_CORES)))
// lab: x_part = ceil_div(tokens_per_tile * heads_per_tile * head_dim * itemsize, NPU_ALIGN) * NPU_ALIGN
// lab: table_part = ceil_div(tokens_per_tile * table_bytes, NPU_ALIGN) * NPU_ALIGN
// lab: local scratchpad = 4 * (x_part + table_part)
// lab: global_size NPU_CORES * LANES
// lab: local_size LANES

#if defined(STORAGE_F16) || defined(STORAGE_BF16)
#define COPIED ushort  // bits: devices without half arithmetic run this, too
#else
#define COPIED T
#endif

#if defined(STORAGE_F16)
#define LOAD(from, i) vload_half(i, (__local const half *)(from))
#define STORE(value, to, i) vstore_half_rte(value, i, (__local half *)(to))
#elif defined(STORAGE_BF16)
ushort bf16_of(float value) {
  const uint bits = as_uint(value);
  return isnan(value) ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
#define LOAD(from, i) as_float((uint)(from)[i] << 16)
#define STORE(value, to, i) ((to)[i] = bf16_of(value))
#else
#define LOAD(from, i) ((from)[i])
#define STORE(value, to, i) ((to)[i] = (value))
#endif

__kernel void KERNEL(__global const T *x, __global T *y, __global const REAL *cos_table,
                     __global const REAL *sin_table, const int batch, const int tokens, const int heads,
                       const int head_dim, const int n_dims, const int direction, const int heads_per_tile,
                       const int tokens_per_tile, const int x_part, const int table_part,
                       __local uchar *scratchpad) {
  const int pairs = n_dims / 2, rows = batch * tokens;
  const int head_tiles = (heads + heads_per_tile - 1) / heads_per_tile;
  const int tiles = (rows + tokens_per_tile - 1) / tokens_per_tile * head_tiles;
  const int cores = get_num_groups(0), core = get_group_id(0);

  // The scratchpad: [side 0 or 1][x, y, cos, sin].
  const int side_bytes = 2 * (x_part + table_part);
  event_t copied_in = 0, last_out = 0, out_before = 0;
  int done = 0;

  // Step -1 copies the first tile in; each later one computes a tile while the next is copied in.
  for (int tile = core - cores; tile < tiles; tile += cores) {
    const int next = tile + cores;
    if (tile >= 0) wait_group_events(1, &copied_in);
    if (next < tiles) {
      const int row = next / head_tiles * tokens_per_tile, head = next % head_tiles * heads_per_tile;
      const int n_rows = min(tokens_per_tile, rows - row), n_heads = min(heads_per_tile, heads - head);
      __local uchar *side = scratchpad + (tile < 0 ? 0 : (done + 1) % 2) * side_bytes;
      const size_t from = ((size_t)row * heads + head) * head_dim, table = (size_t)row * pairs;
      copied_in = async_work_group_copy((__local COPIED *)side, (__global const COPIED *)x + from,
                                        (size_t)n_rows * n_heads * head_dim, 0);
      copied_in = async_work_group_copy((__local REAL *)(side + 2 * x_part), cos_table + table,
                                        (size_t)n_rows * pairs, copied_in);
      copied_in = async_work_group_copy((__local REAL *)(side + 2 * x_part + table_part), sin_table + table,
                                        (size_t)n_rows * pairs, copied_in);
    }
    if (tile < 0) continue;

    const int row = tile / head_tiles * tokens_per_tile, head = tile % head_tiles * heads_per_tile;
    const int n_rows = min(tokens_per_tile, rows - row), n_heads = min(heads_per_tile, heads - head);
    __local uchar *side = scratchpad + done % 2 * side_bytes;
    __local COPIED *in = (__local COPIED *)side, *out = (__local COPIED *)(side + x_part);
    __local const REAL *c = (__local const REAL *)(side + 2 * x_part);
    __local const REAL *s = (__local const REAL *)(side + 2 * x_part + table_part);
    if (done >= 2) wait_group_events(1, &out_before);  // `out` may still be on its way to y

    const int slots = head_dim - pairs;
    for (int k = get_local_id(0); k < n_rows * n_heads * slots; k += get_local_size(0)) {
      const int slot = k % slots, which = k / slots, at = which * head_dim;
      if (slot >= pairs) {
        out[at + slot + pairs] = in[at + slot + pairs];
        continue;
      }
#ifdef NEOX
      const int i = at + slot, j = i + pairs;
#else
      const int i = at + 2 * slot, j = i + 1;
#endif
      const int angle = which / n_heads * pairs + slot;
      const REAL a = LOAD(in, i), b = LOAD(in, j), sine = s[angle] * direction;
      STORE(a * c[angle] - b * sine, out, i);
      STORE(a * sine + b * c[angle], out, j);
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    out_before = last_out;
    last_out = async_work_group_copy((__global COPIED *)y + ((size_t)row * heads + head) * head_dim,
                                     (__local const COPIED *)out, (size_t)n_rows * n_heads * head_dim, 0);
    done++;
  }
  if (done >= 2) wait_group_events(1, &out_before);
  if (done >= 1) wait_group_events(1, &last_out);
}
