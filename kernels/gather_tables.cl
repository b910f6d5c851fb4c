// Stage 1 from the caller's own cos and sin tables: picks the rows, widens them to real and puts them in the order in
// which the rotation reads them, [rows][width].
//
// cosine_table, sine_table: element, with the offset of their first element and the strides of batch row, row and
// column. index: long[rows] of row numbers, used with INDEXED; without it row r of batch r / rows_per_batch is read.
// Column k of the output is column k * step of the table for k < split, and (k - split) * step + distance behind it:
// (1, width) for half tables, (1, pairs) for full ones with duplicated halves, (2, 1) for full interleaved ones.
// Global size: (width, rows).
#include "types.clh"
#include "storage.clh"

__kernel void rope_gather_tables(__global const element *cosine_table, const long cosine_offset,
                                 const long cosine_batch, const long cosine_row, const long cosine_column,
                                 __global const element *sine_table, const long sine_offset, const long sine_batch,
                                 const long sine_row, const long sine_column, __global const long *index,
                                 const int indexed, const int rows_per_batch, const int width, const int split,
                                 const int step, const int distance, __global real *cosine, __global real *sine) {
  const int k = (int)get_global_id(0), r = (int)get_global_id(1);
  const long batch = indexed ? 0 : r / rows_per_batch;
  const long row = indexed ? index[r] : r % rows_per_batch;
  const long column = k < split ? (long)k * step : (long)(k - split) * step + distance;
  const size_t at = (size_t)r * (size_t)width + (size_t)k;
  cosine[at] = widen(cosine_table[cosine_offset + batch * cosine_batch + row * cosine_row + column * cosine_column]);
  sine[at] = widen(sine_table[sine_offset + batch * sine_batch + row * sine_row + column * sine_column]);
}
