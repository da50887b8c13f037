// Linear layers with bfloat16 weights by the processor's matrix unit (AMX), where there is one: some
// rows cost little more than one row, for reading the weights takes longer.
//
// The unit multiplies bfloat16 by bfloat16 and sums in float. So x goes in as two of them, itself
// rounded and what that left out: 16 of a float's 24 bits. (A model computed in bfloat16 throughout
// keeps 8.) A row's sums go 32 columns after 32 columns, whatever rows stand beside it.
#pragma once

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)
#define TANDEM_TILES 1
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "numbers.h"
#include "structures.h"
#include "team.h"

namespace {

constexpr int kTileRows = 16, kTileColumns = 32, kTileOutputs = 16;
constexpr int kTileSize = kTileColumns * kTileOutputs;  // numbers of a tile of weights
constexpr int kTilesAtOnce = 4;                         // of weights: they share the reading of x
constexpr int kGroupOutputs = kTilesAtOnce * kTileOutputs;
constexpr int kXParts = 2;

inline int up(int count, int by) { return (count + by - 1) / by; }

// Numbers of a matrix as it is read: [groups, columns / 32, 4 tiles, 16 pairs of columns, 16
// outputs, 2]. What is missing of the last outputs and columns is zero.
inline int64_t tiled_size(int rows, int columns) {
  return int64_t(up(rows, kGroupOutputs)) * kTilesAtOnce * up(columns, kTileColumns) * kTileSize;
}

void pack_tiles(const uint16_t* weight, int rows, int columns, uint16_t* to) {
  const int steps = up(columns, kTileColumns);
#pragma omp parallel for schedule(static)
  for (int row = 0; row < up(rows, kGroupOutputs) * kGroupOutputs; ++row) {
    const int64_t group = row / kGroupOutputs, tile = row % kGroupOutputs / kTileOutputs;
    uint16_t* out = to + (group * steps * kTilesAtOnce + tile) * kTileSize + row % kTileOutputs * 2;
    for (int k = 0; k < steps * kTileColumns; ++k) {
      const int64_t step = k / kTileColumns, pair = k % kTileColumns / 2;
      out[step * kTilesAtOnce * kTileSize + pair * 2 * kTileOutputs + k % 2] =
          row < rows && k < columns ? weight[size_t(row) * columns + k] : 0;
    }
  }
}

// Numbers that x takes in parts: [blocks of rows, columns / 32, 2 parts, rows, 32].
inline size_t copy_size(int rows, int columns) {
  const int whole = rows > kTileRows ? up(rows, kTileRows) * kTileRows : rows;
  return size_t(whole) * up(columns, kTileColumns) * kTileColumns * kXParts;
}
// Whether each thread makes all parts for itself. For a few that takes less than waiting for those
// that another core has just written, and for this one's lines to come back from there (measured
// with two threads); what all of them make grows with the threads.
inline bool splits_alone(int rows, int threads) { return rows * threads <= 2 * kTileRows; }
// Numbers of all copies, for so many rows and threads or fewer.
inline size_t parts_size(int rows, int columns, int threads) {
  return copy_size(std::max(rows, std::min(rows * threads, 2 * kTileRows)), columns);
}

#if TANDEM_TILES

bool ask_for_tiles() {  // the system has to allow it, once for all threads
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
const bool kTiles = ask_for_tiles();

// Of 32 columns of a row `count`: rounded to bfloat16, and behind them, `stride` numbers further on,
// what that left out.
inline void split_columns(const float* x, int count, uint16_t* to, int stride) {
  __m512 rest[2];
  __m512i parts[2];
  for (int i = 0; i < 2; ++i) {
    const int some = std::max(0, std::min(16, count - 16 * i));
    rest[i] = _mm512_maskz_loadu_ps(__mmask16((1u << some) - 1), x + 16 * i);
  }
  for (int part = 0; part < kXParts; ++part, to += stride) {
    parts[part] = (__m512i)_mm512_cvtne2ps_pbh(rest[1], rest[0]);
    _mm512_storeu_si512(to, parts[part]);
    rest[0] -= _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm512_castsi512_si256(parts[part])), 16));
    rest[1] -= _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(parts[part], 1)), 16));
  }
}

// What was written is in memory: compilers need not know that tiles are loaded from there.
inline void written() { asm volatile("" ::: "memory"); }

struct alignas(64) TileShapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
};

struct TileShape {
  int rows, words;  // of 4 bytes, in a row
};

void use_tiles(const TileShape (&shapes)[8]) {
  TileShapes all;
  for (int tile = 0; tile < 8; ++tile) {
    all.rows[tile] = uint8_t(shapes[tile].rows);
    all.bytes[tile] = uint16_t(4 * shapes[tile].words);
  }
  written();
  _tile_loadconfig(&all);
}
void stop_tiles() { _tile_release(); }

// What is asked for while tiles are multiplied: so many lines of memory a tile of weights.
struct TilesAhead {
  const char* from;
  int lines;
};

// The sums [rows, 64] of a group's outputs for a block of rows. Tiles 0 to 3: of 16 outputs each. 4
// and 5: the parts of x. 6 and 7: weights.
inline void sum_tiles(const uint16_t* weights, const uint16_t* x, int rows, int steps,
                      TilesAhead& ahead, float* sums) {
  const int part = rows * kTileColumns;
  written();
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
#define TANDEM_ADD(tile, own)                          \
  _tile_loadd(own, weights + (tile) * kTileSize, 64); \
  _tile_dpbf16ps(tile, 4, own);                        \
  _tile_dpbf16ps(tile, 5, own);                        \
  for (int line = 0; line < ahead.lines; ++line, ahead.from += 64) __builtin_prefetch(ahead.from, 0, 2)
  for (int step = 0; step < steps; ++step) {
    _tile_loadd(4, x, 64);
    _tile_loadd(5, x + part, 64);
    TANDEM_ADD(0, 6);
    TANDEM_ADD(1, 7);
    TANDEM_ADD(2, 6);
    TANDEM_ADD(3, 7);
    x += kXParts * part;
    weights += kTilesAtOnce * kTileSize;
  }
#undef TANDEM_ADD
  constexpr int kStride = kGroupOutputs * sizeof(float);
  _tile_stored(0, sums, kStride);
  _tile_stored(1, sums + kTileOutputs, kStride);
  _tile_stored(2, sums + 2 * kTileOutputs, kStride);
  _tile_stored(3, sums + 3 * kTileOutputs, kStride);
}

// x in parts, whose rows come in blocks.
struct SplitRows {
  const uint16_t* parts;
  int rows, columns, block;  // rows of a block

  int blocks() const { return up(rows, block); }
  int steps() const { return up(columns, kTileColumns); }
  const uint16_t* at(int index, int step) const {
    return parts + (size_t(index) * steps() + step) * kXParts * block * kTileColumns;
  }
};

SplitRows split_rows(Team& team, const float* x, int rows, int columns, uint16_t* parts) {
  const bool alone = splits_alone(rows, omp_get_num_threads());
  if (alone) parts += copy_size(rows, columns) * omp_get_thread_num();
  const SplitRows split{parts, rows, columns, up(rows, up(rows, kTileRows))};
  const int block = split.block, stride = block * kTileColumns;
  const auto split_row = [&](int row) {
    const float* from = x + size_t(row) * columns;
    uint16_t* to = parts + (split.at(row / block, 0) - parts) + row % block * kTileColumns;
    for (int at = 0; at < columns; at += kTileColumns, to += kXParts * stride)
      split_columns(from + at, std::min(kTileColumns, columns - at), to, stride);
  };
  if (!alone) team.each(rows, split_row);
  for (int row = 0; alone && row < rows; ++row) split_row(row);
  return split;
}

constexpr int kTilesAhead = 16384;  // bytes of weights that are on their way

// A group's outputs for all rows. One block of rows takes the weights as they come from memory;
// for more, the next group's come meanwhile.
void multiply_group(const Matrix& matrix, int group, const SplitRows& x, float* y) {
  const int steps = x.steps(), blocks = x.blocks(), output = group * kGroupOutputs;
  const int outputs = std::min(kGroupOutputs, matrix.rows - output);
  const int64_t size = int64_t(steps) * kTilesAtOnce * kTileSize;
  const auto* weights = static_cast<const uint16_t*>(matrix.weight) + group * size;
  const auto* later = reinterpret_cast<const char*>(weights);
  TilesAhead ahead{later + (blocks == 1 ? kTilesAhead : 2 * size), 16 / blocks};
  alignas(64) float sums[kTileRows * kGroupOutputs];
  for (int row = 0; row < x.rows; row += x.block) {
    sum_tiles(weights, x.at(row / x.block, 0), x.block, steps, ahead, sums);
    for (int own = 0; own < std::min(x.block, x.rows - row); ++own)
      for (int i = 0; i < outputs; i += kLanes)
        put(load(sums + own * kGroupOutputs + i), matrix.bias ? matrix.bias + output + i : nullptr,
            outputs - i, y + size_t(row + own) * matrix.rows + output + i);
  }
}

// As `multiply`.
void multiply_by_tiles(Team& team, const Matrix& matrix, const float* x, int rows, float* y,
                       uint16_t* parts) {
  if (rows == 0) return;
  const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
  const int64_t groups = up(matrix.rows, kGroupOutputs);
  const SplitRows split = split_rows(team, x, rows, matrix.columns, parts);
  const TileShape own{split.block, 16}, weights{kTileColumns / 2, kTileOutputs};
  use_tiles({own, own, own, own, own, own, weights, weights});
  for (int64_t group = groups * thread / threads; group < groups * (thread + 1) / threads; ++group)
    multiply_group(matrix, int(group), split, y);
  stop_tiles();
}

#else

constexpr bool kTiles = false;
inline void stop_tiles() {}
inline void multiply_by_tiles(Team&, const Matrix&, const float*, int, float*, uint16_t*) {}

#endif

}  // namespace
