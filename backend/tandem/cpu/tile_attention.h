// Attention by the matrix unit (tiles.h), where keys and values are bfloat16. Queries and shares go in
// rounded, as by products of two (vector_attention.h). Scores are made 16 queries by 16 positions at a
// time, none of which depends on others. Values are summed 16 positions after 16 positions of the
// text, from its beginning on, whatever a row does not see adding zeros.
#pragma once

#include "cache.h"
#include "tiles.h"
#include "vector_attention.h"

namespace {

// Whether heads of such a size are read so.
inline bool tiles_attend(int size) { return kTiles && size % kTileColumns == 0; }

// Heads whose queries, or sums, one tile takes. What is missing of the last ones is whatever was there: each
// head's numbers are its own.
inline int tile_heads(int count) { return std::min(count, kTileRows); }

#if TANDEM_TILES

constexpr int kPairs = kBlock / 2;             // of a piece's positions
constexpr int kRunColumns = 4 * kTileOutputs;  // of values that are summed at once
constexpr int kWord = int(sizeof(float)), kHalf = int(sizeof(uint16_t));

// For scores of so many heads. Tiles 0 to 3: their queries by 16 positions each. 4: queries. 5 and 6: keys.
inline void use_scoring_tiles(int heads) {
  const TileShape scores{heads, kBlock}, queries{heads, kTileColumns / 2};
  const TileShape keys{kTileColumns / 2, kBlock};
  use_tiles({scores, scores, scores, scores, queries, keys, keys, {}});
}

// For what so many heads mix. Tiles 0 to 3: sums of 16 columns each. 4: shares. 5 and 6: values.
inline void use_mixing_tiles(int heads) {
  const TileShape sums{heads, kTileOutputs}, shares{heads, kPairs}, values{kPairs, kTileOutputs};
  use_tiles({sums, sums, sums, sums, shares, values, values, {}});
}

// Products of a tile's queries with the keys of N pieces. scores: [heads, line].
template <int N>
void score_tiles(const uint16_t* queries, const uint16_t* const* pieces, int size, float* scores,
                 int line) {
  _tile_zero(0);
  if constexpr (N > 1) _tile_zero(1);
  if constexpr (N > 2) _tile_zero(2);
  if constexpr (N > 3) _tile_zero(3);
#define TANDEM_SCORE(tile, own)                              \
  if constexpr (N > tile) {                                  \
    _tile_loadd(own, pieces[tile] + column * kBlock, 64);    \
    _tile_dpbf16ps(tile, 4, own);                            \
  }
  for (int column = 0; column < size; column += kTileColumns) {
    _tile_loadd(4, queries + column, size * kHalf);
    TANDEM_SCORE(0, 5)
    TANDEM_SCORE(1, 6)
    TANDEM_SCORE(2, 5)
    TANDEM_SCORE(3, 6)
  }
#undef TANDEM_SCORE
  _tile_stored(0, scores, line * kWord);
  if constexpr (N > 1) _tile_stored(1, scores + kBlock, line * kWord);
  if constexpr (N > 2) _tile_stored(2, scores + 2 * kBlock, line * kWord);
  if constexpr (N > 3) _tile_stored(3, scores + 3 * kBlock, line * kWord);
}

// Adds what a tile's heads mix of so many pieces to N times 16 columns of their sums, [heads, size]. shares:
// [heads, stride]; coming: null, or what is on its way meanwhile. (Products that are added to one tile wait
// for each other: of four tiles more are under way than of two.)
template <int N>
void mix_tiles(const uint16_t* shares, int stride, const uint16_t* const* pieces, int count, int size,
               int column, float* sums, Coming<uint16_t>* coming) {
  const int line = size * kWord;
  sums += column;
  _tile_loadd(0, sums, line);
  _tile_loadd(1, sums + kTileOutputs, line);
  if constexpr (N > 2) {
    _tile_loadd(2, sums + 2 * kTileOutputs, line);
    _tile_loadd(3, sums + 3 * kTileOutputs, line);
  }
  for (int i = 0; i < count; ++i) {
    const uint16_t* values = pieces[i] + 2 * column;
    _tile_loadd(4, shares + i * kBlock, stride * kHalf);
    _tile_loadd(5, values, line);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(6, values + 2 * kTileOutputs, line);
    _tile_dpbf16ps(1, 4, 6);
    if constexpr (N > 2) {
      _tile_loadd(5, values + 4 * kTileOutputs, line);
      _tile_dpbf16ps(2, 4, 5);
      _tile_loadd(6, values + 6 * kTileOutputs, line);
      _tile_dpbf16ps(3, 4, 6);
    }
    if (coming) coming->next();
  }
  _tile_stored(0, sums, line);
  _tile_stored(1, sums + kTileOutputs, line);
  if constexpr (N > 2) {
    _tile_stored(2, sums + 2 * kTileOutputs, line);
    _tile_stored(3, sums + 3 * kTileOutputs, line);
  }
}

// The same for all columns and so many heads, `rows` in a tile.
void mix_heads(const uint16_t* shares, int stride, int heads, int rows, const uint16_t* const* pieces,
               int count, int size, float* sums, Coming<uint16_t>* coming) {
  written();
  for (int column = 0; column < size; column += kRunColumns)
    for (int first = 0; first < heads; first += rows, coming = nullptr)
      (size - column < kRunColumns ? mix_tiles<2> : mix_tiles<4>)(
          shares + size_t(first) * stride, stride, pieces, count, size, column, sums + first * size,
          coming);
}

void score_by_tiles(const Attention<uint16_t>& task, Coming<uint16_t>& coming) {
  const int rows = tile_heads(task.count);
  use_scoring_tiles(rows);
  Room<uint16_t> room;
  each_chunk(task, [&](int begin, int end, int kv_head) {
    const uint16_t* pieces[kChunk / kBlock];
    const int count = up(end - begin, kBlock);
    for (int i = 0; i < count; ++i) pieces[i] = keys_at(task, begin + i * kBlock, kv_head, room);
    written();
    in_turns<4>(count, [&](auto n, int from) {
      for (int i = 0; i < n; ++i) coming.next();
      for (int first = 0; first < task.count; first += rows) {
        const int index = kv_head * task.count + first;
        score_tiles<n>(rounded_query(task, index), pieces + from, task.size,
                       task.heads[index].scores + begin + from * kBlock, task.line);
      }
    });
  });
}

void mix_by_tiles(const Attention<uint16_t>& task, Coming<uint16_t>& coming) {
  const int rows = tile_heads(task.count), size = tiled_rows(task.count) * task.size;
  const int whole = task.whole();
  Room<uint16_t> room;
  use_mixing_tiles(rows);
  each_chunk(task, [&](int begin, int end, int kv_head) {
    if (begin >= whole) return;
    const uint16_t* pieces[kChunk / kBlock];
    const int count = up(std::min(end, whole) - begin, kBlock);
    for (int i = 0; i < count; ++i)
      pieces[i] = values_at(task, begin + i * kBlock, whole, kv_head, room);
    const auto* shares = reinterpret_cast<const uint16_t*>(task.heads[kv_head * task.count].scores);
    mix_heads(shares + begin, 2 * task.line, task.count, rows, pieces, count, task.size,
              task.sums + kv_head * size, &coming);
  });
  if (whole == task.end) return;
  int row_heads = tile_heads(task.shared);  // of one row alone
  while (task.shared % row_heads) --row_heads;
  use_mixing_tiles(row_heads);
  for (int head = 0; head < task.kv_heads; ++head)
    each_path<uint16_t>(task, head, [&](int first, const auto* piece, const auto* shares) {
      mix_heads(shares, kBlock, task.shared, row_heads, &piece, 1, task.size,
                task.sums + head * size + first * task.size, nullptr);
    });
}

#else

inline void score_by_tiles(const Attention<uint16_t>&, Coming<uint16_t>&) {}
inline void mix_by_tiles(const Attention<uint16_t>&, Coming<uint16_t>&) {}

#endif

}  // namespace
