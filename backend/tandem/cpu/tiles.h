// Linear layers with bfloat16 weights by the processor's matrix unit (AMX), where there is one: some
// rows cost little more than one row, for reading the weights takes longer.
//
// The unit multiplies bfloat16 by bfloat16 and sums in float, as products of two do (twos.h). A row's sums
// go 32 columns after 32 columns, whatever rows stand beside it.
#pragma once

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)
#define TANDEM_TILES 1
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "numbers.h"
#include "outputs.h"
#include "structures.h"
#include "team.h"
#include "twos.h"

namespace {

constexpr int kTileRows = 16, kTileColumns = 32, kTileOutputs = 16;
constexpr int kTileSize = kTileColumns * kTileOutputs;  // numbers of a tile of weights
constexpr int kTilesAtOnce = 4;                         // of weights: they share the reading of x
constexpr int kGroupOutputs = kTilesAtOnce * kTileOutputs, kGroupPairs = kTilesAtOnce / 2;

// Numbers of a matrix as it is read: [groups, columns / 32, 4 tiles, 16 pairs of columns, 16
// outputs, 2]. What is missing of the last outputs and columns is zero.
inline int tile_groups(int rows, bool gated) { return up(pairs_of(rows, gated), kGroupPairs); }
inline int64_t tiled_size(int rows, int columns, bool gated) {
  return int64_t(tile_groups(rows, gated)) * kTilesAtOnce * up(columns, kTileColumns) * kTileSize;
}

void pack_tiles(const uint16_t* weight, int rows, int columns, bool gated, uint16_t* to) {
  const int steps = up(columns, kTileColumns);
#pragma omp parallel for schedule(static)
  for (int place = 0; place < tile_groups(rows, gated) * kGroupOutputs; ++place) {
    const int row = row_at(place, rows, gated);
    const int64_t group = place / kGroupOutputs, tile = place % kGroupOutputs / kTileOutputs;
    uint16_t* out = to + (group * steps * kTilesAtOnce + tile) * kTileSize + place % kTileOutputs * 2;
    for (int k = 0; k < steps * kTileColumns; ++k) {
      const int64_t step = k / kTileColumns, pair = k % kTileColumns / 2;
      out[step * kTilesAtOnce * kTileSize + pair * 2 * kTileOutputs + k % 2] =
          row >= 0 && k < columns ? weight[size_t(row) * columns + k] : 0;
    }
  }
}

// Columns of a row of x, with zeros behind them.
inline int tiled_columns(int columns) { return up(columns, kTileColumns) * kTileColumns; }
// Rows of it, for each block of 16 is as high as the others.
inline int tiled_rows(int rows) { return rows > kTileRows ? up(rows, kTileRows) * kTileRows : rows; }

#if TANDEM_TILES

bool ask_for_tiles() {  // the system has to allow it, once for all threads
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
const bool kTiles = ask_for_tiles();

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

// Bytes of weights that are on their way into the second cache, and those on their way from there into
// the first one: what is loaded from the second keeps multiplications waiting, and more lines can be on
// their way to it.
constexpr int kTilesAhead = 16384, kTilesNear = 4096;

// What is asked for while tiles are multiplied: so many lines of memory a tile of weights, one by one.
// (With their number known to the compiler they come all at once, which takes longer.)
struct TilesAhead {
  const char* from;
  int lines;
};

struct TileInput {
  const uint16_t* at;
  int rows, width, steps, block;  // width: numbers from row to row; block: rows of one
};

// A group's sums for a block of rows, that become outputs while the next ones are summed: all at once they
// would have to wait for tiles to be stored, and memory for them.
struct Made {
  explicit Made(const Outputs& outputs) : outputs(outputs) {}

  // So many rows.
  void put(int rows) {
    for (const int last = std::min(end, row + rows); row < last; ++row, from += kGroupOutputs)
      for (int pair = 0; pair < kGroupPairs; ++pair) {
        const float* own = from + pair * kOutputs;
        outputs.put_pair(row, group * kGroupPairs + pair, load(own), load(own + kLanes));
      }
  }

  void put_rest() { put(end - row); }

  // There are others, and those before have been put.
  void next(int next_group, int first, int last) {
    group = next_group, row = first, end = last, from = sums;
  }

  const Outputs& outputs;
  alignas(64) float sums[kTileRows * kGroupOutputs];  // others take their place when all have been put
  int group = 0, row = 0, end = 0;  // rows from here on are still to be put, ...
  const float* from = sums;         // ... which are these
};

// Sums a group's outputs for a block of rows into made.sums, [rows, 64], and puts those of the block before
// meanwhile. Tiles 0 to 3: of 16 outputs each. 4: x. 5 to 7: weights.
inline void sum_tiles(const uint16_t* weights, const uint16_t* x, const TileInput& input,
                      TilesAhead& ahead, Made& made) {
  const int at_a_step = up(made.end - made.row, input.steps);  // rows
  const int stride = input.width * int(sizeof(uint16_t));
  written();
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
#define TANDEM_ADD(tile, own)                                          \
  _tile_loadd(own, weights + (tile) * kTileSize, 64);                  \
  _tile_dpbf16ps(tile, 4, own);                                        \
  for (int line = 0; line < kTileRows; ++line)                         \
    __builtin_prefetch(near + ((tile) * kTileRows + line) * 64, 0, 3); \
  for (int line = 0; line < ahead.lines; ++line, ahead.from += 64) __builtin_prefetch(ahead.from, 0, 2)
  for (int step = 0; step < input.steps; ++step) {
    const char* near = reinterpret_cast<const char*>(weights) + kTilesNear;
    _tile_loadd(4, x, stride);
    for (int row = 0; row < input.block; ++row)
      __builtin_prefetch(x + 2 * kTileColumns + row * input.width, 0, 3);
    TANDEM_ADD(0, 5);
    TANDEM_ADD(1, 6);
    TANDEM_ADD(2, 7);
    TANDEM_ADD(3, 5);
    made.put(at_a_step);
    x += kTileColumns;
    weights += kTilesAtOnce * kTileSize;
  }
#undef TANDEM_ADD
  constexpr int kStride = kGroupOutputs * sizeof(float);
  _tile_stored(0, made.sums, kStride);
  _tile_stored(1, made.sums + kTileOutputs, kStride);
  _tile_stored(2, made.sums + 2 * kTileOutputs, kStride);
  _tile_stored(3, made.sums + 3 * kTileOutputs, kStride);
}

// A group's sums for all rows. One block of rows takes the weights as they come from memory;
// for more, the next group's come meanwhile.
void multiply_group(const Matrix& matrix, int group, const TileInput& x, Made& made) {
  const int blocks = up(x.rows, x.block);
  const int64_t size = int64_t(x.steps) * kTilesAtOnce * kTileSize;
  const auto* weights = static_cast<const uint16_t*>(matrix.weight) + group * size;
  const auto* later = reinterpret_cast<const char*>(weights);
  TilesAhead ahead{later + (blocks == 1 ? kTilesAhead : 2 * size), 16 / blocks};
  for (int row = 0; row < x.rows; row += x.block) {
    sum_tiles(weights, x.at + size_t(row) * x.width, x, ahead, made);
    made.next(group, row, std::min(row + x.block, x.rows));
  }
}

// As `multiply`.
void multiply_by_tiles(Team& team, const Matrix& matrix, const Inputs& x, int rows,
                       const Outputs& outputs) {
  if (rows == 0) return;
  const int width = int(x.width);
  const TileInput input{x.halves, rows, width, width / kTileColumns, up(rows, up(rows, kTileRows))};
  const TileShape own{input.block, 16}, weights{kTileColumns / 2, kTileOutputs};
  use_tiles({own, own, own, own, own, weights, weights, weights});
  Made made(outputs);
  const auto sum_group = [&](int group) { multiply_group(matrix, group, input, made); };
  team.each(tile_groups(matrix.rows, matrix.gated), sum_group, [&] { made.put_rest(); });
  stop_tiles();
}

#else

constexpr bool kTiles = false;
inline void stop_tiles() {}
inline void multiply_by_tiles(Team&, const Matrix&, const Inputs&, int, const Outputs&) {}

#endif

}  // namespace
