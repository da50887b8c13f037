// Attention by the matrix unit (tiles.h), where keys and values are bfloat16. Queries and shares go in
// rounded, as by products of two (two_attention.h). Scores are made 16 positions by 16 queries at a
// time, none of which depends on others. Values are summed 32 positions after 32 positions of the
// text, from its beginning on, whatever a row does not see adding zeros.
#pragma once

#include "cache.h"
#include "tiles.h"
#include "two_attention.h"

namespace {

constexpr int kMixed = 32;    // positions whose values are summed together
constexpr int kMixSteps = 4;  // and how often, before sums leave their tiles

// Whether keys and values lie as tiles are read.
inline bool tiles_attend(const Model& model) {
  return kTiles && model.bfloat && model.head_dim % kTileColumns == 0 &&
         model.block_size % kBlock == 0;
}

// Heads whose queries, or sums, one tile takes, and tiles for all of them. What is missing of the
// last ones is whatever was there: each head's numbers are its own.
inline int tile_heads(int count) { return std::min(count, kTileRows); }
inline int head_tiles(int count) { return up(count, tile_heads(count)); }

// Numbers of a KV head's queries as they are read, [tiles, columns / 32, 16 pairs of columns, heads,
// 2], and of its sums [heads, size].
inline int tile_queries_size(int count, int size) {
  return head_tiles(count) * tile_heads(count) * size;
}
inline int tile_sums_size(int count, int size) { return tile_queries_size(count, size); }

#if TANDEM_TILES

// [16, 16] words of 4 bytes to [16, 16], rows to columns.
inline void turn(const void* from, void* to) {
  __m512i a[16], b[16];
  for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_si512(static_cast<const char*>(from) + 64 * i);
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)  // a[i + j], lane l: column 4 l + j of rows i to i + 3
    for (int half = 0; half < 2; ++half) {
      a[i + 2 * half] = _mm512_unpacklo_epi64(b[i + half], b[i + half + 2]);
      a[i + 2 * half + 1] = _mm512_unpackhi_epi64(b[i + half], b[i + half + 2]);
    }
  const auto put_column = [&](int column, __m512i words) {
    _mm512_storeu_si512(static_cast<char*>(to) + 64 * column, words);
  };
  for (int j = 0; j < 4; ++j) {
    const __m512i even = _mm512_shuffle_i32x4(a[j], a[4 + j], 0x88);  // lanes 0 and 2 of both
    const __m512i odd = _mm512_shuffle_i32x4(a[j], a[4 + j], 0xdd);
    const __m512i even_below = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0x88);
    const __m512i odd_below = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0xdd);
    put_column(j, _mm512_shuffle_i32x4(even, even_below, 0x88));
    put_column(4 + j, _mm512_shuffle_i32x4(odd, odd_below, 0x88));
    put_column(8 + j, _mm512_shuffle_i32x4(even, even_below, 0xdd));
    put_column(12 + j, _mm512_shuffle_i32x4(odd, odd_below, 0xdd));
  }
}

// For scores of so many heads. Tile 2: 16 positions by their queries. 3: keys. 7: queries.
inline void use_scoring_tiles(int heads) {
  const TileShape none{}, scores{kBlock, heads}, keys{kBlock, kTileColumns / 2};
  use_tiles({none, none, scores, keys, none, none, none, {kTileColumns / 2, heads}});
}

// For what so many heads mix. Tiles 0 to 3: sums of 16 columns each. 4: shares. 5 and 6: values.
inline void use_mixing_tiles(int heads) {
  const TileShape sums{heads, kTileOutputs}, shares{heads, kMixed / 2}, values{kMixed / 2, 16};
  use_tiles({sums, sums, sums, sums, shares, values, values, {}});
}

// [rows, 16] words of 4 bytes to [16, rows].
inline void turn_rows(const uint32_t* from, int rows, uint32_t* to) {
  if (rows == 16) return turn(from, to);
  for (int row = 0; row < rows; ++row)
    for (int i = 0; i < 16; ++i) to[i * rows + row] = from[row * 16 + i];
}

// A KV head's queries as `tile_queries_size` says.
inline void lay_out_queries(const Head* heads, int count, int size, uint16_t* to) {
  alignas(64) uint16_t rounded[kTileSize];
  const int rows = tile_heads(count);
  for (int first = 0; first < count; first += rows)
    for (int column = 0; column < size; column += kTileColumns, to += rows * kTileColumns) {
      for (int n = 0; n < std::min(rows, count - first); ++n)
        round_row(heads[first + n].query + column, kTileColumns, kTileColumns,
                  rounded + n * kTileColumns);
      turn_rows(reinterpret_cast<const uint32_t*>(rounded), rows, reinterpret_cast<uint32_t*>(to));
    }
}

// Products of a KV head's queries with the keys of 16 positions from `at` on, which lie `stride`
// numbers apart.
inline void score_tiles(const Head* heads, const uint16_t* queries, int count, const uint16_t* keys,
                        int stride, int size, int at) {
  alignas(64) float scores[kBlock * kTileRows];
  const int rows = tile_heads(count);
  const __m512i from_0 = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i places = _mm512_mullo_epi32(from_0, _mm512_set1_epi32(rows));
  written();
  for (int first = 0; first < count; first += rows) {
    _tile_zero(2);
    for (int column = 0; column < size; column += kTileColumns, queries += rows * kTileColumns) {
      _tile_loadd(3, keys + column, stride * sizeof(uint16_t));
      _tile_loadd(7, queries, rows * sizeof(float));
      _tile_dpbf16ps(2, 3, 7);
    }
    _tile_stored(2, scores, rows * sizeof(float));
    if (rows == kTileRows) turn(scores, scores);
    for (int n = 0; n < std::min(rows, count - first); ++n) {
      const __m512 own = rows == kTileRows ? _mm512_load_ps(scores + n * kBlock)
                                           : _mm512_i32gather_ps(places, scores + n, sizeof(float));
      _mm512_storeu_ps(heads[first + n].scores + at, own);
    }
  }
}

// 32 columns of the values of 32 positions, pairs of them side by side: [2, 16 pairs, 16 columns, 2].
// The first tile takes each four columns, the second one the four behind them.
inline void pair_values(const uint16_t* const* lines, int column, uint16_t* to) {
  for (int pair = 0; pair < kMixed / 2; ++pair, lines += 2, to += 2 * kTileOutputs) {
    const __m512i even = _mm512_loadu_si512(lines[0] + column);
    const __m512i odd = _mm512_loadu_si512(lines[1] + column);
    _mm512_storeu_si512(to, _mm512_unpacklo_epi16(even, odd));
    _mm512_storeu_si512(to + kTileSize, _mm512_unpackhi_epi16(even, odd));
  }
}

// Adds what heads mix of `steps` times 32 positions to N times 32 columns of their sums, a tile of `rows`
// heads after another: their shares lie `stride` numbers apart. lines: the positions' values. (Products
// that are added to one tile wait for each other: of four tiles more are under way than of two.)
template <int N>
void mix_tile_columns(const uint16_t* shares, int stride, int count, const uint16_t* const* lines,
                      int steps, int column, int size, int rows, float* sums) {
  alignas(64) uint16_t paired[kMixSteps][N][2 * kTileSize];
  const int line = size * int(sizeof(float));
  for (int step = 0; step < steps; ++step)
    for (int n = 0; n < N; ++n)
      pair_values(lines + step * kMixed, column + n * kTileColumns, paired[step][n]);
  written();
  for (int first = 0; first < count; first += rows) {
    float* own = sums + first * size + column;
    _tile_loadd(0, own, line);
    _tile_loadd(1, own + kTileOutputs, line);
    if constexpr (N > 1) {
      _tile_loadd(2, own + 2 * kTileOutputs, line);
      _tile_loadd(3, own + 3 * kTileOutputs, line);
    }
    for (int step = 0; step < steps; ++step) {
      _tile_loadd(4, shares + first * stride + step * kMixed, stride * int(sizeof(uint16_t)));
      _tile_loadd(5, paired[step][0], 64);
      _tile_dpbf16ps(0, 4, 5);
      _tile_loadd(6, paired[step][0] + kTileSize, 64);
      _tile_dpbf16ps(1, 4, 6);
      if constexpr (N > 1) {
        _tile_loadd(5, paired[step][1], 64);
        _tile_dpbf16ps(2, 4, 5);
        _tile_loadd(6, paired[step][1] + kTileSize, 64);
        _tile_dpbf16ps(3, 4, 6);
      }
    }
    _tile_stored(0, own, line);
    _tile_stored(1, own + kTileOutputs, line);
    if constexpr (N > 1) {
      _tile_stored(2, own + 2 * kTileOutputs, line);
      _tile_stored(3, own + 3 * kTileOutputs, line);
    }
  }
}

// The same for all columns.
void mix_tiles(const uint16_t* shares, int stride, int count, const uint16_t* const* lines, int steps,
               int size, int rows, float* sums) {
  int column = 0;
  for (; column + 2 * kTileColumns <= size; column += 2 * kTileColumns)
    mix_tile_columns<2>(shares, stride, count, lines, steps, column, size, rows, sums);
  if (column < size)
    mix_tile_columns<1>(shares, stride, count, lines, steps, column, size, rows, sums);
}

#else

inline void use_scoring_tiles(int) {}
inline void use_mixing_tiles(int) {}
inline void lay_out_queries(const Head*, int, int, uint16_t*) {}
inline void score_tiles(const Head*, const uint16_t*, int, const uint16_t*, int, int, int) {}
void mix_tiles(const uint16_t*, int, int, const uint16_t* const*, int, int, int, float*) {}

#endif

void score_by_tiles(const Attention<uint16_t>& task) {
  const int size = tile_queries_size(task.count, task.size);
  use_scoring_tiles(tile_heads(task.count));
  for (int head = 0; head < task.kv_heads; ++head)
    lay_out_queries(task.heads + head * task.count, task.count, task.size,
                    task.queries + head * size);
  alignas(64) uint16_t last[kBlock * kWidest];
  each_block(task, task.keys, task.values, [&](int at, int head) {
    const uint16_t* keys = task.keys + size_t(task.slots[at]) * task.width + head * task.size;
    const int some = task.end - at, stride = some < kBlock ? task.size : task.width;
    if (some < kBlock) {  // what lies behind the end would have to come from memory
      for (int p = 0; p < some; ++p)
        std::copy_n(keys + size_t(p) * task.width, task.size, last + p * task.size);
      keys = last;
    }
    score_tiles(task.heads + head * task.count, task.queries + head * size, task.count, keys, stride,
                task.size, at);
  });
}

// What rows mix from `begin` on. Tiles are in use, of `rows` rows, by which `shared` divides.
void mix_paths(const Attention<uint16_t>& task, int begin, int kv_head, int rows, float* sums) {
  const auto mix = [&](int first, const uint16_t* const* lines, int some, const int* places) {
    alignas(64) uint16_t shares[kTileRows * kMixed] = {};
    for (int from = 0; from < task.shared; from += rows) {
      const Head* heads = task.heads + kv_head * task.count + first + from;
      for (int head = 0; head < rows; ++head)
        for (int i = 0; i < some; ++i)
          shares[head * kMixed + i] = reinterpret_cast<const uint16_t*>(heads[head].scores)[places[i]];
      mix_tiles(shares, kMixed, rows, lines, 1, task.size, rows, sums + (first + from) * task.size);
    }
  };
  each_path<kMixed>(task, begin, kv_head, mix);
}

void mix_by_tiles(const Attention<uint16_t>& task) {
  constexpr int kChunk = kMixSteps * kMixed;  // positions
  const int size = tile_sums_size(task.count, task.size), rows = tile_heads(task.count);
  const bool by_paths = task.text < task.end;
  const int whole = by_paths ? task.text - task.text % kMixed : task.end;
  const uint16_t* none = nullptr;
  std::fill_n(task.sums, task.kv_heads * size, 0.0f);
  use_mixing_tiles(rows);
  each_block(task, task.values, none, [&](int at, int head) {
    const int begin = at - at % kChunk, end = std::min(begin + kChunk, whole);
    if (at >= end || at + kBlock < end) return;  // not the last block before `end`
    const uint16_t* lines[kChunk];
    for (int i = 0; i < up(end - begin, kMixed) * kMixed; ++i)
      lines[i] = begin + i >= whole ? kNoValues
                                    : task.values + size_t(task.slots[begin + i]) * task.width +
                                          head * task.size;
    const auto* scores = task.heads[head * task.count].scores;
    mix_tiles(reinterpret_cast<const uint16_t*>(scores) + begin, 2 * task.line, task.count, lines,
              up(end - begin, kMixed), task.size, rows, task.sums + head * size);
  });
  int row_heads = tile_heads(task.shared);
  while (task.shared % row_heads) --row_heads;
  if (by_paths) use_mixing_tiles(row_heads);
  for (int head = 0; by_paths && head < task.kv_heads; ++head)
    mix_paths(task, whole, head, row_heads, task.sums + head * size);
  for (int index = 0; index < task.kv_heads * task.count; ++index)
    put_mixed(task.sums + index / task.count * size + index % task.count * task.size,
              task.heads[index], task.size);
}

}  // namespace
